use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::launcher::{self, Launcher};
use super::successor::{Step, Succession};
use super::{
    Control, DESCRIPTORS_MAX, Hello, MESSAGE_BYTES_MAX, Message, PAUSE_TIME_MAX, ReceiveError,
    SWITCH_TIME_MAX, VERSION, XdpQueue, pair,
};

const XDP_QUEUE: XdpQueue = XdpQueue {
    receive_cells: 32_768,
    transmit_cells: 32_768,
    slots_bytes: u64::MAX,
    has_pieces: false,
    has_metadata: false,
    finishes_checksums: false,
    is_in_driver: false,
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
        queues: 130,
        xdp: vec![XDP_QUEUE; 64],
        shared_ports: vec![65_535; 8],
        locks: vec!["atlas/tap:atlas0/fd00::1".into(); 64],
        metrics: Some("127.0.0.1:9100".parse().unwrap()),
        knows_return: true,
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
    await_end(theirs.as_fd());
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

/// What a successor has said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reached {
    Nothing,
    Ready,
    Taken,
    Relaying,
}

/// Until nobody has the other end any more: a process that another test starts has a copy until it is another program.
fn await_end(socket: BorrowedFd<'_>) {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    rustix::event::poll(&mut polled, None).unwrap();
    assert!(polled[0].revents().contains(PollFlags::HUP));
}

const START_TIME: Duration = Duration::from_secs(7);

/// A server's view of a successor that a test plays, and the launcher's end.
struct PlayedSuccessor {
    now: Instant,
    succession: Succession,
    launcher: OwnedFd,
    successor: Option<Control>,
}

impl PlayedSuccessor {
    fn begin(hello: Hello) -> Self {
        let (ours, launcher) = pair().unwrap();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let ours = Launcher::of_socket(ours);
        let mut succession = Succession::new(ours, hello, vec![file], START_TIME);
        let now = Instant::now();
        succession.begin(now).unwrap();
        assert!(succession.begin(now).is_err(), "two at once");
        let started = launcher::receive(&launcher).unwrap();
        let Some((b'S', Some(socket))) = started else {
            panic!("{started:?}");
        };
        let successor = Control::new(socket);
        let (message, descriptors) = successor.receive().unwrap();
        assert!(matches!(message, Message::Hello(_)) && descriptors.len() == 1);
        Self {
            now,
            succession,
            launcher,
            successor: Some(successor),
        }
    }

    fn step(&mut self) -> Step {
        self.succession.step(self.now)
    }

    fn say(&self, message: &Message, sockets: usize) {
        let file = std::fs::File::open("/dev/null").unwrap();
        let sockets = vec![file.as_fd(); sockets];
        let successor = self.successor.as_ref().unwrap();
        successor.send(message, &sockets).unwrap();
    }

    /// Goes on to where it has said so much.
    fn reach(&mut self, reached: Reached) {
        if reached == Reached::Nothing {
            return;
        }
        self.say(&Message::Ready, hello().workers + 1);
        let step = self.step();
        assert!(matches!(step, Step::Give(_)), "{step:?}");
        self.succession.give(self.now);
        let given = self.successor.as_ref().unwrap().receive();
        assert!(matches!(given, Ok((Message::Given, _))));
        if reached == Reached::Ready {
            return;
        }
        self.tell([b'P', 0, 0, 0, 9]);
        self.say(&Message::Taken, 0);
        let step = self.step();
        assert!(matches!(step, Step::Taken(Some(9))), "{step:?}");
        if reached == Reached::Relaying {
            self.say(&Message::Relaying, 0);
            assert!(matches!(self.step(), Step::Wait));
        }
    }

    /// It ends.
    fn end_successor(&mut self) {
        self.successor = None;
        await_end(self.succession.wake_fd().unwrap());
    }

    /// What the launcher says.
    fn tell(&self, news: [u8; 5]) {
        rustix::io::write(&self.launcher, &news).unwrap();
    }

    /// It failed, with this reason: the launcher was told to kill it, or found it dead.
    fn assert_failed(&mut self, reason: &str, is_killed: bool) {
        // Killed by signal 9.
        self.tell([b'X', 0, 0, 0, 9]);
        let step = self.step();
        let Step::Failed(text) = step else {
            panic!("{step:?}");
        };
        assert!(
            text.contains(reason) && text.contains("signal: 9"),
            "{text}"
        );
        if is_killed {
            let told = launcher::receive(&self.launcher).unwrap();
            assert!(matches!(told, Some((b'K', None))), "{told:?}");
        }
        assert!(!self.succession.is_under_way() && self.succession.wake_fd().is_none());
        self.succession.begin(self.now).unwrap();
    }
}

#[test]
fn a_successor_that_dies_is_missed_at_each_step() {
    for reached in [
        Reached::Nothing,
        Reached::Ready,
        Reached::Taken,
        Reached::Relaying,
    ] {
        let mut played = PlayedSuccessor::begin(hello());
        played.reach(reached);
        assert!(matches!(played.step(), Step::Wait), "{reached:?}");
        played.end_successor();
        match reached {
            Reached::Nothing | Reached::Ready => played.assert_failed("it ended", false),
            Reached::Taken => assert!(matches!(played.step(), Step::TakeBack)),
            Reached::Relaying => assert!(matches!(played.step(), Step::Abandoned)),
        }
    }
}

#[test]
fn a_successor_that_says_why_before_it_ends_is_quoted_at_each_step() {
    for reached in [Reached::Nothing, Reached::Ready] {
        let mut played = PlayedSuccessor::begin(hello());
        played.reach(reached);
        played.say(&Message::Failed("no room".into()), 0);
        played.end_successor();
        played.assert_failed("no room", false);
    }
}

#[test]
fn a_successor_that_hangs_is_killed_once_its_time_for_the_step_is_over() {
    let alone = Hello {
        xdp: Vec::new(),
        ..hello()
    };
    for (hello, reached, limit) in [
        (alone.clone(), Reached::Nothing, START_TIME),
        (alone.clone(), Reached::Ready, SWITCH_TIME_MAX),
        (hello(), Reached::Nothing, START_TIME),
        // Nobody receives meanwhile.
        (hello(), Reached::Ready, PAUSE_TIME_MAX),
    ] {
        let mut played = PlayedSuccessor::begin(hello);
        played.reach(reached);
        let end = played.now + limit;
        assert_eq!(played.succession.deadline(), Some(end));
        played.now = end - Duration::from_nanos(1);
        assert!(matches!(played.step(), Step::Wait));
        played.now = end;
        let reason = format!("after {} s", limit.as_secs());
        played.assert_failed(&reason, true);
    }
    // After that there is none.
    let mut played = PlayedSuccessor::begin(alone);
    played.reach(Reached::Taken);
    played.now += Duration::from_secs(1_000_000);
    assert_eq!(played.succession.deadline(), None);
    assert!(matches!(played.step(), Step::Wait) && played.succession.is_done());
}

#[test]
fn the_time_for_the_switch_begins_when_the_link_is_given() {
    let mut played = PlayedSuccessor::begin(hello());
    played.say(&Message::Ready, hello().workers + 1);
    assert!(matches!(played.step(), Step::Give(_)));
    // What the workers take.
    played.now += 2 * PAUSE_TIME_MAX;
    played.succession.give(played.now);
    assert!(matches!(played.step(), Step::Wait));
    let end = played.now + PAUSE_TIME_MAX;
    assert_eq!(played.succession.deadline(), Some(end));
}

#[test]
fn a_successor_that_may_use_the_link_has_failed_only_once_it_has_ended() {
    let mut played = PlayedSuccessor::begin(hello());
    played.reach(Reached::Ready);
    played.now += PAUSE_TIME_MAX;
    // The launcher says nothing of its end.
    let step = played.step();
    assert!(matches!(step, Step::Unended(_)), "{step:?}");
    // Nor does it help to take the link, late.
    played.say(&Message::Taken, 0);
    assert!(matches!(played.step(), Step::Wait));
    assert!(played.succession.is_under_way() && !played.succession.is_done());
    assert_eq!(played.succession.deadline(), None);
    played.end_successor();
    played.assert_failed("it did not receive", true);
}

#[test]
fn one_whose_own_successor_has_ended_is_not_relaying_any_more() {
    let mut played = PlayedSuccessor::begin(hello());
    played.reach(Reached::Relaying);
    played.say(&Message::Taken, 0);
    assert!(matches!(played.step(), Step::Wait));
    played.end_successor();
    assert!(matches!(played.step(), Step::TakeBack));
}

#[test]
fn a_successor_that_says_something_else_is_killed() {
    for (reached, message, sockets) in [
        (Reached::Nothing, Message::Taken, 0),
        (Reached::Nothing, Message::Relaying, 0),
        (Reached::Nothing, Message::End(5), 0),
        // A socket too few, and one too many.
        (Reached::Nothing, Message::Ready, hello().workers),
        (Reached::Nothing, Message::Ready, hello().workers + 2),
        (Reached::Ready, Message::Ready, hello().workers + 1),
        (Reached::Ready, Message::Given, 0),
    ] {
        let mut played = PlayedSuccessor::begin(hello());
        played.reach(reached);
        played.say(&message, sockets);
        played.assert_failed("is not what comes now", true);
    }
}
