//! The program as it is built. Because of this file cargo builds it with the tests, and `make test` runs it.
#![allow(clippy::unwrap_used, reason = "what fails in a test shall fail loudly")]

use std::process::Command;

/// What the program says of itself with these words.
fn help(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atlas-xtask"));
    let output = command.args(words).arg("--help").output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_says_how_it_is_used() {
    let all = help(&[]);
    let (_, commands) = all.split_once("Commands:\n").unwrap();
    // A line that is longer than the terminal goes on further to the right.
    let names = commands.lines().take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let mut count = 0;
    for name in names.filter(|name| !["", "help"].contains(name)) {
        assert!(
            help(&[name]).contains(&format!("Usage: atlas-xtask {name}")),
            "{name}"
        );
        count += 1;
    }
    assert!(count > 10, "{all}");
}
