//! What a client does, and the replies it must get: decided before the run, never during it.
//!
//! It refuses to know TCP; [`super::Client`] carries it out. Bounded by the scenario that
//! makes it.

use core::net::IpAddr;
use core::time::Duration;

use clock::Instant;
use rustls::SupportedCipherSuite;

use crate::content::Content;
use crate::credentials::UNIX_SECONDS;
use crate::scenario::{PORT, SECURE_PORT};

/// When the files of the first versions were modified: Unix seconds and nanoseconds.
const MODIFIED: (u64, u32) = (UNIX_SECONDS - 1000, 7);

/// An object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ObjectPlan {
    /// Its number; its path is [`ObjectPlan::path`].
    pub(crate) number: usize,
    /// Its bytes.
    pub(crate) content: Content,
    /// How it changes, if it ever does.
    pub(crate) later: Option<Later>,
    /// Length of its content.
    pub(crate) size_bytes: u64,
}

/// What happens to a file under its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// It becomes longer, its bytes stay.
    Grown,
    /// Its name leads to another file, which may be longer; the old one stays as it is.
    Replaced,
    /// Its times move.
    Touched,
    /// Its time of change moves, that of modification does not.
    Attributed,
    /// Other bytes are written to it.
    Rewritten,
    /// The same, and neither size nor times show it: nobody can promise more than that each byte is of one of
    /// both. Over TLS a record is not sealed again to another one.
    Unnoticed,
}

/// An object's changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Later {
    /// What happens.
    pub(crate) change: Change,
    /// Its bytes after that.
    pub(crate) content: Content,
    /// Bytes that each change adds.
    pub(crate) added_bytes: u64,
    /// When it first changes,
    pub(crate) first: Instant,
    /// how often,
    pub(crate) times: u32,
    /// and the time from one change to the next.
    pub(crate) interval: Duration,
}

impl Later {
    /// One change, at once, of the bytes alone.
    pub(crate) const fn once(change: Change, content: Content) -> Self {
        Self {
            change,
            content,
            added_bytes: 0,
            first: Instant::ZERO,
            times: 1,
            interval: Duration::from_secs(1),
        }
    }
}

impl Change {
    /// Those that size or times show.
    pub(crate) const NOTICED: [Self; 5] = [
        Self::Grown,
        Self::Replaced,
        Self::Touched,
        Self::Attributed,
        Self::Rewritten,
    ];

    /// Whether replies begun before may be cut.
    pub(crate) const fn may_cut(self) -> bool {
        matches!(self, Self::Rewritten | Self::Unnoticed)
    }
}

impl ObjectPlan {
    /// Its path.
    pub(crate) fn path(&self) -> String {
        format!("/objects/{}.mp4", self.number)
    }

    /// How often it has changed by `now`.
    pub(crate) fn version_at(&self, now: Instant) -> u32 {
        let changed = self.later.filter(|later| later.first <= now);
        changed.map_or(0, |later| {
            let others = now.since(later.first).as_nanos() / later.interval.as_nanos();
            let others = u32::try_from(others).unwrap_or(u32::MAX);
            later.times.min(others.saturating_add(1))
        })
    }

    /// The same object when it has changed so often.
    pub(crate) fn at(&self, version: u32) -> Self {
        match self.later.filter(|_| version > 0) {
            Some(later) => Self {
                content: match later.change {
                    Change::Rewritten => later.content.rewritten(version),
                    _ => later.content,
                },
                size_bytes: self.size_bytes + u64::from(version) * later.added_bytes,
                ..*self
            },
            None => *self,
        }
    }

    /// When the file of a version was modified: Unix seconds and nanoseconds.
    pub(crate) fn modified(&self, version: u32) -> (u64, u32) {
        let is_kept = |change| matches!(change, Change::Attributed | Change::Unnoticed);
        let moves = self.later.is_some_and(|later| !is_kept(later.change));
        let (seconds, nanos) = MODIFIED;
        let moved = if moves { version.into() } else { 0 };
        (seconds + moved, nanos)
    }

    /// The strong entity tag of a version.
    pub(crate) fn entity_tag(&self, version: u32) -> String {
        let (seconds, _) = self.modified(version);
        format!("\"{seconds:x}-{:x}\"", self.at(version).size_bytes)
    }

    /// The version of an entity tag, strong or weak, from `since` on.
    pub(crate) fn version_of(&self, since: u32, tag: &str) -> Option<u32> {
        let mut versions = since..=self.later.map_or(0, |later| later.times);
        versions.find(|version| {
            let strong = self.entity_tag(*version);
            let weak = strong.replace('-', &format!(".{:x}-", MODIFIED.1));
            tag.strip_prefix("W/")
                .map_or(tag == strong, |tag| tag == weak)
        })
    }
}

/// One client: its addresses, its TCP and TLS, and its connections.
#[derive(Clone, Debug)]
pub(crate) struct ClientPlan {
    /// Its number, which makes its MAC address.
    pub(crate) number: u8,
    /// Its address; the server is reached by the same IP version.
    pub(crate) address: IpAddr,
    /// When its first connection may begin.
    pub(crate) starts: Instant,
    /// Its own MTU; the server learns it from the MSS option.
    pub(crate) mtu_bytes: u16,
    /// Receive buffer: the largest window it ever opens.
    pub(crate) receive_bytes: usize,
    /// Whether it delays acknowledgments (smoltcp: 10 ms).
    pub(crate) delays_acks: bool,
    /// Whether it asks for RFC 7323 timestamps.
    pub(crate) timestamps: bool,
    /// Seed of its sequence numbers.
    pub(crate) seed: u64,
    /// Its TLS parameters; `None`: no TLS.
    pub(crate) secure: Option<SecurePlan>,
    /// Its connections, one after the other.
    pub(crate) connections: Vec<ConnectionPlan>,
}

impl ClientPlan {
    /// The server's port it connects to.
    pub(crate) const fn port(&self) -> u16 {
        if self.secure.is_some() {
            SECURE_PORT
        } else {
            PORT
        }
    }
}

/// TLS parameters of a client. It offers no others, so that these are negotiated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SecurePlan {
    /// The suite, and so the version.
    pub(crate) suite: &'static SupportedCipherSuite,
    /// Whether it resumes sessions.
    pub(crate) resumes: bool,
    /// Whether it first offers a key exchange that the server does not have: HelloRetryRequest.
    pub(crate) is_sent_back: bool,
    /// Largest record it sends, header included; its handshake is cut to that, too.
    pub(crate) record_bytes_max: Option<usize>,
}

impl SecurePlan {
    /// Whether it is TLS 1.3, which has KeyUpdates.
    pub(crate) fn is_tls13(&self) -> bool {
        self.suite.tls13().is_some()
    }
}

/// How a client ends its half of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamEnd {
    /// By a FIN alone, as without TLS.
    Fin,
    /// By a `close_notify` (RFC 8446 s6.1) and a FIN.
    NotifyAndFin,
    /// The same with garbage in between, which the server must ignore.
    NotifyAndGarbage,
    /// By a `close_notify`; the FIN follows when everything is answered.
    Notify,
}

/// One connection of a client.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlan {
    /// Waits this long before it connects.
    pub(crate) gap: Duration,
    /// Its requests, in order.
    pub(crate) requests: Vec<RequestPlan>,
    /// Most requests unanswered at once: 1 waits for each reply.
    pub(crate) pipeline: usize,
    /// Waits this long between a reply and the next request.
    pub(crate) think: Duration,
    /// Stops reading once, for a while.
    pub(crate) pause: Option<Pause>,
    /// Most bytes it takes out of the receive buffer at one moment,
    pub(crate) read_bytes_max: usize,
    /// and how long it then waits before it takes more.
    pub(crate) read_interval: Duration,
    /// How it behaves or misbehaves.
    pub(crate) conduct: Conduct,
    /// Over TLS: how it ends its half of the stream,
    pub(crate) stream_end: StreamEnd,
    /// and when, with [`Conduct::HalfClose`]: once all requests are sent and this many bytes
    /// arrived.
    pub(crate) stream_end_after_bytes: u64,
    /// Over TLS 1.3: sends a KeyUpdate each time this many bytes arrived.
    pub(crate) refresh_bytes: Option<u64>,
    /// Earlier attempts of the same requests.
    pub(crate) attempt: u32,
}

/// A reader that stops for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pause {
    /// Once this many bytes arrived,
    pub(crate) after_bytes: u64,
    /// it reads nothing for so long.
    pub(crate) lasts: Duration,
}

/// When a client resets or vanishes: whichever comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Departure {
    /// Once this many bytes arrived.
    pub(crate) after_bytes: u64,
    /// This long after it began to connect.
    pub(crate) after: Duration,
}

/// How a client behaves. Those that say so need TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Conduct {
    /// Sends whole requests, reads whole replies, closes.
    Proper,
    /// Sends its FIN behind its last request and reads on.
    HalfClose,
    /// Sends its heads one byte at a time.
    Dribble {
        /// Time between two bytes.
        interval: Duration,
    },
    /// Resets the connection.
    Reset(Departure),
    /// Sends nothing any more, on this or another connection.
    Vanish(Departure),
    /// Never completes its first request head.
    StallHead {
        /// Sends this much of it.
        sent_bytes: usize,
    },
    /// Sends garbage instead of a request.
    Garbage {
        /// How many.
        length: usize,
        /// Of which stream.
        key: u64,
        /// Over TLS: completes the handshake first, and encrypts them.
        is_sealed: bool,
    },
    /// Sends plain HTTP to the TLS port.
    Unsealed,
    /// Over TLS: sends only the beginning of its handshake.
    StallHandshake {
        /// This much of it.
        sent_bytes: usize,
        /// With its FIN behind.
        closes: bool,
    },
    /// Over TLS: one bit of what it sends is flipped, if it ever sends so much. After that it sends
    /// no more requests.
    Flip {
        /// Which byte of its stream.
        at_bytes: usize,
        /// Which bit.
        bit: u8,
    },
}

impl Conduct {
    /// Whether such a client must get complete replies.
    pub(crate) const fn is_proper(self) -> bool {
        matches!(self, Self::Proper | Self::HalfClose | Self::Dribble { .. })
    }

    /// Whether such a client sends no ClientHello to the TLS port.
    pub(crate) const fn skips_handshake(self) -> bool {
        let is_raw = matches!(
            self,
            Self::Garbage {
                is_sealed: false,
                ..
            }
        );
        is_raw || matches!(self, Self::Unsealed)
    }

    /// Whether the replies to such a client are checked.
    pub(super) const fn is_judged(self) -> bool {
        !matches!(
            self,
            Self::StallHead { .. } | Self::Garbage { .. } | Self::Unsealed
        )
    }
}

/// A request; by default a GET of nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RequestPlan {
    /// The object; `None`: see `instead`.
    pub(crate) object: Option<ObjectPlan>,
    /// The path if it is no object.
    pub(crate) instead: Instead,
    /// HEAD instead of GET.
    pub(crate) head: bool,
    /// Which part.
    pub(crate) range: Option<RangePlan>,
    /// A condition of the request.
    pub(crate) condition: Condition,
    /// `Connection: close`.
    pub(crate) close: bool,
}

/// A path that is no object.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Instead {
    /// A path that does not exist.
    #[default]
    Nothing,
    /// The objects' directory, which has no index.
    Directory,
    /// The same without its final slash.
    DirectoryWithoutSlash,
}

impl Instead {
    pub(crate) const ALL: [Self; 3] = [Self::Nothing, Self::Directory, Self::DirectoryWithoutSlash];

    fn path(self) -> &'static str {
        match self {
            Self::Nothing => "/objects/none",
            Self::Directory => DIRECTORY,
            Self::DirectoryWithoutSlash => "/objects",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Nothing | Self::Directory => 404,
            Self::DirectoryWithoutSlash => 301,
        }
    }
}

/// Where all objects are, and where a 301 must lead to.
pub(crate) const DIRECTORY: &str = "/objects/";

/// One byte range (RFC 9110 s14.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RangePlan {
    /// `first-last`.
    FirstToLast(u64, u64),
    /// `first-`.
    From(u64),
    /// `-length`, never of length 0.
    Last(u64),
    /// Several parts that do not overlap, all within the object.
    Several(PartList),
}

/// A condition on the object.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Condition {
    /// None.
    #[default]
    None,
    /// `If-None-Match: *`: an object that exists is not sent.
    IfNoneMatch,
    /// `If-Range` with a tag nobody has: the whole object is sent.
    StaleIfRange,
    /// `If-Range` with the strong tag of the first version: of others, the whole object is sent.
    FirstIfRange,
}

/// A request that waits for its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    /// The request.
    pub(crate) request: RequestPlan,
    /// The version of its object when it was sent: the reply is of this one or a later one.
    pub(crate) since: u32,
}

/// The reply a request must get, when nothing that was injected permits another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    /// The status code.
    pub(crate) status: u16,
    /// What the body holds.
    pub(crate) body: ExpectedBody,
    /// A reply to HEAD has no body, whatever its fields say.
    pub(crate) head: bool,
    /// We asked the server to close after this reply.
    pub(crate) close: bool,
}

/// What a body holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExpectedBody {
    /// The text of an error.
    Text,
    /// There is none.
    Nothing,
    /// Part of an object.
    Part {
        /// Of which.
        object: ObjectPlan,
        /// From where.
        offset_bytes: u64,
        /// How many.
        length_bytes: u64,
    },
    /// Several parts of an object.
    Parts {
        /// Of which.
        object: ObjectPlan,
        /// Offset and length of each.
        parts: PartList,
    },
}

impl ExpectedBody {
    /// Object bytes of it.
    pub(crate) fn object_bytes(&self) -> u64 {
        match self {
            Self::Text | Self::Nothing => 0,
            Self::Part { length_bytes, .. } => *length_bytes,
            Self::Parts { parts, .. } => parts.as_slice().iter().map(|(_, length)| length).sum(),
        }
    }
}

/// Most parts one request asks for.
pub(crate) const PARTS_MAX: usize = 4;

/// A few parts, each offset and length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartList {
    parts: [(u64, u64); PARTS_MAX],
    count: usize,
}

impl PartList {
    /// These parts, at most [`PARTS_MAX`].
    pub(crate) fn new(parts: &[(u64, u64)]) -> Self {
        let mut list = Self {
            parts: [(0, 0); PARTS_MAX],
            count: parts.len(),
        };
        list.parts[..parts.len()].copy_from_slice(parts);
        list
    }

    /// The parts in the order they are asked for.
    pub(crate) fn as_slice(&self) -> &[(u64, u64)] {
        &self.parts[..self.count]
    }
}

impl RequestPlan {
    /// The request head, ready to send.
    pub(crate) fn head_bytes(&self) -> Vec<u8> {
        let method = if self.head { "HEAD" } else { "GET" };
        let path = self
            .object
            .map_or_else(|| self.instead.path().to_owned(), |o| o.path());
        let range = self
            .range
            .map(|range| range.field_line())
            .unwrap_or_default();
        let condition = match self.condition {
            Condition::None => String::new(),
            Condition::IfNoneMatch => "If-None-Match: *\r\n".to_owned(),
            Condition::StaleIfRange => "If-Range: \"stale\"\r\n".to_owned(),
            Condition::FirstIfRange => format!("If-Range: {}\r\n", self.first_tag()),
        };
        let close = if self.close {
            "Connection: close\r\n"
        } else {
            ""
        };
        format!("{method} {path} HTTP/1.1\r\nHost: sim\r\n{range}{condition}{close}\r\n")
            .into_bytes()
    }

    /// The reply it must get if its object never changes.
    pub(crate) fn expected(&self) -> Expected {
        self.expected_of(0, &self.first_tag())
    }

    fn first_tag(&self) -> String {
        self.object
            .map_or_else(String::new, |object| object.entity_tag(0))
    }

    /// Whether a change of its object may cut its reply.
    pub(crate) fn may_be_cut(&self) -> bool {
        let later = self.object.and_then(|object| object.later);
        later.is_some_and(|later| later.change.may_cut())
    }

    /// The reply it must get of a version of its object, which has this entity tag.
    pub(crate) fn expected_of(&self, version: u32, tag: &str) -> Expected {
        let is_range = match self.condition {
            Condition::StaleIfRange => false,
            Condition::FirstIfRange => tag == self.first_tag(),
            _ => true,
        };
        let object = self.object.map(|object| object.at(version));
        let (status, body) = match object {
            None => (self.instead.status(), ExpectedBody::Text),
            Some(_) if self.condition == Condition::IfNoneMatch => (304, ExpectedBody::Nothing),
            Some(object) => match self.range {
                // RFC 9110 s14.2: a server ignores Range for any method but GET; s13.1.5: and
                // where If-Range does not match.
                Some(range) if is_range && !self.head => range.expected(object),
                _ => (200, whole(object)),
            },
        };
        Expected {
            status,
            body,
            head: self.head,
            close: self.close,
        }
    }
}

fn whole(object: ObjectPlan) -> ExpectedBody {
    ExpectedBody::Part {
        object,
        offset_bytes: 0,
        length_bytes: object.size_bytes,
    }
}

impl RangePlan {
    fn field_line(self) -> String {
        match self {
            Self::FirstToLast(first, last) => format!("Range: bytes={first}-{last}\r\n"),
            Self::From(first) => format!("Range: bytes={first}-\r\n"),
            Self::Last(length) => format!("Range: bytes=-{length}\r\n"),
            Self::Several(parts) => {
                let spell =
                    |(offset, length): &(u64, u64)| format!("{offset}-{}", offset + length - 1);
                let ranges: Vec<_> = parts.as_slice().iter().map(spell).collect();
                format!("Range: bytes={}\r\n", ranges.join(","))
            }
        }
    }

    /// Status and body of a GET of this part of `object`.
    fn expected(self, object: ObjectPlan) -> (u16, ExpectedBody) {
        let size = object.size_bytes;
        let resolved = match self {
            // RFC 9110 s14.1.2 has no range of an empty object; nginx and we send all of it to
            // whoever asks for a part that begins at its start.
            Self::FirstToLast(0, _) | Self::From(0) | Self::Last(_) if size == 0 => {
                return (200, whole(object));
            }
            Self::Several(parts) => return (206, ExpectedBody::Parts { object, parts }),
            Self::FirstToLast(first, last) if first < size => {
                Some((first, last.min(size - 1) - first + 1))
            }
            Self::From(first) if first < size => Some((first, size - first)),
            Self::Last(length) => Some((size.saturating_sub(length), length.min(size))),
            Self::FirstToLast(..) | Self::From(_) => None,
        };
        match resolved {
            None => (416, ExpectedBody::Text),
            Some((offset_bytes, length_bytes)) => (
                206,
                ExpectedBody::Part {
                    object,
                    offset_bytes,
                    length_bytes,
                },
            ),
        }
    }
}

/// Which failures the faults of a scenario explain; whatever is not permitted is a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Permits {
    /// Reads fail or files are rewritten: a reply may be cut by a reset, or be a 500.
    pub(crate) broken_replies: bool,
    /// What the server sent before a reset may not have come: a reply that it had begun may look as if it had not.
    pub(crate) unseen_beginnings: bool,
    /// The connection table may be full, which is judged at the end of the run: a connection may be
    /// reset before a reply, or closed between replies.
    pub(crate) refusals: bool,
    /// The table of open objects is small: a request may be answered 503.
    pub(crate) busy: bool,
    /// Frames are lost or the interface goes down: a request may arrive after the server's
    /// timeout passed, on a connection closed or answered 408.
    pub(crate) lateness: bool,
    /// That can only be if the client received nothing for as long as this.
    pub(crate) lateness_min: Duration,
    /// Or if a TLS handshake took as long as this, the server's timeout.
    pub(crate) handshake_timeout: Duration,
    /// Keys wear out: a connection of TLS 1.2, which cannot change them, may be reset.
    pub(crate) worn_keys: bool,
    /// From then on the server closes connections between replies and refuses new ones.
    pub(crate) closes_at: Option<Instant>,
    /// From then on the server closes connections between replies.
    pub(crate) hands_over_at: Option<Instant>,
    /// From then on the server resets connections.
    pub(crate) aborts_at: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::{
        Change, Condition, Content, Duration, ExpectedBody, Instant, Instead, Later, ObjectPlan,
        PartList, RangePlan, RequestPlan,
    };

    fn request(size_bytes: u64, range: Option<RangePlan>) -> RequestPlan {
        let content = Content::new(0, 7, 0);
        let object = ObjectPlan {
            number: 7,
            content,
            later: None,
            size_bytes,
        };
        RequestPlan {
            object: Some(object),
            range,
            ..RequestPlan::default()
        }
    }

    #[test]
    fn ranges_resolve_on_both_sides_of_the_end() {
        let cases = [
            (RangePlan::FirstToLast(0, 0), Some((0, 1))),
            (RangePlan::FirstToLast(9, 9), Some((9, 1))),
            (RangePlan::FirstToLast(9, 50), Some((9, 1))),
            (RangePlan::FirstToLast(10, 10), None),
            (RangePlan::From(9), Some((9, 1))),
            (RangePlan::From(10), None),
            (RangePlan::Last(10), Some((0, 10))),
            (RangePlan::Last(11), Some((0, 10))),
            (RangePlan::Last(3), Some((7, 3))),
        ];
        for (range, resolved) in cases {
            let expected = request(10, Some(range)).expected();
            assert_eq!(
                expected.status,
                if resolved.is_some() { 206 } else { 416 },
                "{range:?}"
            );
            if let ExpectedBody::Part {
                offset_bytes,
                length_bytes,
                ..
            } = expected.body
            {
                assert_eq!(Some((offset_bytes, length_bytes)), resolved, "{range:?}");
            }
        }
        assert_eq!(request(0, Some(RangePlan::From(0))).expected().status, 200);
        assert_eq!(request(0, Some(RangePlan::From(1))).expected().status, 416);
    }

    #[test]
    fn methods_and_conditions_decide_before_ranges() {
        let base = request(10, Some(RangePlan::From(10)));
        assert_eq!(RequestPlan { head: true, ..base }.expected().status, 200);
        let condition = Condition::StaleIfRange;
        assert_eq!(RequestPlan { condition, ..base }.expected().status, 200);
        let condition = Condition::IfNoneMatch;
        assert_eq!(RequestPlan { condition, ..base }.expected().status, 304);
        for (instead, status) in [
            (Instead::Nothing, 404),
            (Instead::Directory, 404),
            (Instead::DirectoryWithoutSlash, 301),
        ] {
            let request = RequestPlan {
                condition,
                object: None,
                instead,
                ..base
            };
            assert_eq!(request.expected().status, status);
        }
    }

    #[test]
    fn a_head_says_what_is_asked() {
        let head = |request: RequestPlan| String::from_utf8(request.head_bytes()).expect("ASCII");
        assert_eq!(
            head(RequestPlan {
                head: true,
                close: true,
                ..request(1, Some(RangePlan::Last(3)))
            }),
            "HEAD /objects/7.mp4 HTTP/1.1\r\nHost: sim\r\nRange: bytes=-3\r\n\
             Connection: close\r\n\r\n"
        );
        let parts = RangePlan::Several(PartList::new(&[(0, 1), (5, 10)]));
        assert!(head(request(99, Some(parts))).contains("Range: bytes=0-0,5-14\r\n"));
    }

    #[test]
    fn versions_follow_the_clock_and_are_told_by_their_tags() {
        let (old, new) = (Content::new(0, 7, 0), Content::new(1, 7, 1));
        let object = |change, content| ObjectPlan {
            later: Some(Later {
                added_bytes: 6,
                first: Instant::from_millis(5),
                times: 2,
                interval: Duration::from_millis(10),
                ..Later::once(change, content)
            }),
            ..request(10, None).object.unwrap()
        };
        let grown = object(Change::Grown, old);
        for (now, version, size_bytes) in [(4, 0, 10), (5, 1, 16), (14, 1, 16), (15, 2, 22)] {
            assert_eq!(
                grown.version_at(Instant::from_millis(now)),
                version,
                "{now}"
            );
            assert_eq!(grown.at(version).size_bytes, size_bytes);
            assert_eq!(
                grown.version_of(0, &grown.entity_tag(version)),
                Some(version)
            );
        }
        assert_eq!(grown.version_at(Instant::from_millis(9000)), 2);
        assert_eq!(grown.version_of(2, &grown.entity_tag(1)), None);
        assert_eq!(grown.version_of(0, "\"5f-a\""), None);
        let rewritten = object(Change::Rewritten, new);
        let contents = [0, 1].map(|version| rewritten.at(version).content);
        assert_eq!(contents, [old, new]);
    }
}
