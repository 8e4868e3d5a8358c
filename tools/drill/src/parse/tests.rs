use clock::Duration;

use super::{parse, seconds};
use crate::script::{Answer, Event, Wanted};

/// The problem of a script that consists of a comment and these lines.
fn problem(lines: &str) -> String {
    match parse("x.drill", &format!("# shows errors\n{lines}\n")) {
        Ok(script) => panic!("this is a script: {script:?}"),
        Err(error) => error.problem,
    }
}

fn check(slips: &[(&str, &str)]) {
    for (lines, message) in slips {
        assert_eq!(problem(lines), *message, "{lines}");
    }
}

#[test]
fn each_slip_in_a_setting_or_a_time_has_its_message() {
    check(&[
        ("mss", "nothing stands behind \"mss\""),
        (
            "mss big",
            "\"mss\" takes a number in its range, not \"big\"",
        ),
        (
            "mss 65536",
            "\"mss\" takes a number in its range, not \"65536\"",
        ),
        ("mss 1000 1001", "\"1001\" is too much"),
        ("maximum 1000", "\"maximum\" is no setting"),
        ("sack yes", "\"sack\" is on or off, not \"yes\""),
        ("pacing fast", "\"pacing\" is on or off, not \"fast\""),
        (
            "disk slow",
            "\"disk\" is immediate or scripted, not \"slow\"",
        ),
        (
            "requests once",
            "\"requests\" is close or keep, not \"once\"",
        ),
        ("block 1000", "\"block\" is a power of two, not 1000"),
        (
            "congestion_control vegas",
            "no congestion control is called \"vegas\"",
        ),
        (
            "+0 wait\nmss 1000",
            "\"mss\" is no time; settings come before the first line",
        ),
        ("+0", "nothing stands behind \"+0\""),
        ("+0,5 wait", "\"time\" takes seconds like 0.25, not \"0,5\""),
        ("+0. wait", "\"time\" takes seconds like 0.25, not \"0.\""),
        (
            "+0.0000000001 wait",
            "\"time\" takes seconds like 0.25, not \"0.0000000001\"",
        ),
        ("+0~x wait", "\"~\" takes seconds like 0.25, not \"x\""),
        ("+0~0.1 wait", "only what is expected has a tolerance"),
        ("+0~0.1 peer > get", "only what is expected has a tolerance"),
    ]);
}

#[test]
fn each_slip_in_an_event_has_its_message() {
    check(&[
        ("+0 cat", "\"cat\" is none of peer, disk, router and wait"),
        ("+0 wait now", "\"now\" is too much"),
        (
            "+0 peer = done",
            "peer sends by > and expects by <, not \"=\"",
        ),
        ("+0 peer >", "the peer sends nothing"),
        ("+0 peer <", "the peer expects nothing"),
        (
            "+0 peer > retrans",
            "\"retrans\" is no part of a segment that is sent",
        ),
        (
            "+0 peer < get",
            "\"get\" is no part of a segment that is expected",
        ),
        (
            "+0 peer > seq 5..x",
            "\"seq\" takes a number in its range, not \"x\"",
        ),
        ("+0 peer > seq 5..5", "the range 5..5 is empty"),
        (
            "+0 peer > ack 1 sack 5",
            "\"sack\" takes a range like 1..1001, not \"5\"",
        ),
        (
            "+0 peer > sack 1..2,3..4,5..6,7..8,9..10",
            "a header has room for four SACK blocks",
        ),
        (
            "+0 peer > get seq 1..5",
            "\"get\" has a length of its own; \"seq\" names its first byte only",
        ),
        (
            "+0 peer < ack 1 packets 2",
            "\"packets\" and \"of\" describe text, and there is no range of it",
        ),
        (
            "+0 peer < ack 1 retrans",
            "\"retrans\" describes text, a FIN or a SYN, and there is none",
        ),
        (
            "+0 disk < read 0..8",
            "disk expects by ? and answers by =, not \"<\"",
        ),
        ("+0 disk ? write 0..8", "disk expects a read, not \"write\""),
        (
            "+0 disk ? read 8",
            "\"read\" takes a range like 1..1001, not \"8\"",
        ),
        (
            "+0 disk = ready",
            "\"ready\" is none of done, failed, changed, short, full and free",
        ),
        ("+0 disk = short", "nothing stands behind \"short\""),
        ("+0 router > mtu 5", "\"too_big\" is missing before \"mtu\""),
        (
            "+0 router > too_big mtu 5 6",
            "\"seq\" is missing before \"6\"",
        ),
    ]);
}

#[test]
fn an_error_names_the_file_the_line_and_its_text() {
    let error = parse("a/b.drill", "# one\n\n+0 wait # a comment\n  +1 dog\n").unwrap_err();
    let text = "a/b.drill:4: \"dog\" is none of peer, disk, router and wait\n  | +1 dog";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_script_says_first_what_it_shows() {
    let error = parse("x", "+0 wait\n# too late\n").unwrap_err();
    assert_eq!(error.line, 1);
    assert!(error.problem.contains("begins with a comment"), "{error}");
    assert!(parse("x", "").is_err());
}

#[test]
fn seconds_are_exact() {
    assert_eq!(seconds("t", "0.000000001"), Ok(Duration::from_nanos(1)));
    assert_eq!(seconds("t", "12.5"), Ok(Duration::from_millis(12_500)));
    assert_eq!(seconds("t", "3"), Ok(Duration::from_secs(3)));
    assert!(seconds("t", "-1").is_err());
}

#[test]
fn every_part_of_a_line_is_taken() {
    let text = "# all\n\
        mss none\nscale none\nsack off\ntimestamps on\npacing off\ncongestion_control reno\n\
        object 5\nconnect 0.5\n\
        +0.2~0.01 peer < fin seq 5..9 ack 3 win 7 psh retrans packets 2 of 4 mss 1 -scale \
        -sackok ts 4 ecr -2\n\
        1.5 peer > seq 1..5 ack -3 win 9 sack 1..2,5..6 ts 3 ecr 2 port 81 ece\n\
        +0 disk = short 5 0..8\n\
        +0 router > too_big mtu 1000 seq 1\n";
    let script = parse("x", text).unwrap();
    assert_eq!((script.setup.mss, script.setup.scale), (None, None));
    assert!(!script.setup.sack && script.setup.timestamps && !script.setup.is_paced);
    assert_eq!(script.setup.congestion.name(), "reno");
    let [expected, sent, answer, report] = &script.lines[..] else {
        panic!("four lines");
    };
    assert!(expected.when.is_relative && !sent.when.is_relative);
    assert_eq!(expected.when.tolerance, Duration::from_millis(10));
    let Event::PeerExpects(expected) = &expected.event else {
        panic!("{expected:?}");
    };
    assert!(expected.bits.fin && expected.is_retransmission);
    assert_eq!(expected.sequence, Some(5..9));
    assert_eq!((expected.ack, expected.window), (Some(3), Some(7)));
    assert_eq!((expected.push, expected.packets), (Some(true), Some(2)));
    assert_eq!(expected.packet_bytes, Some(4));
    assert_eq!(
        (expected.mss, expected.scale, expected.sack_permitted),
        (Wanted::Is(1), Wanted::Absent, Wanted::Absent)
    );
    assert_eq!((expected.stamp, expected.echo), (Wanted::Is(4), Some(-2)));
    let Event::PeerSends(sent) = &sent.event else {
        panic!("{sent:?}");
    };
    assert_eq!((sent.sequence.clone(), sent.ack), (Some(1..5), Some(-3)));
    assert_eq!(sent.sack, [1..2, 5..6]);
    assert_eq!(
        (sent.stamp, sent.echo, sent.port),
        (Some(3), Some(2), Some(81))
    );
    assert!(sent.bits.ece);
    assert_eq!(
        answer.event,
        Event::DiskAnswers(Answer::Short(5), Some(0..8))
    );
    assert!(matches!(report.event, Event::RouterReports { .. }));
}
