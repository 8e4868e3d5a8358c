//! Replies under way, and the interface to an access log: what is reported of each request.
//!
//! The conductor keeps none of a request's text: it passes the text by reference when the reply
//! begins, and gets a number for it. Of each reply under way it keeps that number, the length of
//! its body, and when it was asked for and begun, for at most eight replies a connection
//! ([`crate::stream_map::REPLIES_MAX`]).

use core::fmt;
use core::net::IpAddr;
use std::collections::VecDeque;

use clock::{Duration, Instant};
use http::{Cmcd, HeadText, Part};
use record::Version;
use tcp::{StreamOffset, StreamRange};

use super::stream_map::REPLIES_MAX;

/// The status that is logged for a request whose client closed the connection before the reply
/// began. No reply has this status; nginx logs the same number.
pub const STATUS_CLIENT_LEFT: u16 = 499;

/// Keeps an access log. Called within the conductor's round, so it must neither block nor wait.
pub trait RequestLog: fmt::Debug {
    /// A reply was queued. Returns the name with which [`RequestLog::end`] is called at its end;
    /// `None`: no such call is wanted. A name may be used again after its end.
    fn begin(&mut self, request: &LoggedRequest<'_>) -> Option<RequestName>;

    /// The reply is over: its last byte was acknowledged, or its connection ended before that.
    fn end(&mut self, name: RequestName, end: &ReplyEnd);

    /// The reply was taken back, and none of it was sent: [`RequestLog::begin`] is called again for its request,
    /// and [`RequestLog::end`] is not called with this name.
    fn forget(&mut self, name: RequestName);
}

/// A request when its reply begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedRequest<'a> {
    /// Who asks: the client's address, or the one that a trusted proxy names ([`sites::Sites::source`]).
    pub peer: IpAddr,
    /// The reply's status, or [`STATUS_CLIENT_LEFT`].
    pub status: u16,
    /// The request as the client sent it.
    pub text: HeadText<'a>,
    /// How the connection is encrypted; `None`: it is not.
    pub tls: Option<TlsSession>,
    /// What the player says of its playback, if that is wanted ([`crate::Config::reads_cmcd`]).
    pub cmcd: Option<&'a Cmcd>,
}

/// What a TLS handshake agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlsSession {
    /// The version.
    pub version: Version,
    /// A session was resumed.
    pub is_resumed: bool,
}

/// What became of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyEnd {
    /// Bytes of its body that were sent: retransmitted bytes count once, the head and the overhead of TLS do
    /// not count. If the connection ended in mid-transfer, some of these bytes may not have arrived.
    pub body_bytes: u64,
    /// Bytes of the connection's stream that were sent for it, once each: head, body and the overhead of TLS.
    pub stream_bytes: u64,
    /// Bytes of the connection's stream that were sent again while it was under way.
    pub retransmitted_bytes: u64,
    /// From the request's head to the first byte that was sent; `None`: none was.
    pub first_byte: Option<Duration>,
    /// From the request's head to this end.
    pub last_byte: Duration,
    /// The smoothed RTT of the connection, if there was a sample.
    pub smoothed_rtt: Option<Duration>,
}

/// Identifies a request from [`RequestLog::begin`] to [`RequestLog::end`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestName(pub u32);

/// The replies of one connection that are under way, in stream order: one for each reply in its
/// stream map.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    replies: VecDeque<Reply>,
}

/// A reply under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// `None`: its end will not be logged.
    pub(crate) name: Option<RequestName>,
    /// Its site's, by which it is counted ([`sites::Found::number`]).
    pub(crate) site: u16,
    pub(crate) status: u16,
    /// Bytes of its body that were or will be sent.
    body_bytes: u64,
    /// When the request's head was complete.
    asked_at: Instant,
    /// When its first byte was sent.
    begun_at: Option<Instant>,
    range: StreamRange,
    /// Bytes that the connection had sent again when it was queued.
    retransmitted_before: u64,
}

/// Unsent content bytes of each reply under way, in stream order.
pub(crate) type UnsentBytes = [u64; REPLIES_MAX];

impl Reply {
    /// A reply in `range` of the stream: `text` is all its text and begins with its head.
    pub(crate) fn new(
        name: Option<RequestName>,
        (site, status): (u16, u16),
        asked_at: Instant,
        range: StreamRange,
        retransmitted_before: u64,
        (text, parts): (&[u8], &[Part]),
    ) -> Self {
        let all_bytes: u64 = parts.iter().map(Part::bytes).sum();
        let head_bytes = u64::try_from(head_bytes(text)).unwrap_or(u64::MAX);
        Self {
            name,
            site,
            status,
            body_bytes: all_bytes.saturating_sub(head_bytes),
            asked_at,
            begun_at: None,
            range,
            retransmitted_before,
        }
    }

    /// What became of it `now`, when the connection has sent the stream up to `sent`, and `retransmitted`
    /// bytes again.
    pub(crate) fn end(
        &self,
        now: Instant,
        sent: StreamOffset,
        retransmitted: u64,
        smoothed_rtt: Option<Duration>,
    ) -> ReplyEnd {
        let sent = sent.clamp(self.range.start, self.range.end);
        ReplyEnd {
            body_bytes: self.body_bytes,
            stream_bytes: sent.since(self.range.start),
            retransmitted_bytes: retransmitted.saturating_sub(self.retransmitted_before),
            first_byte: self.begun_at.map(|at| at.since(self.asked_at)),
            last_byte: now.since(self.asked_at),
            smoothed_rtt,
        }
    }
}

/// Bytes of the head that `text` begins with: all of it if no empty line ends it. Every reply passes here: most bytes are
/// stepped over.
fn head_bytes(text: &[u8]) -> usize {
    const END: &[u8] = b"\r\n\r\n";
    let mut last = END.len() - 1;
    while let Some(byte) = text.get(last) {
        last += match byte {
            b'\n' if text.get(..=last).is_some_and(|it| it.ends_with(END)) => return last + 1,
            b'\n' => 2,
            b'\r' => 1,
            _ => END.len(),
        };
    }
    text.len()
}

impl Replies {
    /// A reply was queued.
    pub(crate) fn push(&mut self, reply: Reply) {
        if self.replies.capacity() == 0 {
            // Most clients have one at a time.
            self.replies.reserve_exact(1);
        }
        self.replies.push_back(reply);
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// The stream was sent up to `sent`: tells `begun` of each reply that began by that how long after its
    /// request. Returns whether one is left that has not begun.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        sent: StreamOffset,
        mut begun: impl FnMut(Duration),
    ) -> bool {
        for reply in &mut self.replies {
            if reply.begun_at.is_some() {
                continue;
            }
            if sent <= reply.range.start {
                return true;
            }
            reply.begun_at = Some(now);
            begun(now.since(reply.asked_at));
        }
        false
    }

    /// The bytes in `unsent` will not be sent; replies beyond it will not be sent at all.
    pub(crate) fn cut(&mut self, unsent: &UnsentBytes) {
        for (reply, unsent) in self.replies.iter_mut().zip(unsent) {
            reply.body_bytes = reply.body_bytes.saturating_sub(*unsent);
        }
    }

    /// The last reply was taken back.
    pub(crate) fn forget_last(&mut self) -> Option<RequestName> {
        self.replies.pop_back()?.name
    }

    /// The first one of all but the last `under_way`, which were acknowledged; it is over.
    pub(crate) fn pop_first(&mut self, under_way: usize) -> Option<Reply> {
        (self.replies.len() > under_way).then(|| self.replies.pop_front())?
    }

    /// The last one of all but the first `under_way`, which were dropped; it is over.
    pub(crate) fn pop_last(&mut self, under_way: usize) -> Option<Reply> {
        (self.replies.len() > under_way).then(|| self.replies.pop_back())?
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};
    use http::Part;
    use tcp::{StreamOffset, StreamRange};

    use super::{Replies, Reply, RequestName, head_bytes};

    const ASKED: Instant = Instant::from_millis(1);

    #[test]
    fn a_head_ends_with_the_first_empty_line_wherever_it_is() {
        for text in [
            "", "a", "ab", "abc", "abcd", "\r", "\r\n", "\n\r", "\r\r\n", "a\r\nb\r",
        ] {
            for rest in ["", "body", "\n\r\n", "\r\n\r\n"] {
                let all = format!("{text}\r\n\r\n{rest}");
                let expected = all.find("\r\n\r\n").map(|at| at + 4);
                assert_eq!(Some(head_bytes(all.as_bytes())), expected, "{all:?}");
            }
            assert_eq!(head_bytes(text.as_bytes()), text.len(), "{text:?}");
        }
    }

    fn three() -> Replies {
        let mut replies = Replies::default();
        let object = Part::Object {
            start: 5,
            length: 100,
        };
        let texts: [(u32, &[u8], &[Part]); 3] = [
            (1, b"a\r\n\r\n", &[Part::Text(5), object]),
            (0, b"a\r\n\r\nbody", &[Part::Text(9)]),
            (3, b"a\r\n\r\nbody", &[Part::Text(9)]),
        ];
        let mut start = StreamOffset::ZERO;
        for (name, text, parts) in texts {
            let bytes: u64 = parts.iter().map(Part::bytes).sum();
            let range = StreamRange::new(start, start + bytes);
            let name = (name > 0).then_some(RequestName(name));
            replies.push(Reply::new(name, (0, 200), ASKED, range, 7, (text, parts)));
            start += bytes;
        }
        replies
    }

    /// Names and body bytes of those that are over.
    fn ended(mut next: impl FnMut() -> Option<Reply>) -> Vec<(Option<u32>, u64)> {
        let replies = std::iter::from_fn(&mut next);
        replies
            .map(|reply| (reply.name.map(|name| name.0), reply.body_bytes))
            .collect()
    }

    #[test]
    fn the_head_is_no_part_of_the_body() {
        let mut replies = three();
        let ends = ended(|| replies.pop_first(0));
        assert_eq!(ends, [(Some(1), 100), (None, 4), (Some(3), 4)]);
        assert!(replies.is_empty());
    }

    #[test]
    fn unsent_bytes_are_not_logged() {
        let mut replies = three();
        replies.cut(&[30, 9, 9, 0, 0, 0, 0, 0]);
        assert_eq!(ended(|| replies.pop_last(1)), [(Some(3), 0), (None, 0)]);
        assert_eq!(ended(|| replies.pop_first(1)), []);
        assert_eq!(ended(|| replies.pop_first(0)), [(Some(1), 70)]);
    }

    #[test]
    fn a_reply_begins_with_its_first_byte_and_once() {
        let mut replies = three();
        let mut begun = |millis, sent| {
            let mut times = Vec::new();
            let sent = StreamOffset::ZERO + sent;
            let now = Instant::from_millis(millis);
            let is_any_left = replies.begin(now, sent, |time| times.push(time.as_millis()));
            (times, is_any_left)
        };
        assert_eq!(begun(2, 0), (vec![], true));
        assert_eq!(begun(3, 1), (vec![2], true));
        assert_eq!(begun(4, 105), (vec![], true));
        assert_eq!(begun(5, 115), (vec![4, 4], false));
        assert_eq!(begun(6, 123), (vec![], false));
    }

    #[test]
    fn an_end_counts_what_was_sent_of_the_reply_and_again_since_it_was_queued() {
        let mut replies = three();
        let sent = StreamOffset::ZERO + 60;
        replies.begin(Instant::from_millis(3), sent, |_| {});
        let end = |reply: Option<Reply>| {
            let rtt = Some(Duration::from_millis(9));
            reply.unwrap().end(Instant::from_millis(5), sent, 17, rtt)
        };
        let first = end(replies.pop_first(2));
        assert_eq!((first.stream_bytes, first.retransmitted_bytes), (60, 10));
        assert_eq!(first.first_byte, Some(Duration::from_millis(2)));
        assert_eq!(first.last_byte, Duration::from_millis(4));
        assert_eq!(first.smoothed_rtt, Some(Duration::from_millis(9)));
        let second = end(replies.pop_first(1));
        assert_eq!((second.stream_bytes, second.first_byte), (0, None));
    }
}
