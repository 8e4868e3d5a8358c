//! Certificates read again while serving.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Weak};

use worker::tls::Loaded;

use super::certificates::{Files, good_certificate, good_key, source_of};
use crate::run::wait;
use crate::tls::Loader;

/// A loader for the files `cert.pem` and `key.pem`, and what was loaded at start.
fn start(files: &Files) -> (Loader, Loaded) {
    let source = source_of(files.pair(good_certificate(), good_key()));
    let loaded = source.load().unwrap();
    (Loader::start(source, &loaded).unwrap(), loaded)
}

/// Sleeps until something was made, as the worker does, and takes it.
fn await_loaded(loader: &Loader) -> Loaded {
    loop {
        wait::wait(&[wait::Source::readable(loader.wake_fd())], None).unwrap();
        loader.drain();
        if let Some(loaded) = loader.poll() {
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
    assert!(loader.poll().is_none(), "the worker goes on");
    for _ in 0..3 {
        loader.request();
    }
    pipe.write_all(good_key().as_bytes()).unwrap();
    drop(pipe);
    let second = await_loaded(&loader);
    assert!(!Arc::ptr_eq(&first.config, &second.config));
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
fn unused_configurations_are_dropped_by_the_thread() {
    let files = Files::new();
    let (loader, first) = start(&files);
    let old: Weak<_> = Arc::downgrade(&first.config);
    let handshake = Arc::clone(&first.config);
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
    assert_eq!(old.strong_count(), 0);
}
