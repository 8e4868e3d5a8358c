//! What TLS seals, sealed without TLS's protocol, for benches only (`atlas-emulate`).

use crate::lab::{Atlas, Lab};
use crate::{FILE_BYTES, directory};

#[test]
fn emulated_sealing_is_logged_and_keeps_lengths() {
    let Some(lab) = Lab::new() else { return };
    let (directory, bytes) = directory();
    let mut atlas = Atlas::emulate(&lab, directory.path());
    assert_eq!(atlas.ready(), "ready http://10.77.0.2/");
    let got = lab.curl(&["http://10.77.0.2/film.bin"]);
    assert_eq!(got.len(), FILE_BYTES);
    let same = got.iter().zip(&bytes).filter(|(a, b)| a == b).count();
    assert!(same < FILE_BYTES / 100, "{same} bytes are not sealed");
    atlas.signal(libc::SIGTERM);
    let end = atlas.end();
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(end.stderr.contains("WARN emulated TLS"), "{}", end.stderr);
}
