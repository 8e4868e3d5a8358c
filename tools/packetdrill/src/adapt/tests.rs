//! What a script becomes.

use super::{Adapted, Reason};

fn adapt(text: &str) -> Result<Adapted, Reason> {
    super::adapt("folder/name.pkt", text)
}

const START: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 accept(3, ..., ...) = 4\n";

fn text_of(lines: &str) -> String {
    let adapted = adapt(&format!("{START}{lines}")).unwrap();
    adapted.text.strip_prefix(START).unwrap().to_owned()
}

#[test]
fn commands_are_cut_out_at_the_beginning_and_at_the_end() {
    let script = format!("--mss=1000\n\n`sysctl -q a=1\n tc qdisc`\n{START}`restore`\n");
    let adapted = adapt(&script).unwrap();
    assert!(!adapted.text.contains('`'), "{}", adapted.text);
    assert!(!adapted.text.contains("sysctl"), "{}", adapted.text);
    assert!(adapted.text.starts_with("--mss=1000\n"), "{}", adapted.text);
}

#[test]
fn a_command_at_a_time_of_the_script_does_not_apply() {
    let script = format!("{START}+0 `tc qdisc replace`\n");
    assert_eq!(adapt(&script), Err(Reason::HostQueue));
}

#[test]
fn only_expected_packets_change() {
    let same = "+.1 < S 0:0(0) win 1 <mss 1000,nop,wscale 8>\n+0 < P. 1:2(1) ack 1 win 5\n";
    assert_eq!(text_of(same), same);
    assert_eq!(
        text_of("+0 > S. 0:0(0) ack 1 <mss 1460,nop,wscale 8>\n"),
        "+0 > S. 0:0(0) ack 1 <mss 1460,nop,wscale 0>\n"
    );
    assert_eq!(
        text_of("+0~+.1 > FP. 1:2(1) ack 1\n"),
        "+0~+.1 > F. 1:2(1) ack 1\n"
    );
    assert_eq!(
        text_of("+0 > [ect0] P. 1:2(1) ack 1\n"),
        "+0 > [ect0] . 1:2(1) ack 1\n"
    );
}

#[test]
fn assertions_about_the_window_become_calls_and_others_are_counted() {
    let script = format!(
        "{START}+.01 %{{\nassert tcpi_snd_cwnd == 7, tcpi_snd_cwnd # why\nassert tcpi_lost == 1\n\
         assert tcpi_snd_cwnd == 8\n}}%\n"
    );
    let adapted = adapt(&script).unwrap();
    let expected = "+.01 getsockopt(4, SOL_TCP, 16724, [7], [4]) = 0\n\
                    +0 getsockopt(4, SOL_TCP, 16724, [8], [4]) = 0\n";
    assert_eq!(
        adapted,
        Adapted {
            text: format!("{START}{expected}"),
            assertions: 2,
            assertions_left_out: 1,
        }
    );
}

#[test]
fn code_without_an_assertion_that_is_known_keeps_its_time() {
    assert_eq!(
        text_of("+.3 %{ assert tcpi_lost == 1, tcpi_lost }%\n"),
        "+.3 setsockopt(4, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0\n"
    );
}

#[test]
fn a_reason_is_found_in_events_and_not_in_comments() {
    let comment = format!("// connect() and MSG_MORE\n{START}");
    assert!(adapt(&comment).is_ok());
    for (line, reason) in [
        ("+0 connect(3, ..., ...) = 0", Reason::ActiveOpen),
        ("+0 send(4, ..., 1, MSG_MORE) = 1", Reason::Cork),
        (
            "+0 setsockopt(4, SOL_TCP, TCP_FASTOPEN, [1], 4) = 0",
            Reason::FastOpen,
        ),
    ] {
        assert_eq!(adapt(&format!("{START}{line}\n")), Err(reason), "{line}");
    }
}

#[test]
fn whatever_is_in_the_folder_of_fast_open_does_not_apply() {
    let name = "fastopen/server/name.pkt";
    assert_eq!(super::adapt(name, START), Err(Reason::FastOpen));
}
