//! Watched from outside: the access log, metrics, health, and readers that do not read.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::lab::{Atlas, Lab};
use super::{FILE_BYTES, directory, set_mode};

/// Where metrics are asked for, in the namespace's own loopback.
const METRICS: &str = "127.0.0.1:9100";
const URL: &str = "http://10.77.0.2/film.bin";
const NOTHING: [&str; 2] = ["-o", "/dev/null"];

/// The lines of a log, without their times, once there are so many.
fn lines(atlas: &mut Atlas, path: &Path, count: usize) -> Vec<String> {
    // A line is written by a thread of its own: the counters come no sooner than a round later, so
    // asking for them gives it time; it is asked as often as it takes.
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if text.lines().count() >= count {
            return text.lines().map(without_time).collect();
        }
        atlas.signal(libc::SIGUSR1);
        atlas.stderr_line("counters ");
    }
}

/// `a [22/Nov/2026:09:40:03 +0000] b` without what stands between the brackets.
fn without_time(line: &str) -> String {
    let (before, rest) = line.split_once('[').unwrap();
    let (time, after) = rest.split_once(']').unwrap();
    assert_eq!(time.len(), "22/Nov/2026:09:40:03 +0000".len(), "{line}");
    assert!(time.ends_with(" +0000"), "{line}");
    format!("{before}{after}")
}

#[test]
fn every_request_has_a_line_and_the_file_can_be_rotated() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let logs = tempfile::TempDir::new().unwrap();
    // Whoever serves is to make the next file there.
    set_mode(logs.path(), 0o777);
    let log = logs.path().join("access.log");
    let words = ["--access-log", log.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let agent = ["-A", "test/1 \"é\"", "-e", "http://from/"];
    lab.curl(&[&NOTHING[..], &agent, &[URL]].concat());
    lab.curl(&[&NOTHING[..], &["-A", "", "-r", "5-8", URL]].concat());
    lab.curl(&[&NOTHING[..], &["-A", "", "-r", "9999999-", URL]].concat());
    lab.curl(&[&NOTHING[..], &["-A", "", "-I", URL]].concat());
    let mut stream = lab.connect("10.77.0.2:80");
    stream.write_all(b"NONSENSE\r\n\r\n").unwrap();
    let mut refusal = String::new();
    stream.read_to_string(&mut refusal).unwrap();
    let body = |text: &str| text.split_once("\r\n\r\n").unwrap().1.len();
    let told = lines(&mut atlas, &log, 5);
    assert_eq!(
        told[0],
        format!(
            "10.77.0.1 - -  \"GET /film.bin HTTP/1.1\" 200 {FILE_BYTES} \"http://from/\" \
             \"test/1 \\x22\\xC3\\xA9\\x22\""
        )
    );
    assert_eq!(
        told[1],
        "10.77.0.1 - -  \"GET /film.bin HTTP/1.1\" 206 4 \"-\" \"-\""
    );
    assert!(told[2].contains("\" 416 "), "{}", told[2]);
    assert_eq!(
        told[3],
        "10.77.0.1 - -  \"HEAD /film.bin HTTP/1.1\" 200 0 \"-\" \"-\""
    );
    let refused = format!(
        "10.77.0.1 - -  \"NONSENSE\" 400 {} \"-\" \"-\"",
        body(&refusal)
    );
    assert_eq!(told[4], refused);

    let moved = logs.path().join("access.log.1");
    std::fs::rename(&log, &moved).unwrap();
    atlas.signal(libc::SIGUSR1);
    atlas.stderr_line("is opened again");
    lab.curl(&[&NOTHING[..], &["-A", "after", URL]].concat());
    let told = lines(&mut atlas, &log, 1);
    assert!(told[0].ends_with("\"after\""), "{told:?}");
    assert_eq!(std::fs::read_to_string(&moved).unwrap().lines().count(), 5);

    // A transfer that is cut has a line as well, with what was sent of it.
    let mut stream = lab.connect("10.77.0.2:80");
    stream
        .write_all(b"GET /film.bin HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    stream.read_exact(&mut [0; 100_000]).unwrap();
    drop(stream);
    let told = lines(&mut atlas, &log, 2);
    let sent = told[1].split(" 200 ").nth(1).unwrap();
    let sent: usize = sent.split(' ').next().unwrap().parse().unwrap();
    assert!((90_000..FILE_BYTES).contains(&sent), "{told:?}");

    // Where it cannot be opened again, the old file goes on.
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    atlas.signal(libc::SIGUSR1);
    let warning = atlas.stderr_line("cannot be opened again");
    assert!(warning.contains("writing on to the old file"), "{warning}");
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert_eq!(end.json("summary ")["access_log_dropped_count"], 0);
}

#[test]
fn readers_that_do_not_read_block_no_one_else() {
    /// More lines than fit the pipe and the queue.
    const REQUESTS: usize = 24_000;
    /// Asked for at once.
    const BATCH: usize = 200;
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &["--access-log", "-"]);
    assert_eq!(atlas.ready(), "ready http://10.77.0.2/");
    // Stdout is not read from here on. Nor is stderr, and it is written to as well.
    let mut stream = lab.connect("10.77.0.2:80");
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let batch = "HEAD /no.bin HTTP/1.1\r\nHost: a\r\n\r\n".repeat(BATCH);
    for _ in 0..REQUESTS / BATCH {
        stream.write_all(batch.as_bytes()).unwrap();
        atlas.signal(libc::SIGUSR1);
        let mut heads = 0;
        while heads < BATCH {
            let mut line = String::new();
            replies.read_line(&mut line).unwrap();
            assert!(!line.is_empty(), "the server hung up");
            heads += usize::from(line == "\r\n");
        }
    }
    assert!(lab.curl(&[URL]) == bytes, "not the file's bytes");
    atlas.signal(libc::SIGTERM);
    // It ends although nobody reads; only then is read what there is.
    let (code, stdout, end) = atlas.end_unread();
    assert_eq!(code, Some(0), "{end}");
    let whole = stdout.lines().next().unwrap();
    assert!(
        without_time(whole).contains("\"HEAD /no.bin HTTP/1.1\" 404 0 "),
        "{whole}"
    );
    assert!(stdout.lines().count() < REQUESTS);
}

/// How many metric families Prometheus's own parser finds; `None`, said aloud, without it.
fn parsed_by_others(text: &[u8]) -> Option<usize> {
    const SCRIPT: &str = "import sys
try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
except ImportError:
    sys.exit(77)
print(len(list(text_string_to_metric_families(sys.stdin.read()))))";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", SCRIPT]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("SKIPPED: /usr/bin/python3 is not installed");
        return None;
    };
    child.stdin.take().unwrap().write_all(text).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("SKIPPED: python3-prometheus-client is not installed");
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(text));
    Some(
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap(),
    )
}

#[test]
fn metrics_are_read_under_load_and_by_those_who_do_not_read() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &["--metrics", METRICS]);
    atlas.ready();
    let url = |path: &str| format!("http://{METRICS}{path}");
    // Clients that ask and never read, that say nothing, and that say nonsense.
    let mut deaf: Vec<TcpStream> = (0..3).map(|_| lab.connect(METRICS)).collect();
    deaf[0]
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    deaf[1].write_all(b"\x16\x03\x01").unwrap();
    let sample = |name: &str| loop {
        let text = String::from_utf8(lab.curl(&[&url("/metrics")])).unwrap();
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        if value > 0.0 {
            return value;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                assert!(lab.curl(&[URL]) == bytes, "not the file's bytes");
            }
        });
        assert!(sample("atlas_http_reply_total ") >= 1.0);
        assert!(sample("atlas_disk_read_bytes_total ") >= 4096.0);
        assert!(sample("atlas_start_time_seconds ") > 1e9);
    });
    let text = lab.curl(&[&url("/metrics")]);
    let way = b"atlas_link_info{worker=\"0\",link=\"tap\",interface=\"atlas0\",xdp=\"none\",\
                zero_copy=\"false\",loans=\"false\",checksums=\"device\"} 1\n";
    assert!(text.windows(way.len()).any(|part| part == way));
    if let Some(families) = parsed_by_others(&text) {
        let own = text.windows(7).filter(|start| start == b"# TYPE ").count();
        assert_eq!(families, own);
    }
    assert_eq!(lab.curl(&[&url("/health")]), b"ok\n");
    let status = |url: &str| {
        let words = [&NOTHING[..], &["-w", "%{http_code}", url]].concat();
        String::from_utf8(lab.curl(&words)).unwrap()
    };
    assert_eq!(status(&url("/film.bin")), "404");
    // A client that is being sent something holds the end up: until then it is not healthy.
    let mut stream = lab.connect("10.77.0.2:80");
    stream
        .write_all(b"GET /film.bin HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    atlas.signal(libc::SIGTERM);
    atlas.stderr_line("finishing");
    while status(&url("/health")) != "503" {}
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > FILE_BYTES - 1000);
    drop(stream);
    drop(deaf);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
}

#[test]
fn failures_are_logged_with_the_file_or_the_client() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let mut atlas = Atlas::start(&lab, directory.path(), &[]);
    atlas.ready();
    let mut stream = lab.connect("10.77.0.2:80");
    stream
        .write_all(b"GET /film.bin HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    let film = directory.path().join("film.bin");
    let file = std::fs::OpenOptions::new().write(true).open(film).unwrap();
    file.set_len(100).unwrap();
    // What was read before has left; the rest is reset, not made up.
    let mut rest = Vec::new();
    assert!(
        stream.read_to_end(&mut rest).is_err(),
        "{} bytes",
        rest.len()
    );
    let line = atlas.stderr_line("file changed while it was being sent");
    assert!(line.contains("film.bin"), "{line}");
    assert!(line.contains("WARN"), "{line}");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

/// Two sites on two workers, and names that are no site's.
#[test]
fn requests_are_counted_by_site_if_that_is_wanted() {
    const CONFIG: &str = "[[site]]\nnames = [\"a.example\", \"www.a.example\"]\n\
                          [[site]]\nnames = [\"b.example\"]\n";
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let config = directory.path().join("atlas.toml");
    let words = [
        "--metrics",
        METRICS,
        "--workers",
        "2",
        "--config",
        config.to_str().unwrap(),
    ];
    for (begin, is_on) in [("metrics_by_site = true\n", true), ("", false)] {
        std::fs::write(&config, format!("{begin}{CONFIG}")).unwrap();
        let mut atlas = Atlas::start(&lab, directory.path(), &words);
        atlas.ready();
        let ask = |name: &str, path: &str| {
            let (host, url) = (format!("Host: {name}"), format!("http://10.77.0.2/{path}"));
            lab.curl(&["--header", &host, &url]).len()
        };
        // Each by a connection of its own: some to each worker.
        for _ in 0..8 {
            assert_eq!(ask("www.a.example", "film.bin"), bytes.len());
            ask("b.example", "none.bin");
            ask("c.example", "film.bin");
        }
        // What is counted by site is published before the histograms.
        let text = loop {
            let text =
                String::from_utf8(lab.curl(&[&format!("http://{METRICS}/metrics")])).unwrap();
            let all = "\natlas_http_last_byte_seconds_count 24\n";
            if text.contains(all) {
                break text;
            }
        };
        if let Some(families) = parsed_by_others(text.as_bytes()) {
            assert_eq!(families, text.matches("# TYPE ").count());
        }
        let told = |sample: &str| {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(sample));
            lines
                .next()
                .map(|value| value.trim().parse::<u64>().unwrap())
        };
        for (name, class) in [
            ("a.example", "2xx"),
            ("b.example", "4xx"),
            ("(other)", "4xx"),
        ] {
            let site = format!("site=\"{name}\"");
            let requests = format!("atlas_site_request_total{{{site}}}");
            let replies = format!("atlas_site_reply_total{{{site},class=\"{class}\"}}");
            let times = format!("atlas_site_first_byte_seconds_count{{{site}}}");
            for sample in [requests, replies, times] {
                assert_eq!(told(&sample), is_on.then_some(8), "{sample}");
            }
        }
        if is_on {
            let sent = told("atlas_site_sent_bytes_total{site=\"a.example\"}").unwrap();
            let least = 8 * bytes.len() as u64;
            assert!((least..least + 8 * 1000).contains(&sent), "{sent}");
        } else {
            assert!(!text.contains("atlas_site_"), "{text}");
        }
        atlas.signal(libc::SIGTERM);
        assert_eq!(atlas.end().code, Some(0));
    }
}
