//! The command line as it is typed: help of each instrument, errors in one line, exit codes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

/// The instruments.
const INSTRUMENTS: [&str; 2] = ["wire", "stages"];

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_atlas-bench"))
        .args(words)
        .output()
        .expect("the binary was built for this test")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_names_each_instrument_and_fits_a_hundred_columns() {
    let overview = stdout(&bench(&["--help"]));
    for phrase in ["Examples:", "Output:", "Exit codes:", "bench/README.md"] {
        assert!(overview.contains(phrase), "no {phrase:?} in:\n{overview}");
    }
    let mut pages = vec![overview.clone()];
    for instrument in INSTRUMENTS {
        assert!(
            overview.contains(&format!("atlas-bench {instrument} ")),
            "no example of {instrument} in:\n{overview}"
        );
        let help = stdout(&bench(&[instrument, "--help"]));
        let usage = format!("Usage: atlas-bench {instrument} ");
        assert!(help.contains(&usage), "no {usage:?} in:\n{help}");
        assert!(help.contains("Example"), "no example in:\n{help}");
        pages.push(help);
    }
    for line in pages.iter().flat_map(|page| page.lines()) {
        assert!(line.chars().count() <= 100, "{line}");
        assert!(!line.contains("atlas load"), "an old name: {line}");
    }
}

#[test]
fn what_cannot_be_measured_is_one_line_and_exits_with_one() {
    for words in [
        &[
            "wire",
            "--server",
            "10.99.0.2:80",
            "--objects",
            "/no/such/file",
        ][..],
        &["stages", "read", "/no/such/directory"],
    ] {
        let output = bench(words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert_eq!(stdout(&output), "", "{words:?}");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 1, "{words:?}: {text}");
        assert!(lines[0].starts_with("atlas-bench: "), "{words:?}: {text}");
    }
}

#[test]
fn usage_errors_exit_with_two() {
    for words in [&[][..], &["wire"], &["serve", "/srv"], &["stages", "dance"]] {
        assert_eq!(bench(words).status.code(), Some(2), "{words:?}");
    }
    assert_eq!(bench(&["--version"]).status.code(), Some(0));
}
