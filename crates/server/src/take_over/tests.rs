use std::io::Write as _;
use std::os::fd::AsFd as _;

use super::{
    Control, DESCRIPTORS_MAX, Hello, MESSAGE_BYTES_MAX, Message, ReceiveError, VERSION, pair,
};

fn controls() -> (Control, Control) {
    let (ours, theirs) = pair().unwrap();
    (Control::new(ours), Control::new(theirs))
}

fn hello() -> Hello {
    Hello {
        version: VERSION,
        workers: 2,
        link: "tap:atlas0".into(),
        station: vec!["address 10.0.0.1/24".into(); 64],
        generation: 3,
        queues: 64,
        locks: vec!["atlas/tap:atlas0/fd00::1".into(); 64],
        metrics: Some("127.0.0.1:9100".parse().unwrap()),
    }
}

#[test]
fn messages_arrive_whole_and_in_order_with_their_descriptors() {
    let (ours, theirs) = controls();
    assert!(matches!(theirs.receive(), Err(ReceiveError::Nothing)));
    let file = std::fs::File::open("/dev/null").unwrap();
    for count in [0, 1, DESCRIPTORS_MAX] {
        let descriptors = vec![file.as_fd(); count];
        let message = Message::Hello(Box::new(hello()));
        ours.send(&message, &descriptors).unwrap();
        ours.send(&Message::Given, &[]).unwrap();
        let (message, received) = theirs.receive().unwrap();
        let Message::Hello(received_hello) = message else {
            panic!("{message:?}");
        };
        assert_eq!((received.len(), received_hello.station.len()), (count, 64));
        assert!(matches!(theirs.receive(), Ok((Message::Given, _))));
    }
    let too_many = vec![file.as_fd(); DESCRIPTORS_MAX + 1];
    assert!(ours.send(&Message::Ready, &too_many).is_err());
    drop(ours);
    assert!(matches!(theirs.receive(), Err(ReceiveError::Ended)));
}

#[test]
fn a_message_beyond_the_limit_is_not_sent() {
    let (ours, theirs) = controls();
    let quotes = "\"Failed\"".len() + 5;
    for (bytes, is_sent) in [
        (MESSAGE_BYTES_MAX - quotes, true),
        (MESSAGE_BYTES_MAX, false),
    ] {
        let message = Message::Failed("x".repeat(bytes));
        assert_eq!(ours.send(&message, &[]).is_ok(), is_sent, "{bytes}");
        assert_eq!(theirs.receive().is_ok(), is_sent);
    }
}

#[test]
fn what_is_no_message_is_told_apart_from_an_end() {
    let (ours, theirs) = pair().unwrap();
    let theirs = Control::new(theirs);
    let mut ours = std::fs::File::from(ours);
    for bytes in [&b"{"[..], b"\"Unheard\"", b"{\"Hello\":{}}", &[0xff; 100]] {
        ours.write_all(bytes).unwrap();
        assert!(matches!(theirs.receive(), Err(ReceiveError::Malformed(_))));
    }
    // What another version has added is not looked at.
    let text = serde_json::to_string(&Message::Hello(Box::new(hello()))).unwrap();
    let text = text.replacen("{\"version\"", "{\"more\":[1],\"version\"", 1);
    assert!(text.contains("more"));
    ours.write_all(text.as_bytes()).unwrap();
    assert!(matches!(theirs.receive(), Ok((Message::Hello(_), _))));
}
