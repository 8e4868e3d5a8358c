//! Canaries: scripts whose expectations are wrong fail, with the right message.

use crate::{parse, run};

/// A request at 0.1 s for an object that fits the initial window.
const START: &str = "# canary\nconnect 0.1\nmss 1000\nobject 9000\n+0 peer > get\n";
const READ: &str = "+0 disk ? read 0..9000\n";
const DONE: &str = "+0.001 disk = done\n";
const SENT: &str = "+0 peer < seq 1..10001\n";

/// The line that failed and the problem.
fn failure(lines: &[&str]) -> (String, String) {
    let text = [&[START], lines].concat().concat();
    let script = parse("canary.drill", &text).unwrap();
    let failure = run(&script).1.expect_err("this script must fail");
    let shown = failure.to_string();
    let place = format!("canary.drill:{}: {}", failure.line, failure.text);
    assert!(shown.starts_with(&place), "{shown}");
    assert!(shown.contains("what happened:"), "{shown}");
    (failure.text, failure.problem)
}

#[test]
fn the_right_expectation_passes() {
    let text = [START, READ, DONE, SENT].concat();
    let (trace, result) = run(&parse("canary.drill", &text).unwrap());
    assert_eq!(result, Ok(()));
    assert!(trace.last().unwrap().contains("seq 1..10001"), "{trace:?}");
}

#[test]
fn a_wrong_expectation_says_what_came_instead() {
    for (line, parts) in [
        (
            "+0 peer < seq 1..9501",
            ["seq 1..9501 (new)", "its text ends at 10001"],
        ),
        (
            "+0 peer < seq 1..11001",
            ["seq 1..10001", "the rest is missing"],
        ),
        (
            "+0 peer < seq 1001..10001",
            ["seq 1..10001", "the sequence number is 1"],
        ),
        (
            "+0 peer < seq 1..10001 retrans",
            ["retrans", "it was not sent before"],
        ),
        (
            "+0 peer < seq 1..10001 ack 100",
            ["ack 100", "the acknowledgment is 101"],
        ),
        ("+0 peer < seq 1..10001 win 5", ["win 5", "the window is"]),
        (
            "+0 peer < seq 1..10001 -psh",
            ["seq 1..10001", "PSH is set"],
        ),
        (
            "+0 peer < seq 1..10001 packets 9",
            ["packets 10", "there are 10 packets"],
        ),
        (
            "+0 peer < seq 1..10001 of 500",
            ["packets 10", "1000 bytes of text, not 500"],
        ),
        ("+0 peer < fin seq 1..10001", ["fin", "FIN is not set"]),
        (
            "+0 peer < seq 1..10001 ecr 5",
            ["seq 1..10001", "TSecr is None"],
        ),
        (
            "+0 peer < seq 1..10001 ts 5",
            ["seq 1..10001", "the option TSval is absent"],
        ),
        (
            "+0 peer < ack 101",
            ["ack 101", "it has 1000 bytes of text"],
        ),
        (
            "+0.5 peer < seq 1..10001",
            ["at 0.601000: seq", "the time is 0.101000"],
        ),
    ] {
        let (text, problem) = failure(&[READ, DONE, line, "\n"]);
        assert_eq!(text, line);
        for part in parts {
            assert!(problem.contains(part), "{line}\n{problem}");
        }
    }
}

#[test]
fn what_does_not_come_is_missed_after_the_tolerance() {
    let (_, problem) = failure(&[READ, DONE, SENT, "+0.1~0.1 peer < ack 101\n"]);
    assert_eq!(
        problem,
        "expected: from 0.101000 to 0.301000: ack 101\nseen:     no segment until then"
    );
    let (_, problem) = failure(&[READ, DONE, SENT, "+0 disk ? read 0..8\n"]);
    assert!(
        problem.ends_with("seen:     no read until then"),
        "{problem}"
    );
}

#[test]
fn what_is_not_expected_fails_the_next_line_that_lets_time_pass_or_acts() {
    for line in ["+0.1 wait", "+0.001 disk = done", "+0 peer > ack 1"] {
        let (text, problem) = failure(&[line, "\n"]);
        assert_eq!(text, line);
        assert_eq!(
            problem,
            "expected: nothing more before this line\nseen:     at 0.100000: disk ? read 0..9000"
        );
    }
    // A timer that fires while a line waits: the tail loss probe (RFC 8985 s7.2).
    let (text, problem) = failure(&[READ, DONE, SENT, "+5 wait\n"]);
    assert_eq!(text, "+5 wait");
    assert_eq!(
        problem,
        "expected: nothing more before this line\nseen:     at 0.303000: disk ? read 8000..9000"
    );
    // What is left when an expectation has taken its part.
    let (text, problem) = failure(&[READ, DONE, "+0 peer < seq 1..9001\n", "+1 wait\n"]);
    assert_eq!(text, "+1 wait");
    assert!(problem.contains("peer < seq 9001..10001"), "{problem}");
    // The end of the script, too.
    let (_, problem) = failure(&[]);
    assert!(
        problem.contains("nothing more until the end of the script"),
        "{problem}"
    );
    let (_, problem) = failure(&[READ, DONE]);
    assert!(problem.contains("peer < seq 1..10001"), "{problem}");
}

#[test]
fn a_tolerance_is_exact_on_both_sides() {
    let late = |tolerance: &str| {
        let line = format!("+0.2{tolerance} disk ? read 8000..9000\n");
        let text = [START, READ, DONE, SENT, &line].concat();
        run(&parse("canary.drill", &text).unwrap()).1.is_ok()
    };
    // The tail loss probe: after two round trips of 0.1 s and 2 ms.
    assert!(late("02"));
    assert!(late("~0.002"));
    assert!(!late("~0.001999999"));
    assert!(!late(""));
}

#[test]
fn lines_that_cannot_be_carried_out_say_why() {
    for (lines, part) in [
        (
            &[READ, "+0 disk = done 8..16\n"][..],
            "reads under way: [0..9000]",
        ),
        (
            &[READ, DONE, SENT, "0.05 wait\n"],
            "it is 0.101000 already, after 0.050000",
        ),
        (&[READ, "+0 peer > ack 1 win 1001\n"], "no multiple of 2^3"),
        (
            &[READ, "+0 peer > ack 1 win 800000\n"],
            "too large for a scale of 3",
        ),
    ] {
        let (_, problem) = failure(lines);
        assert!(problem.contains(part), "{problem}");
    }
    let script = parse("x", "# short\nhead 100\n+0 wait\n").unwrap();
    let failure = run(&script).1.unwrap_err();
    assert!(failure.problem.contains("100 are too few"), "{failure}");
}

#[test]
fn an_answer_with_wrong_bytes_is_seen() {
    let setup = parse("x", "# head\n+0 wait\n").unwrap().setup;
    let mut content = crate::content::Content::new(&setup).unwrap();
    assert_eq!(content.check(0, b"HTTP"), Ok(()));
    assert_eq!(content.check(1, b"TTP"), Ok(()));
    let other = content.check(1, b"XTP").unwrap_err();
    assert!(other.starts_with("byte 1 of the head is 0x58"), "{other}");
    let right: Vec<u8> = (0..9).map(crate::content::object_byte).collect();
    assert_eq!(content.check(1000, &right), Ok(()));
    let shifted = content.check(1001, &right).unwrap_err();
    assert!(shifted.starts_with("byte "), "{shifted}");
}
