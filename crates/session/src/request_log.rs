//! The interface to an access log: what is reported of each request.
//!
//! The conductor keeps none of a request's text: it passes the text by reference when the reply
//! begins, and gets a number for it. Of each reply under way it keeps that number and the length of
//! its body, for at most eight replies a connection ([`crate::stream_map::REPLIES_MAX`]). Without an
//! access log it keeps nothing.

use core::fmt;
use core::net::IpAddr;
use std::collections::VecDeque;

use http::{HeadText, Part};

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
    /// `body_bytes` of its body were sent; retransmitted bytes count once, the head and the
    /// overhead of TLS do not count. If the connection ended in mid-transfer, some of these bytes
    /// may not have arrived.
    fn end(&mut self, name: RequestName, body_bytes: u64);

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
}

/// Identifies a request from [`RequestLog::begin`] to [`RequestLog::end`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestName(pub u32);

/// Replies of one connection whose end will be logged, in stream order: one for each reply in its
/// stream map, or none without an access log.
#[derive(Debug, Default)]
pub(crate) struct LoggedReplies {
    replies: VecDeque<LoggedReply>,
}

/// A reply whose end will be logged.
#[derive(Clone, Copy, Debug)]
struct LoggedReply {
    name: Option<RequestName>,
    /// Bytes of its body that were or will be sent.
    body_bytes: u64,
}

/// Unsent content bytes of each reply under way, in stream order.
pub(crate) type UnsentBytes = [u64; REPLIES_MAX];

impl LoggedReplies {
    /// A reply was queued: `text` is all its text and begins with its head.
    pub(crate) fn push(&mut self, name: Option<RequestName>, text: &[u8], parts: &[Part]) {
        let all_bytes: u64 = parts.iter().map(Part::bytes).sum();
        let end_of_head = text.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let head_bytes = end_of_head.map_or(text.len(), |end| end + 4);
        let head_bytes = u64::try_from(head_bytes).unwrap_or(u64::MAX);
        self.replies.push_back(LoggedReply {
            name,
            body_bytes: all_bytes.saturating_sub(head_bytes),
        });
    }

    /// The bytes in `unsent` will not be sent; replies beyond it will not be sent at all.
    pub(crate) fn cut(&mut self, unsent: &UnsentBytes) {
        for (reply, unsent) in self.replies.iter_mut().zip(unsent) {
            reply.body_bytes = reply.body_bytes.saturating_sub(*unsent);
        }
    }

    /// The last reply was taken back.
    pub(crate) fn forget_last(&mut self, log: &mut dyn RequestLog) {
        if let Some(LoggedReply {
            name: Some(name), ..
        }) = self.replies.pop_back()
        {
            log.forget(name);
        }
    }

    /// Logs the end of all but the last `under_way` replies, which were acknowledged.
    pub(crate) fn end_first(&mut self, under_way: usize, log: &mut dyn RequestLog) {
        while self.replies.len() > under_way {
            end(self.replies.pop_front(), log);
        }
    }

    /// Logs the end of all but the first `under_way` replies, which were dropped.
    pub(crate) fn end_last(&mut self, under_way: usize, log: &mut dyn RequestLog) {
        while self.replies.len() > under_way {
            end(self.replies.pop_back(), log);
        }
    }
}

fn end(reply: Option<LoggedReply>, log: &mut dyn RequestLog) {
    if let Some(LoggedReply {
        name: Some(name),
        body_bytes,
    }) = reply
    {
        log.end(name, body_bytes);
    }
}

#[cfg(test)]
mod tests {
    use http::Part;

    use super::{LoggedReplies, LoggedRequest, RequestLog, RequestName};

    #[derive(Debug, Default)]
    struct Ends(Vec<(u32, u64)>);

    impl RequestLog for Ends {
        fn begin(&mut self, _: &LoggedRequest<'_>) -> Option<RequestName> {
            None
        }

        fn end(&mut self, name: RequestName, body_bytes: u64) {
            self.0.push((name.0, body_bytes));
        }

        fn forget(&mut self, name: RequestName) {
            self.0.push((name.0, u64::MAX));
        }
    }

    fn three() -> LoggedReplies {
        let mut replies = LoggedReplies::default();
        let object = Part::Object {
            start: 5,
            length: 100,
        };
        replies.push(Some(RequestName(1)), b"a\r\n\r\n", &[Part::Text(5), object]);
        replies.push(None, b"a\r\n\r\nbody", &[Part::Text(9)]);
        replies.push(Some(RequestName(3)), b"a\r\n\r\nbody", &[Part::Text(9)]);
        replies
    }

    #[test]
    fn the_head_is_no_part_of_the_body() {
        let mut ends = Ends::default();
        three().end_first(0, &mut ends);
        assert_eq!(ends.0, [(1, 100), (3, 4)]);
    }

    #[test]
    fn unsent_bytes_are_not_logged() {
        let (mut replies, mut ends) = (three(), Ends::default());
        replies.cut(&[30, 9, 9, 0, 0, 0, 0, 0]);
        replies.end_last(1, &mut ends);
        assert_eq!(ends.0, [(3, 0)]);
        replies.end_first(1, &mut ends);
        assert_eq!(ends.0.len(), 1);
        replies.end_first(0, &mut ends);
        assert_eq!(ends.0, [(3, 0), (1, 70)]);
    }
}
