//! Sites and rules through curl, and links signed by the signers of `docs/run/sites.md` as they stand there.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::directory;
use super::lab::{Atlas, Lab};

const PAGE: &str = include_str!("../../../../docs/run/sites.md");
/// The interpreters of the page's signers.
const SIGNERS: [(&str, &str); 3] = [("sh", "bash"), ("python", "python3"), ("js", "node")];

const CONFIG: &str = r#"
[[site]]
names = ["video.example"]
cors = ["https://player.example"]
credentials = true

[[site.rule]]
paths = ["/films/**"]
link = { keys = "KEYS" }

[[site.rule]]
paths = ["/old/**"]
redirect = "https://archive.example$request_uri"
status = 301

[[site.rule]]
paths = ["/raw/**"]
deny = ["10.77.0.0/24"]
"#;

/// Writes what is served, the keys and the configuration.
fn lay_out() -> (TempDir, PathBuf) {
    let (directory, bytes) = directory();
    for folder in ["films", "raw", "public"] {
        let folder = directory.path().join("site").join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a.bin"), &bytes[..1000]).unwrap();
    }
    std::fs::write(directory.path().join("site/.htpasswd"), "secret").unwrap();
    let keys = directory.path().join("keys");
    std::fs::write(&keys, "# the new one\n0123456789abcdef\n00ff\n").unwrap();
    let config = directory.path().join("atlas.toml");
    std::fs::write(&config, CONFIG.replace("KEYS", keys.to_str().unwrap())).unwrap();
    (directory, config)
}

/// Head and body that a client gets for a path of the site.
fn fetch(lab: &Lab, name: &str, path: &str, words: &[&str]) -> String {
    let (host, url) = (format!("Host: {name}"), format!("http://10.77.0.2{path}"));
    let curl = [
        &["--include", "--path-as-is", "--header", &host, &url],
        words,
    ]
    .concat();
    String::from_utf8_lossy(&lab.curl(&curl)).into_owned()
}

/// A token made by a signer of the page.
fn sign(language: &str, interpreter: &str, folder: &Path, pattern: &str) -> Option<String> {
    let (_, section) = PAGE.split_once("\n## Signed links\n").unwrap();
    let code = section.split(&format!("```{language}\n")).nth(1).unwrap();
    let script = folder.join(format!("sign.{language}"));
    std::fs::write(&script, code.split("```").next().unwrap()).unwrap();
    let mut command = Command::new(interpreter);
    command
        .arg(&script)
        .args([pattern, "60"])
        .arg(folder.join("keys"));
    let Ok(output) = command.output() else {
        eprintln!("SKIPPED: signing by {interpreter}, which is not installed");
        return None;
    };
    assert!(output.status.success(), "{interpreter}: {output:?}");
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[test]
fn rules_of_a_site_redirect_refuse_and_let_listed_origins_read() {
    let Some(lab) = Lab::new() else { return };
    let (directory, config) = lay_out();
    let words = ["--config", config.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, &directory.path().join("site"), &words);
    atlas.ready();
    let status = |name, path| fetch(&lab, name, path, &[])[9..12].to_owned();
    for (name, path, code) in [
        ("video.example", "/public/a.bin", "200"),
        ("VIDEO.example:80", "/public/a.bin", "200"),
        ("other.example", "/public/a.bin", "421"),
        ("10.77.0.2", "/public/a.bin", "421"),
        ("video.example", "/raw/a.bin", "403"),
        ("video.example", "/public/../raw/a.bin", "403"),
        ("video.example", "//raw/%61.bin", "403"),
        ("video.example", "/films/a.bin", "403"),
        ("video.example", "/.htpasswd", "404"),
        ("video.example", "/old/x?y", "301"),
    ] {
        assert_eq!(status(name, path), code, "{name} {path}");
    }
    let moved = fetch(&lab, "video.example", "/old/x?y", &[]);
    assert!(
        moved.contains("Location: https://archive.example/old/x?y\r\n"),
        "{moved}"
    );
    for (origin, is_listed) in [
        ("https://player.example", true),
        ("https://x.example", false),
    ] {
        let origin = format!("Origin: {origin}");
        for path in ["/public/a.bin", "/films/a.bin", "/none"] {
            let reply = fetch(&lab, "video.example", path, &["--header", &origin]);
            let allowed = "Access-Control-Allow-Origin: https://player.example\r\n";
            assert_eq!(reply.contains(allowed), is_listed, "{reply}");
            let credentials = "Access-Control-Allow-Credentials: true\r\n";
            assert_eq!(reply.contains(credentials), is_listed, "{reply}");
            assert!(reply.contains("Vary: Origin\r\n"), "{reply}");
        }
    }
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn a_site_may_have_a_directory_beside_path() {
    let Some(lab) = Lab::new() else { return };
    let (directory, config) = lay_out();
    let beside = directory.path().join("beside");
    std::fs::create_dir(&beside).unwrap();
    std::fs::write(beside.join("a.bin"), "beside").unwrap();
    let text = |folder: &Path| {
        format!(
            "[[site]]\nnames = [\"beside.example\"]\ndirectory = \"{}\"\n[[site]]\n",
            folder.display()
        )
    };
    std::fs::write(&config, text(&beside)).unwrap();
    let words = ["--config", config.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, &directory.path().join("site"), &words);
    atlas.ready();
    let reply = |name, path| fetch(&lab, name, path, &[]);
    assert!(reply("beside.example", "/a.bin").ends_with("\r\n\r\nbeside"));
    assert_eq!(reply("x.example", "/a.bin")[9..12], *"404");
    assert_eq!(reply("beside.example", "/public/a.bin")[9..12], *"404");
    assert_eq!(reply("x.example", "/public/a.bin")[9..12], *"200");
    // One that was not named at start waits for another process.
    std::fs::write(&config, text(&directory.path().join("site"))).unwrap();
    atlas.signal(libc::SIGHUP);
    let line = atlas.stderr_line("SIGHUP: the configuration stays as it was");
    assert!(
        line.contains("opened at start; use atlas reload --take-over"),
        "{line}"
    );
    assert!(reply("beside.example", "/a.bin").ends_with("\r\n\r\nbeside"));
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn a_trusted_proxy_says_who_asks_and_nobody_else_does() {
    let Some(lab) = Lab::new() else { return };
    let (directory, config) = lay_out();
    let sites = std::fs::read_to_string(&config).unwrap();
    let log = directory.path().join("access.log");
    // The client's address is 10.77.0.1, and what is asked for is denied to 10.77.0.0/24.
    for (trusted, code, asking) in [
        ("10.77.0.0/30", "200", "192.0.2.7 - - "),
        ("10.99.0.0/24", "403", "10.77.0.1 - - "),
    ] {
        std::fs::write(
            &config,
            format!("trusted_proxies = [\"{trusted}\"]\n{sites}"),
        )
        .unwrap();
        let words = [
            "--config",
            config.to_str().unwrap(),
            "--access-log",
            log.to_str().unwrap(),
        ];
        let mut atlas = Atlas::start(&lab, &directory.path().join("site"), &words);
        atlas.ready();
        let status = |list: &str| {
            let header = ["--header", &format!("X-Forwarded-For: {list}")];
            fetch(&lab, "video.example", "/raw/a.bin", &header)[9..12].to_owned()
        };
        assert_eq!(status("192.0.2.9, 192.0.2.7"), code);
        assert_eq!(status("192.0.2.9, 10.77.0.5"), "403");
        atlas.signal(libc::SIGTERM);
        assert_eq!(atlas.end().code, Some(0));
        let lines = std::fs::read_to_string(&log).unwrap();
        let first = lines.lines().rev().nth(1).unwrap();
        assert!(first.starts_with(asking), "{lines}");
    }
}

#[test]
fn a_balancer_says_whom_it_forwards_before_the_first_byte() {
    let Some(lab) = Lab::new() else { return };
    let (directory, config) = lay_out();
    let sites = std::fs::read_to_string(&config).unwrap();
    let sites = sites.replace("10.77.0.0/24", "192.0.2.0/24");
    let text = format!("trusted_proxies = [\"10.77.0.0/30\"]\nproxy_protocol = true\n{sites}");
    std::fs::write(&config, &text).unwrap();
    let words = ["--config", config.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, &directory.path().join("site"), &words);
    atlas.ready();
    // curl says its own address by version 1. Of whom that is forwarded for, the list says more.
    let status = |words: &[&str]| {
        let words = [&["--haproxy-protocol"], words].concat();
        fetch(&lab, "video.example", "/raw/a.bin", &words)[9..12].to_owned()
    };
    assert_eq!(status(&[]), "200");
    assert_eq!(status(&["--header", "X-Forwarded-For: 192.0.2.7"]), "403");
    // Who is no balancer may not say it, and need not.
    std::fs::write(&config, text.replace("10.77.0.0/30", "10.99.0.0/30")).unwrap();
    atlas.signal(libc::SIGHUP);
    atlas.stderr_line("SIGHUP: the files are read again");
    assert_eq!(status(&[]), "400");
    assert_eq!(
        fetch(&lab, "video.example", "/raw/a.bin", &[])[9..12],
        *"200"
    );
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

/// HAProxy in a namespace, ended when dropped.
struct Haproxy(String);

impl Haproxy {
    /// `None`, said aloud, where it is not installed. Returns when it listens.
    fn start(lab: &Lab, folder: &Path) -> Option<Self> {
        if Command::new("haproxy").arg("-v").output().is_err() {
            eprintln!("SKIPPED: haproxy is not installed");
            return None;
        }
        let (config, pid) = (folder.join("haproxy.cfg"), folder.join("haproxy.pid"));
        let listen = [
            ("8081", "80 send-proxy"),
            ("8082", "80 send-proxy-v2"),
            ("8443", "443 send-proxy-v2"),
        ];
        let listen = listen.map(|(port, server)| {
            format!("listen l{port}\n bind 127.0.0.1:{port}\n server atlas 10.77.0.2:{server}\n")
        });
        let defaults =
            "defaults\n mode tcp\n timeout connect 10s\n timeout client 30s\n timeout server 30s\n";
        std::fs::write(&config, format!("{defaults}{}", listen.concat())).unwrap();
        let mut command = lab.command("haproxy");
        command.arg("-D").arg("-f").arg(&config).arg("-p").arg(&pid);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let pid = std::fs::read_to_string(pid).unwrap();
        Some(Self(pid.trim().to_owned()))
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(&self.0).status();
    }
}

#[test]
fn haproxy_says_whom_it_forwards_by_both_versions_and_before_tls() {
    let Some(lab) = Lab::new() else { return };
    let (directory, config) = lay_out();
    let Some(_haproxy) = Haproxy::start(&lab, directory.path()) else {
        return;
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["video.example".to_owned()]).unwrap();
    let folder = directory.path().join("certificates");
    std::fs::create_dir(&folder).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(folder.join("video.example.crt"), certificate.pem()).unwrap();
    std::fs::write(folder.join("video.example.key"), key.serialize_pem()).unwrap();
    let sites = std::fs::read_to_string(&config).unwrap();
    let sites = sites.replace("10.77.0.0/24", "127.0.0.0/8");
    let folder = folder.to_str().unwrap();
    let text = format!(
        "trusted_proxies = [\"10.77.0.1\"]\nproxy_protocol = true\nhttps = 443\n\
         certificates = \"{folder}\"\n{sites}"
    );
    std::fs::write(&config, text).unwrap();
    let words = ["--config", config.to_str().unwrap(), "--user", "nobody"];
    let mut atlas = Atlas::start(&lab, &directory.path().join("site"), &words);
    atlas.ready();
    // Who asks HAProxy is 127.0.0.1, which is denied; who asks the server is HAProxy.
    for origin in [
        "http://127.0.0.1:8081",
        "http://127.0.0.1:8082",
        "https://127.0.0.1:8443",
    ] {
        for (path, code) in [("/public/a.bin", "200"), ("/raw/a.bin", "403")] {
            let url = format!("{origin}{path}");
            let words = [
                "--include",
                "--insecure",
                "--header",
                "Host: video.example",
                &url,
            ];
            let reply = String::from_utf8_lossy(&lab.curl(&words)).into_owned();
            assert_eq!(reply[9..12], *code, "{url}");
        }
    }
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn sighup_changes_sites_for_requests_that_follow() {
    let Some(lab) = Lab::new() else { return };
    let (directory, config) = lay_out();
    let words = ["--config", config.to_str().unwrap(), "--user", "nobody"];
    let mut atlas = Atlas::start(&lab, &directory.path().join("site"), &words);
    atlas.ready();
    let status = || fetch(&lab, "video.example", "/raw/a.bin", &[])[9..12].to_owned();
    assert_eq!(status(), "403");
    let open = CONFIG.replace("deny", "allow");
    let open = open.replace("KEYS", directory.path().join("keys").to_str().unwrap());
    // Readable by root only, as it may be.
    std::fs::write(&config, &open).unwrap();
    super::set_mode(&config, 0o600);
    atlas.signal(libc::SIGHUP);
    atlas.stderr_line("SIGHUP: the files are read again");
    assert_eq!(status(), "200");
    std::fs::write(&config, format!("log = \"debug\"\n{open}")).unwrap();
    atlas.signal(libc::SIGHUP);
    atlas.stderr_line("SIGHUP: the log is at debug");
    std::fs::write(&config, "[[site]]\nnams = [\"a\"]\n").unwrap();
    atlas.signal(libc::SIGHUP);
    let line = atlas.stderr_line("SIGHUP: the configuration stays as it was");
    assert!(
        line.contains(":2:1: nams: unknown key inside [[site]]; did you mean names?"),
        "{line}"
    );
    assert_eq!(status(), "200");
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn links_signed_by_the_documents_signers_open_what_they_say() {
    let Some(lab) = Lab::new() else { return };
    let (directory, config) = lay_out();
    let words = ["--config", config.to_str().unwrap()];
    let mut atlas = Atlas::start(&lab, &directory.path().join("site"), &words);
    atlas.ready();
    let code =
        |path: &str, words: &[&str]| fetch(&lab, "video.example", path, words)[9..12].to_owned();
    for (language, interpreter) in SIGNERS {
        let Some(token) = sign(language, interpreter, directory.path(), "/films/*") else {
            continue;
        };
        let cookie = format!("Cookie: hdnts={token}");
        assert_eq!(
            code(&format!("/films/a.bin?hdnts={token}"), &[]),
            "200",
            "{token}"
        );
        assert_eq!(
            code(&format!("/hdnts={token}/films/a.bin"), &[]),
            "200",
            "{token}"
        );
        assert_eq!(
            code("/films/a.bin", &["--header", &cookie]),
            "200",
            "{token}"
        );
        let (tampered, other) = (
            token.replace("films", "raw"),
            token.replace("hmac=", "hmac=0"),
        );
        assert_eq!(code(&format!("/films/a.bin?hdnts={tampered}"), &[]), "403");
        assert_eq!(code(&format!("/films/a.bin?hdnts={other}"), &[]), "403");
        let twice = token.replace('/', "%252f");
        assert_eq!(code(&format!("/films/a.bin?hdnts={twice}"), &[]), "403");
        let once = token.replace('/', "%2f");
        assert_eq!(code(&format!("/films/a.bin?hdnts={once}"), &[]), "200");
    }
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}
