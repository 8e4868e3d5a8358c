//! The same over TLS, asked by OpenSSL (curl).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::directory;
use crate::lab::{Atlas, Lab};

/// The names of the two certificates.
const NAMES: [&str; 2] = ["a.example", "b.example"];

/// Certificates in a directory of their own, each vouched for by itself alone.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let certificates = Self(TempDir::new().unwrap());
        certificates.renew(NAMES[0], &KeyPair::generate().unwrap());
        let rsa = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        certificates.renew(NAMES[1], &rsa);
        certificates
    }

    fn path(&self, name: &str, end: &str) -> PathBuf {
        self.0.path().join(format!("{name}.{end}"))
    }

    /// Writes another certificate of that name with that key.
    fn renew(&self, name: &str, key: &KeyPair) {
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.self_signed(key).unwrap();
        fs::write(self.path(name, "cert"), certificate.pem()).unwrap();
        fs::write(self.path(name, "key"), key.serialize_pem()).unwrap();
    }

    /// `--https 443` with both.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["--https".into(), "443".into()];
        for name in NAMES {
            for (flag, end) in [("--cert", "cert"), ("--key", "key")] {
                words.push(flag.into());
                words.push(text(&self.path(name, end)));
            }
        }
        words
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn start(lab: &Lab, directory: &Path, words: &[String]) -> Atlas {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Atlas::start(lab, directory, &words)
}

/// How curl asks that name, believing that certificate and no other.
fn ask(name: &str, certificate: &Path) -> [String; 5] {
    [
        "--resolve".into(),
        format!("{name}:443:10.77.0.2"),
        "--cacert".into(),
        text(certificate),
        format!("https://{name}/film.bin"),
    ]
}

fn curl(lab: &Lab, words: &[String], more: &[&str]) -> Vec<u8> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    lab.curl(&[more, &words].concat())
}

#[test]
fn files_are_served_over_both_versions_beside_plain_http() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let certificates = Certificates::new();
    let mut atlas = start(&lab, directory.path(), &certificates.words());
    assert_eq!(atlas.ready(), "ready http://10.77.0.2/ https://10.77.0.2/");
    for name in NAMES {
        let words = ask(name, &certificates.path(name, "cert"));
        for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
            let got = curl(&lab, &words, version);
            assert!(got == bytes, "{name} {version:?}: not the file's bytes");
            let range = [version, &["--range", "15359-77777"]].concat();
            let got = curl(&lab, &words, &range);
            assert!(got == bytes[15_359..=77_777], "{name}: not the range's");
        }
    }
    assert!(lab.curl(&["http://10.77.0.2/film.bin"]) == bytes);
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    let summary = end.json("summary ");
    assert!(summary["tls_handshake_records"].as_u64().unwrap() >= 16);
    assert_eq!(summary["tls_handshakes_in_progress"], 0);
    assert_eq!(summary["memory_free_slots"], summary["memory_all_slots"]);
}

#[test]
fn without_plain_http_its_port_is_closed() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let certificates = Certificates::new();
    let mut words = certificates.words();
    words.extend(["--http", "off"].map(String::from));
    let mut atlas = start(&lab, directory.path(), &words);
    assert_eq!(atlas.ready(), "ready https://10.77.0.2/");
    let words = ask(NAMES[0], &certificates.path(NAMES[0], "cert"));
    assert!(curl(&lab, &words, &[]) == bytes, "not the file's bytes");
    let refused = lab.try_curl(&["http://10.77.0.2/film.bin"]);
    const COULD_NOT_CONNECT: i32 = 7;
    assert_eq!(refused.status.code(), Some(COULD_NOT_CONNECT));
    atlas.signal(libc::SIGTERM);
    assert_eq!(atlas.end().code, Some(0));
}

#[test]
fn sighup_reads_certificates_again_and_bad_ones_change_nothing() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let certificates = Certificates::new();
    let mut atlas = start(&lab, directory.path(), &certificates.words());
    atlas.ready();
    let file = certificates.path(NAMES[0], "cert");
    let old = certificates.0.path().join("old");
    fs::copy(&file, &old).unwrap();
    certificates.renew(NAMES[0], &KeyPair::generate().unwrap());
    assert!(curl(&lab, &ask(NAMES[0], &old), &[]) == bytes);
    atlas.signal(libc::SIGHUP);
    atlas.stderr_line("the files are read again");
    assert!(curl(&lab, &ask(NAMES[0], &file), &[]) == bytes);
    let words = ask(NAMES[0], &old);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!(
        !lab.try_curl(&words).status.success(),
        "the old one is gone"
    );
    fs::remove_file(certificates.path(NAMES[1], "key")).unwrap();
    atlas.signal(libc::SIGHUP);
    let line = atlas.stderr_line("SIGHUP: the configuration stays as it was");
    assert!(
        line.contains("ERROR") && line.contains("b.example.key: No such file"),
        "{line}"
    );
    assert!(line.contains("; name a PEM file"), "{line}");
    assert!(curl(&lab, &ask(NAMES[0], &file), &[]) == bytes);
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert_eq!(end.json("summary ")["tls_reload_count"], 1);
}

/// A client of the server's that is not through yet: it has asked, and read one byte.
fn begun(lab: &Lab, certificate: &Path) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(NAMES[0]).unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(client, lab.connect("10.77.0.2:443"));
    let request = b"GET /film.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

#[test]
fn sighup_drops_no_connection() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let certificates = Certificates::new();
    let mut atlas = start(&lab, directory.path(), &certificates.words());
    atlas.ready();
    let mut client = begun(&lab, &certificates.path(NAMES[0], "cert"));
    certificates.renew(NAMES[0], &KeyPair::generate().unwrap());
    atlas.signal(libc::SIGHUP);
    atlas.stderr_line("the files are read again");
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).unwrap();
    assert!(reply.ends_with(&bytes), "{} bytes came", reply.len());
    drop(client);
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
}

#[test]
fn secrets_are_written_only_when_asked_for() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let certificates = Certificates::new();
    let secrets = certificates.0.path().join("secrets");
    let prepare = format!("export SSLKEYLOGFILE={}", text(&secrets));
    for is_asked_for in [false, true] {
        let mut words = certificates.words();
        if is_asked_for {
            words.push("--log-tls-secrets".into());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut atlas = Atlas::start_after(&lab, &prepare, directory.path(), &words);
        atlas.ready();
        let words = ask(NAMES[0], &certificates.path(NAMES[0], "cert"));
        for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
            assert!(curl(&lab, &words, version) == bytes);
        }
        atlas.signal(libc::SIGTERM);
        let end = atlas.end();
        assert_eq!(end.code, Some(0), "{}", end.stderr);
        assert_eq!(end.stderr.contains("TLS secrets go to"), is_asked_for);
        let written = fs::read_to_string(&secrets).unwrap_or_default();
        for label in ["SERVER_TRAFFIC_SECRET_0 ", "CLIENT_RANDOM "] {
            assert_eq!(written.contains(label), is_asked_for, "{label}");
        }
        assert_eq!(secrets.exists(), is_asked_for);
    }
}
