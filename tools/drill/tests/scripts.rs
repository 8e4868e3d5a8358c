//! Every script is a test of its name. A script that is not listed here is a failure, too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

fn pass(name: &str) {
    let path = folder().join(format!("{name}.drill"));
    if let Err(error) = drill::run_file(&path) {
        panic!("{error}");
    }
}

/// One test for each name.
macro_rules! scripts {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                pass(stringify!($name));
            }
        )*

        const LISTED: &[&str] = &[$(stringify!($name)),*];
    };
}

scripts! {
    credit_ack_read_segment
    handshake_three_way
}

#[test]
fn every_script_is_listed() {
    let files: BTreeSet<String> = fs::read_dir(folder())
        .expect("the folder of the scripts")
        .map(|entry| entry.expect("an entry of the folder").path())
        .map(|path| {
            let name = path.file_stem().expect("a file's name");
            name.to_string_lossy().into_owned()
        })
        .collect();
    let listed: BTreeSet<String> = LISTED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(files, listed);
}
