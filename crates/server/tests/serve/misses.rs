//! What is not there: it is redirected or waited for, and told to who fills the server.

use serde_json::{Value, json};

use super::directory;
use super::lab::{Atlas, Lab};

/// Where it is told, in the namespace's own loopback.
const METRICS: &str = "127.0.0.1:9100";
const CONFIG: &str = r#"
[[site]]
names = ["a.example"]
root = "/a"
on_miss = { redirect = "http://origin.example{path}" }

[[site.rule]]
paths = ["*.m3u8"]
on_miss = { hold = "20s" }
"#;
/// How often it is looked whether all wait: each look starts a program.
const LOOKS_MAX: usize = 1000;
/// Who asks for the same name at once.
const CLIENTS: u64 = 6;

/// The lines that the listener for metrics has to a target.
fn told(lab: &Lab, target: &str) -> Vec<Value> {
    let text = lab.curl(&[&format!("http://{METRICS}{target}")]);
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

/// What is told of a name, without its time.
fn told_of(lines: &[Value], path: &str) -> Option<Value> {
    let mut of_path = lines.iter().filter(|line| line["path"] == *path);
    let mut line = of_path.next()?.clone();
    assert_eq!(of_path.next(), None, "{path} is told once");
    let last = line.as_object_mut().unwrap().remove("last");
    assert!(last.unwrap().as_u64() > Some(1_700_000_000));
    Some(line)
}

#[test]
fn what_is_missing_is_told_and_redirected_or_waited_for() {
    let Some(lab) = Lab::new() else { return };
    let (directory, _) = directory();
    let folder = directory.path().join("a/live");
    std::fs::create_dir_all(&folder).unwrap();
    let config = directory.path().join("atlas.toml");
    std::fs::write(&config, CONFIG).unwrap();
    let config = config.to_str().unwrap();
    let words = ["--metrics", METRICS, "--workers", "2", "--config", config];
    let mut atlas = Atlas::start(&lab, directory.path(), &words);
    atlas.ready();
    let fetch = |path: &str| {
        let url = format!("http://10.77.0.2{path}");
        let words = ["--include", "--header", "Host: a.example", &url];
        String::from_utf8(lab.curl(&words)).unwrap()
    };
    for _ in 0..CLIENTS {
        let moved = fetch("/no%20ne/x.m4s?t=%2f");
        let location = "\r\nLocation: http://origin.example/no%20ne/x.m4s?t=%2f\r\n";
        assert!(
            moved.starts_with("HTTP/1.1 307 ") && moved.contains(location),
            "{moved}"
        );
    }
    let lines = told(&lab, "/misses");
    let missed = told_of(&lines, "/a/no%20ne/x.m4s").unwrap();
    let expected = json!({"sequence": 1, "site": "a.example", "path": "/a/no%20ne/x.m4s", "requests": CLIENTS});
    assert_eq!((missed, lines.len()), (expected, 2));
    assert_eq!(lines[0]["next"], 1);
    std::thread::scope(|scope| {
        let ask = || scope.spawn(|| fetch("/live/a.m3u8"));
        let asking: Vec<_> = (0..CLIENTS).map(|_| ask()).collect();
        let waiting = format!("\natlas_server_holding_lookups {CLIENTS}\n");
        let is_waiting = |_| {
            let text = lab.curl(&[&format!("http://{METRICS}/metrics")]);
            String::from_utf8(text).unwrap().contains(&waiting)
        };
        assert!((0..LOOKS_MAX).any(is_waiting), "they do not all wait");
        std::fs::write(folder.join("a.m3u8.new"), "#EXTM3U\n").unwrap();
        std::fs::rename(folder.join("a.m3u8.new"), folder.join("a.m3u8")).unwrap();
        for reply in asking {
            let reply = reply.join().unwrap();
            assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
            assert!(reply.ends_with("\r\n\r\n#EXTM3U\n"), "{reply}");
        }
    });
    let more = told(&lab, "/misses?after=1");
    let missed = told_of(&more, "/a/live/a.m3u8").unwrap();
    let expected =
        json!({"sequence": 2, "site": "a.example", "path": "/a/live/a.m3u8", "requests": CLIENTS});
    assert_eq!((missed, more.len()), (expected, 2));
    assert_eq!(
        more[0],
        json!({"instance": lines[0]["instance"], "next": 2})
    );
    let counts = told(&lab, "/counts");
    assert_eq!(counts[0]["instance"], lines[0]["instance"]);
    let counted = told_of(&counts, "/a/live/a.m3u8").unwrap();
    let expected = json!({"site": "a.example", "path": "/a/live/a.m3u8", "requests": CLIENTS, "excess_max": 0});
    assert_eq!((counted, counts.len()), (expected, 2));
    atlas.signal(libc::SIGTERM);
    let summary = atlas.end().json("summary ");
    assert_eq!(summary["http_miss_redirect_count"], CLIENTS);
    assert_eq!(summary["server_held_found_lookups"], CLIENTS);
}
