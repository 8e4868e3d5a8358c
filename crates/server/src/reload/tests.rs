//! Files read again while serving.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Weak};

use super::files::OperatorFiles;
use super::{Loaded, Loader, Source};
use crate::run::wait;
use crate::settings::{CommonArgs, Settings};
use crate::tls::tests::certificates::{Files, good_certificate, good_key};

/// A source whose files are `cert.pem`, `key.pem` and `atlas.toml`, with https by a flag.
fn source(files: &Files, config: &str) -> Source {
    source_with(files, config, Some("443"))
}

fn source_with(files: &Files, config: &str, https: Option<&str>) -> Source {
    let pair = files.pair(good_certificate(), good_key());
    let args = CommonArgs {
        config: Some(files.write("atlas.toml", config)),
        certificates: vec![pair.certificate.path],
        keys: vec![pair.key.path],
        https: https.map(Into::into),
        ..CommonArgs::default()
    };
    let settings = Settings::resolve(args).unwrap();
    Source::new(&settings, OperatorFiles::direct()).unwrap()
}

/// A loader for them, and what was loaded at start.
fn start(files: &Files) -> (Loader, Loaded) {
    let source = source(files, "");
    let loaded = source.load_first().unwrap();
    (Loader::start(source, &loaded).unwrap(), loaded)
}

/// Sleeps until something was made, as the supervisor does, and takes it.
fn await_loaded(loader: &Loader) -> Loaded {
    loop {
        wait::wait(&[wait::Source::readable(loader.wake_fd())], None).unwrap();
        loader.drain();
        if let Some(Ok(loaded)) = loader.poll() {
            return loaded;
        }
    }
}

/// Makes a pipe of the file: who opens it waits for the other end.
fn make_pipe(path: &Path) {
    fs::remove_file(path).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_file_that_hangs_blocks_no_caller_and_requests_are_merged() {
    let files = Files::new();
    let (loader, first) = start(&files);
    let key = files.path("key.pem");
    make_pipe(&key);
    loader.request();
    // This waits until the thread reads.
    let mut pipe = OpenOptions::new().write(true).open(&key).unwrap();
    assert!(loader.poll().is_none(), "the supervisor goes on");
    for _ in 0..3 {
        loader.request();
    }
    pipe.write_all(good_key().as_bytes()).unwrap();
    drop(pipe);
    let second = await_loaded(&loader);
    let config = |loaded: &Loaded| Arc::clone(&loaded.tls.as_ref().unwrap().config);
    assert!(!Arc::ptr_eq(&config(&first), &config(&second)));
    // Once more for all that asked meanwhile, and the file is read as it is now.
    let mut pipe = OpenOptions::new().write(true).open(&key).unwrap();
    pipe.write_all(b"no key").unwrap();
    drop(pipe);
    // That is refused; nothing comes of it but a line in the log, and the next is read.
    fs::remove_file(&key).unwrap();
    fs::write(&key, good_key()).unwrap();
    loader.request();
    await_loaded(&loader);
    assert!(loader.poll().is_none());
}

#[test]
fn what_is_unused_is_dropped_by_the_thread() {
    let files = Files::new();
    let (loader, first) = start(&files);
    let old: Weak<_> = Arc::downgrade(&first.tls.as_ref().unwrap().config);
    let old_sites: Weak<_> = Arc::downgrade(&first.sites);
    let handshake = Arc::clone(&first.tls.as_ref().unwrap().config);
    drop(first);
    let load = || {
        loader.request();
        await_loaded(&loader);
        // The thread looks for what is no longer used behind each load, so behind the next
        // result that is done.
        loader.request();
        await_loaded(&loader);
    };
    load();
    assert!(old.strong_count() > 1, "a handshake goes on with it");
    drop(handshake);
    assert!(
        old.strong_count() > 0,
        "whoever uses it last does not drop it"
    );
    load();
    assert_eq!((old.strong_count(), old_sites.strong_count()), (0, 0));
}

#[test]
fn all_of_it_is_read_again_or_nothing() {
    let files = Files::new();
    let source = source(&files, "slots = 512\n");
    assert_eq!(source.load().unwrap().site_count, 0);
    files.write(
        "atlas.toml",
        "slots = 1024\ncors = true\n[[site]]\nnames = [\"a.example\"]\n",
    );
    let loaded = source.load().unwrap();
    assert_eq!((loaded.site_count, loaded.waiting), (1, vec!["slots"]));
    assert!(loaded.tls.is_some());
    for (text, message) in [
        (
            "slots = 1024\nsluts = 1\n",
            "atlas.toml:2:1: sluts: unknown key; did you mean slots?",
        ),
        (
            "[[site]]\n[[site]]\n",
            "site 2: a second site without names",
        ),
        (
            "[[site]]\n[[site.rule]]\npaths = [\"/**\"]\nlink = { keys = \"/none\" }\n",
            "No such file",
        ),
    ] {
        files.write("atlas.toml", text);
        let refused = source.load().unwrap_err().to_string();
        assert!(refused.contains(message), "{refused}");
    }
    files.write("atlas.toml", "");
    files.write("key.pem", "no key");
    assert!(source.load().unwrap_err().to_string().contains("key.pem"));
    let first = source.load_first().unwrap_err().to_string();
    assert!(first.contains("key.pem"), "{first}");
}

#[test]
fn a_redirect_leads_to_the_port_that_is_served_until_the_restart() {
    let files = Files::new();
    let config = |port| format!("https = {port}\n[[site]]\nredirect_to_https = true\n");
    let source = source_with(&files, &config(443), None);
    files.write("atlas.toml", config(8443));
    let loaded = source.load().unwrap();
    assert_eq!(loaded.waiting, ["https"]);
    let head = b"GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let http::Parsed::Complete { request, .. } = http::parse_request(head) else {
        panic!("a whole head");
    };
    let client = sites::Client {
        source: std::net::Ipv4Addr::LOCALHOST.into(),
        is_secure: false,
        unix_seconds: 0,
    };
    let to = "https://a.example/x".to_owned();
    let verdict = loaded.sites.decide(&request, &client);
    let moved = sites::Verdict::Redirect(http::Status::MovedPermanently, to);
    assert_eq!(verdict, moved);
}

#[test]
fn what_is_read_at_sighup_is_named_to_the_reader_at_start() {
    let files = Files::new();
    let keys = files.write("keys", "00ff\n");
    let config =
        format!("[[site]]\n[[site.rule]]\npaths = [\"/**\"]\nlink = {{ keys = {keys:?} }}\n");
    let source = source(&files, &config);
    let mut paths = ["atlas.toml", "cert.pem", "key.pem", "keys"].map(|name| files.path(name));
    paths.sort_unstable();
    assert_eq!(Source::paths(&source.settings), paths);
}

#[test]
fn a_directory_has_the_number_that_it_was_opened_by_after_a_reload() {
    let files = Files::new();
    let config = |directories: &[&str]| {
        let site =
            |name: &&str| format!("[[site]]\nnames = [\"{name}\"]\ndirectory = \"/{name}\"\n");
        directories.iter().map(site).collect::<String>()
    };
    let source = source(&files, &config(&["a", "b"]));
    for names in [&["a", "b"][..], &["b"]] {
        files.write("atlas.toml", config(names));
        let labels = source.load().unwrap().configuration.labels();
        assert_eq!(labels.directories, ["/a", "/b"]);
    }
}

#[test]
fn a_site_is_counted_by_the_same_number_after_a_reload() {
    let files = Files::new();
    let config = |begin: &str, names: &[&str]| {
        let site = |name: &&str| format!("[[site]]\nnames = [\"{name}\", \"www.{name}\"]\n");
        format!(
            "{begin}\n{}[[site]]\n",
            names.iter().map(site).collect::<String>()
        )
    };
    let number = |loaded: &Loaded, name: &str| {
        let head = format!("GET /x HTTP/1.1\r\nHost: {name}\r\n\r\n");
        let http::Parsed::Complete { request, .. } = http::parse_request(head.as_bytes()) else {
            panic!("a whole head");
        };
        loaded.sites.number(&request)
    };
    let numbers = |loaded: &Loaded| {
        let names = ["www.a.example", "b.example", "c.example", "d.example"];
        names.map(|name| number(loaded, name))
    };
    let on = "metrics_by_site = true";
    let source = source(&files, &config(on, &["a.example", "b.example"]));
    assert_eq!(numbers(&source.load_first().unwrap()), [1, 2, 0, 0]);
    files.write("atlas.toml", config(on, &["c.example", "b.example"]));
    assert_eq!(numbers(&source.load().unwrap()), [0, 2, 3, 0]);
    // Whether sites are counted waits for a restart.
    files.write("atlas.toml", config("", &["a.example"]));
    let loaded = source.load().unwrap();
    assert_eq!(loaded.waiting, ["metrics_by_site"]);
    assert_eq!(numbers(&loaded), [1, 0, 0, 0]);
    let labels = loaded.configuration.site_labels().clone().into_labels();
    assert_eq!(labels, ["(other)", "a.example", "b.example", "c.example"]);
}
