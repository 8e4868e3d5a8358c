//! One TCP client that sees the beginning of each frame: segments and moments in, segments out.
//!
//! It asks for one path after another on one connection, each when the reply before is complete,
//! acknowledges as a receiver behind GRO does, reports gaps by SACK, and connects again where the
//! server closes between two replies. Bodies are counted by their sequence numbers. Over TLS it makes
//! a real handshake first and counts by records ([`tls`]).
//!
//! It refuses to think about congestion (it sends little) and about flow control: the window it
//! advertises, [`WINDOW_BYTES`], never closes. There are no delayed acknowledgments. A FIN beyond a
//! gap is not kept; the server sends it again. No clock and no I/O: [`World`] is all it knows.
//!
//! Bounds: `size_of::<Connection>()`, and beside it only what a gap ([`RANGES_MAX`]) or a head in
//! several frames ([`HEAD_BYTES_MAX`]) takes, and the keys of TLS; [`ATTEMPTS_MAX`] tries of a SYN or a
//! request; [`HANDSHAKE_MAX`] for a handshake.

use clock::{Duration, Instant};
use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

mod ranges;
mod reply;
mod secured;
#[cfg(test)]
mod tests;
pub mod tls;

pub use ranges::RANGES_MAX;
pub use reply::HEAD_BYTES_MAX;
pub use tls::{TlsClient, TlsFault, Watched};

use ranges::Ranges;
use reply::{Head, Piece, Reply};
use tls::Tls;

/// Shift of the window field (RFC 7323 s2).
const WINDOW_SCALE: u8 = 10;

/// The window field of all segments but SYNs.
const WINDOW_FIELD: u16 = 16_384;

/// The receive window: it never closes.
pub const WINDOW_BYTES: u32 = (WINDOW_FIELD as u32) << WINDOW_SCALE;

/// Tries of a SYN or a request before the connection has failed.
pub const ATTEMPTS_MAX: u8 = 8;

/// Longest TLS handshake, the three-way handshake included.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(60);

/// Wait before a SYN or a request is sent again; it doubles up to [`RESEND_MAX`].
const RESEND_FIRST: Duration = Duration::from_secs(1);
const RESEND_MAX: Duration = Duration::from_secs(8);

/// Wait after a refused SYN: the server may not listen yet.
const REFUSED_WAIT: Duration = Duration::from_millis(200);

/// From one connection's initial sequence number to that of the next on the same ports.
const REOPEN_STEP: u32 = 1 << 17;

/// Why a connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// A reply whose status is not 200.
    Status(u16),
    /// A head that cannot be parsed, has no `Content-Length`, or is longer than what is seen.
    Head,
    /// A `Content-Length` that is not the object's.
    Length,
    /// A byte of a sampled reply that is not the object's.
    Bytes,
    /// Bytes that nobody asked for.
    Unasked,
    /// A FIN before the reply was complete.
    Closed,
    /// A reset.
    Reset,
    /// No answer to [`ATTEMPTS_MAX`] SYNs or requests.
    Silent,
    /// TLS.
    Tls(TlsFault),
}

impl Fault {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::Head => "head",
            Self::Length => "length",
            Self::Bytes => "bytes",
            Self::Unasked => "unasked",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Silent => "silent",
            Self::Tls(fault) => fault.name(),
        }
    }
}

/// What a connection tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The three-way handshake is over.
    Connected,
    /// The TLS handshake is over.
    Secured,
    /// Records of replies that were counted or opened.
    Records(u32),
    /// A SYN was answered by a reset; it is tried again.
    Refused,
    /// The first byte of a reply, so long after the request.
    FirstByte(Duration),
    /// Bytes of a body that came in order.
    Body(u32),
    /// A reply of so many bytes of body is complete, so long after the request.
    Replied(u64, Duration),
    /// A segment whose bytes had all come before: a retransmission that was not needed.
    Duplicate,
    /// A segment behind a gap.
    OutOfOrder,
    /// A segment behind a gap for which there was no place: as if lost.
    Unplaced,
    /// A segment that ended a gap: a retransmission.
    GapFilled,
    /// The server closed between two replies: the connection is to be opened again.
    ClosedByServer,
    /// It is over.
    Failed(Fault),
}

/// A segment to send. Ports are the caller's to fill in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Its header.
    pub segment: TcpRepr,
    /// The path whose request is its text.
    pub request: Option<u32>,
    /// Its text over TLS.
    pub sealed: Option<Box<[u8]>>,
}

/// A received segment: a frame, or what is left of it when packets of it were lost.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its header.
    pub header: TcpRepr,
    /// Sequence number that the frame began with.
    pub frame_start: SeqNumber,
    /// Bytes of text it had on the wire.
    pub bytes: u32,
    /// The first of them.
    pub seen: &'a [u8],
}

/// What surrounds a connection.
pub trait World {
    /// The path to ask for next; `None` if all was asked, or it is not this connection's turn:
    /// [`Connection::start`] is called then when it is.
    fn next_path(&mut self) -> Option<u32>;
    /// The request for a path.
    fn request(&self, path: u32) -> &str;
    /// Bytes of the object at a path.
    fn object_bytes(&self, path: u32) -> u64;
    /// Compares bytes of a sampled reply with those of the object at this offset.
    fn is_content(&mut self, path: u32, offset: u64, bytes: &[u8]) -> bool;
    /// Sends a segment.
    fn send(&mut self, transmit: Transmit);
    /// Something happened.
    fn on(&mut self, event: Event);
    /// Largest text of a segment that is offered to the server.
    fn mss(&self) -> u16;
    /// How to make a TLS handshake; `None` for plain HTTP.
    fn tls(&self) -> Option<&TlsClient> {
        None
    }
    /// The records of this connection's stream, whose first byte has this number, are followed from
    /// now on; frames are delivered whole.
    fn follow(&mut self, _first: SeqNumber) {}
    /// Frames are delivered whole again.
    fn lengthen(&mut self) {}
    /// The headers of each frame are enough from now on, but the first bytes are wanted of those that begin before
    /// this number.
    fn shorten(&mut self, _head_end: SeqNumber) {}
    /// What is known of this connection's stream.
    fn watched(&self) -> Watched {
        Watched::default()
    }
    /// Whether a sampled connection's frame that begins with this number is delivered whole.
    fn is_whole(&self, _sequence: SeqNumber) -> bool {
        true
    }
    /// Whether a sampled connection's reply over TLS is delivered whole, by the number of replies before it.
    fn is_reply_whole(&self, _replies_before: u32) -> bool {
        true
    }
    /// Why the fault comes that comes next.
    fn explain(&mut self, _text: String) {}
}

/// States of RFC 9293 as far as this client has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not opened, or to be opened again.
    Closed,
    SynSent,
    /// The TLS handshake is under way.
    Handshaking,
    Established,
    /// The server will close: nothing is asked any more.
    Closing,
    Failed,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    state: State,
    /// Whether bytes are delivered to be compared: those that [`World::is_whole`] says, over TLS
    /// [`World::is_reply_whole`].
    is_sampled: bool,
    /// Whether both sides send timestamps.
    has_timestamps: bool,
    /// Tries of the SYN or the request that is not acknowledged; 0 if there is none.
    attempts: u8,
    /// Replies that were complete since it was opened.
    replies: u32,
    /// SND.NXT.
    send_next: SeqNumber,
    /// RCV.NXT.
    receive_next: SeqNumber,
    /// TS.Recent (RFC 7323 s4.3).
    recent: u32,
    /// The path that was asked for; kept until its reply is complete.
    path: Option<u32>,
    reply: Reply,
    ranges: Ranges,
    /// Before a request: when it was opened.
    asked_at: Instant,
    resend_at: Instant,
    tls: Option<Box<Tls>>,
}

impl Connection {
    /// One that is closed; its first sequence number will be `initial`.
    #[must_use]
    pub fn new(initial: SeqNumber, is_sampled: bool) -> Self {
        Self {
            state: State::Closed,
            is_sampled,
            has_timestamps: false,
            attempts: 0,
            replies: 0,
            send_next: initial,
            receive_next: SeqNumber(0),
            recent: 0,
            path: None,
            reply: Reply::None,
            ranges: Ranges::default(),
            asked_at: Instant::ZERO,
            resend_at: Instant::FAR_FUTURE,
            tls: None,
        }
    }

    /// Whether it takes part: not closed, not failed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed | State::Failed)
    }

    /// Whether its handshakes are not over yet.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        matches!(self.state, State::SynSent | State::Handshaking)
    }

    /// Whether a reply is to come.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.path.is_some() && self.state != State::Failed
    }

    /// The path whose reply is to come, or has failed.
    #[must_use]
    pub const fn path(&self) -> Option<u32> {
        self.path
    }

    /// Sends the SYN of a closed connection.
    pub fn open(&mut self, now: Instant, world: &mut impl World) {
        debug_assert!(!self.is_open(), "opened twice");
        self.state = State::SynSent;
        self.reply = Reply::None;
        self.ranges.clear();
        self.recent = 0;
        self.has_timestamps = true;
        self.replies = 0;
        self.tls = None;
        self.asked_at = now;
        self.send_syn(now, world);
        self.send_next = self.send_next.wrapping_add(1);
        self.expect_answer(now, 1);
    }

    /// Asks, if it stands and nothing is asked: its turn has come.
    pub fn start(&mut self, now: Instant, world: &mut impl World) {
        if self.state == State::Established
            && self.path.is_none()
            && let Some(path) = world.next_path()
            && let Err(fault) = self.ask(now, path, world)
        {
            self.give_up(now, fault, world);
        }
    }

    /// The RST that ends an open connection.
    pub fn abort(&mut self, now: Instant, world: &mut impl World) {
        if self.is_open() && self.state != State::SynSent {
            let flags = TcpFlags::RST.union(TcpFlags::ACK);
            let transmit = self.segment(now, flags);
            world.send(transmit);
        }
        self.state = State::Failed;
    }

    /// The same, and it may be opened again.
    pub fn leave(&mut self, now: Instant, world: &mut impl World) {
        self.abort(now, world);
        self.path = None;
        self.close();
    }

    /// Sends again what was not answered in time.
    pub fn handle_time(&mut self, now: Instant, world: &mut impl World) {
        if self.state == State::Handshaking && now.since(self.asked_at) > HANDSHAKE_MAX {
            world.explain("not over in time".to_owned());
            return self.give_up(now, Fault::Tls(TlsFault::Handshake), world);
        }
        if self.attempts == 0 || now < self.resend_at || !self.is_open() {
            return;
        }
        if self.attempts >= ATTEMPTS_MAX {
            return self.fail(Fault::Silent, world);
        }
        let attempts = self.attempts;
        if self.state == State::SynSent {
            self.send_next = self.send_next.wrapping_add(u32::MAX);
            self.send_syn(now, world);
            self.send_next = self.send_next.wrapping_add(1);
        } else if let Some(mut tls) = self.tls.take() {
            let bytes = u32::try_from(tls.unacknowledged.len()).unwrap_or(0);
            self.send_next = self.send_next.wrapping_add(bytes.wrapping_neg());
            let unacknowledged = std::mem::take(&mut tls.unacknowledged);
            self.send_sealed(now, &unacknowledged, self.path, &mut tls, world);
            self.tls = Some(tls);
        } else if let Some(path) = self.path {
            let start = request_bytes(path, world);
            self.send_next = self.send_next.wrapping_add(start.wrapping_neg());
            self.send_request(now, path, world);
        }
        self.expect_answer(now, attempts.saturating_add(1));
    }

    /// Takes a segment of the server.
    pub fn handle_segment(&mut self, now: Instant, arrival: &Arrival<'_>, world: &mut impl World) {
        match self.state {
            State::Closed | State::Failed => {}
            State::SynSent => self.handle_answer_to_syn(now, arrival, world),
            State::Handshaking | State::Established | State::Closing => {
                self.handle_established(now, arrival, world);
            }
        }
    }

    fn handle_answer_to_syn(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        world: &mut impl World,
    ) {
        let header = &arrival.header;
        if !header.flags.contains(TcpFlags::ACK) || header.acknowledgment != self.send_next {
            return;
        }
        if header.flags.contains(TcpFlags::RST) {
            world.on(Event::Refused);
            self.resend_at = now + REFUSED_WAIT;
            self.attempts = 1;
            return;
        }
        if !header.flags.contains(TcpFlags::SYN) {
            return;
        }
        self.state = State::Established;
        self.receive_next = header.sequence.wrapping_add(1);
        self.has_timestamps = header.options.timestamps.is_some();
        self.recent = header.options.timestamps.map_or(0, |it| it.value);
        self.answered();
        world.on(Event::Connected);
        let outcome = if world.tls().is_some() {
            self.begin_handshake(now, world)
        } else {
            self.ask_again_or_next(now, world)
        };
        if let Err(fault) = outcome {
            self.give_up(now, fault, world);
        }
    }

    /// Asks what it had asked when the server closed, or for the next path; or acknowledges.
    fn ask_again_or_next(&mut self, now: Instant, world: &mut impl World) -> Result<(), Fault> {
        let again = self.path.take();
        match again.or_else(|| world.next_path()) {
            Some(path) => self.ask(now, path, world),
            None => {
                self.acknowledge(now, None, world);
                Ok(())
            }
        }
    }

    fn handle_established(&mut self, now: Instant, arrival: &Arrival<'_>, world: &mut impl World) {
        let header = &arrival.header;
        let offset = header.sequence.distance(self.receive_next);
        if header.flags.contains(TcpFlags::RST) {
            // RFC 5961 s3: a reset elsewhere in the window may be anybody's.
            if offset == 0 {
                self.handle_reset(world);
            }
            return;
        }
        if header.flags.contains(TcpFlags::SYN) {
            return self.acknowledge(now, None, world);
        }
        if offset <= 0
            && let Some(timestamps) = header.options.timestamps
            && timestamps.value.wrapping_sub(self.recent) < 1 << 31
        {
            self.recent = timestamps.value;
        }
        if header.acknowledgment == self.send_next {
            self.answered();
        }
        let has_fin = header.flags.contains(TcpFlags::FIN);
        if arrival.bytes == 0 && !has_fin {
            if offset < 0 {
                // A probe of an idle connection: whoever does not answer is taken for gone (RFC 9293 s3.8.4).
                self.acknowledge(now, None, world);
            }
            return;
        }
        let outcome = self.handle_text(now, arrival, world);
        match outcome {
            Err(fault) => self.give_up(now, fault, world),
            Ok(Placed::InOrder) if has_fin => self.handle_fin(now, world),
            Ok(Placed::InOrder) => {
                if let Err(fault) = self.go_on(now, world) {
                    self.give_up(now, fault, world);
                }
            }
            Ok(Placed::Beyond) => self.acknowledge(now, None, world),
            Ok(Placed::Before) => {
                let end = header.sequence.wrapping_add(arrival.bytes);
                self.acknowledge(now, Some((header.sequence, end)), world);
            }
        }
    }

    /// Finds the text its place and consumes what is in order.
    fn handle_text(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        world: &mut impl World,
    ) -> Result<Placed, Fault> {
        let start = arrival.header.sequence;
        let end = start.wrapping_add(arrival.bytes);
        let offset = start.distance(self.receive_next);
        if self.is_sampled && self.tls.is_none() {
            // Here and below a `usize` has 32 bits at least.
            let is_seen = arrival.seen.len() == arrival.bytes as usize;
            if !is_seen && world.is_whole(arrival.frame_start) {
                return Err(Fault::Bytes);
            }
            self.compare(offset, arrival.seen, world)?;
        }
        if offset > 0 {
            let is_in_window = end.distance(self.receive_next).cast_unsigned() <= WINDOW_BYTES;
            let is_kept = is_in_window && self.is_body_placed() && self.ranges.insert(start, end);
            world.on(if is_kept {
                Event::OutOfOrder
            } else {
                Event::Unplaced
            });
            return Ok(Placed::Beyond);
        }
        let old_bytes = offset.unsigned_abs();
        if old_bytes > arrival.bytes || (old_bytes == arrival.bytes && arrival.bytes > 0) {
            world.on(Event::Duplicate);
            return Ok(Placed::Before);
        }
        let whole = Piece {
            bytes: arrival.bytes,
            seen: arrival.seen,
        };
        self.consume(now, whole.after(old_bytes), world)?;
        let mut is_gap_filled = false;
        while let Some(end) = self.ranges.take_reached(self.receive_next) {
            let bytes = u32::try_from(end.distance(self.receive_next)).unwrap_or(0);
            self.consume(now, Piece { bytes, seen: &[] }, world)?;
            is_gap_filled = true;
        }
        if is_gap_filled {
            world.on(Event::GapFilled);
        }
        Ok(Placed::InOrder)
    }

    /// Whether bytes behind a gap can be kept: those of a sampled reply have to be compared when
    /// they come, so the place of its body must be known. Over TLS they cannot where records are
    /// opened, nor can those before the first head: handshake and tickets are to be read.
    fn is_body_placed(&self) -> bool {
        match (&self.tls, &self.reply) {
            (None, Reply::Body { .. }) => true,
            (None, _) => !self.is_sampled,
            (Some(tls), Reply::Body { .. }) => !tls.is_opened(),
            (Some(tls), Reply::Head(_)) => !tls.is_opened() && self.replies > 0,
            (Some(_), Reply::None) => false,
        }
    }

    /// Compares the part of a segment of a sampled reply that belongs to its body, wherever it is.
    fn compare(&self, offset: i32, seen: &[u8], world: &mut impl World) -> Result<(), Fault> {
        let (
            Some(path),
            &Reply::Body {
                length_bytes,
                left_bytes,
            },
        ) = (self.path, &self.reply)
        else {
            return Ok(());
        };
        let reached = i64::try_from(length_bytes - left_bytes).unwrap_or(i64::MAX);
        let offset = reached.saturating_add(offset.into());
        // What lies before the body is the head, or belongs to an earlier reply.
        let skip = usize::try_from(offset.saturating_neg().max(0)).unwrap_or(usize::MAX);
        let bytes = seen.get(skip..).unwrap_or_default();
        let offset = u64::try_from(offset.max(0)).unwrap_or(0);
        if bytes.is_empty() || world.is_content(path, offset, bytes) {
            Ok(())
        } else {
            Err(Fault::Bytes)
        }
    }

    /// Takes bytes that are in order.
    fn consume(
        &mut self,
        now: Instant,
        piece: Piece<'_>,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        self.receive_next = self.receive_next.wrapping_add(piece.bytes);
        let Some(mut tls) = self.tls.take() else {
            return self.consume_text(now, piece, world);
        };
        let result = self.consume_records(now, piece, &mut tls, world);
        self.tls = Some(tls);
        result
    }

    /// Takes bytes of HTTP.
    fn consume_text(
        &mut self,
        now: Instant,
        piece: Piece<'_>,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let mut rest = piece;
        if let Reply::Head(kept) = &mut self.reply
            && rest.bytes > 0
        {
            if kept.is_empty() {
                world.on(Event::FirstByte(now.since(self.asked_at)));
            }
            let Some((head, behind)) = Reply::take_head(kept, rest)? else {
                return Ok(());
            };
            self.take_head(head, world)?;
            rest = behind;
            if self.is_sampled {
                self.compare(0, rest.seen, world)?;
            }
        }
        self.consume_body(now, rest.bytes.into(), world)
    }

    /// Takes what a head says.
    fn take_head(&mut self, head: Head, world: &mut impl World) -> Result<(), Fault> {
        let path = self.path.ok_or(Fault::Unasked)?;
        if world.object_bytes(path) != head.body_bytes {
            return Err(Fault::Length);
        }
        if head.closes {
            self.state = State::Closing;
        }
        self.reply = Reply::Body {
            length_bytes: head.body_bytes,
            left_bytes: head.body_bytes,
        };
        Ok(())
    }

    fn consume_body(
        &mut self,
        now: Instant,
        bytes: u64,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let Reply::Body {
            length_bytes,
            left_bytes,
        } = &mut self.reply
        else {
            return if bytes == 0 {
                Ok(())
            } else {
                Err(Fault::Unasked)
            };
        };
        let left = left_bytes.checked_sub(bytes).ok_or(Fault::Unasked)?;
        *left_bytes = left;
        let length_bytes = *length_bytes;
        world.on(Event::Body(u32::try_from(bytes).unwrap_or(u32::MAX)));
        if left == 0 {
            self.reply = Reply::None;
            self.path = None;
            self.replies = self.replies.saturating_add(1);
            world.on(Event::Replied(length_bytes, now.since(self.asked_at)));
        }
        Ok(())
    }

    /// After text in order: asks, or acknowledges.
    fn go_on(&mut self, now: Instant, world: &mut impl World) -> Result<(), Fault> {
        if self.state == State::Established && matches!(self.reply, Reply::None) {
            return self.ask_again_or_next(now, world);
        }
        self.acknowledge(now, None, world);
        Ok(())
    }

    /// A server that closes between two replies resets if the next request has come already.
    fn handle_reset(&mut self, world: &mut impl World) {
        if self.replies > 0 && self.is_between_replies() {
            self.close();
            return world.on(Event::ClosedByServer);
        }
        self.fail(Fault::Reset, world);
    }

    fn is_between_replies(&self) -> bool {
        let is_amid_head = match &self.reply {
            Reply::None => false,
            Reply::Head(kept) => !kept.is_empty(),
            Reply::Body { .. } => return false,
        };
        let is_amid_record = self.tls.as_ref().is_some_and(|tls| tls.is_amid_record());
        !is_amid_head && !is_amid_record && self.state != State::Handshaking
    }

    fn handle_fin(&mut self, now: Instant, world: &mut impl World) {
        if !self.is_between_replies() {
            return self.give_up(now, Fault::Closed, world);
        }
        // A request that met the FIN on its way is asked again: its path is kept.
        self.receive_next = self.receive_next.wrapping_add(1);
        let flags = TcpFlags::FIN.union(TcpFlags::ACK);
        let transmit = self.segment(now, flags);
        world.send(transmit);
        self.close();
        world.on(Event::ClosedByServer);
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.tls = None;
        self.send_next = self.send_next.wrapping_add(REOPEN_STEP);
        self.answered();
    }

    /// Ends a connection that the server still has.
    fn give_up(&mut self, now: Instant, fault: Fault, world: &mut impl World) {
        self.abort(now, world);
        self.fail(fault, world);
    }

    fn fail(&mut self, fault: Fault, world: &mut impl World) {
        self.state = State::Failed;
        self.tls = None;
        self.answered();
        world.on(Event::Failed(fault));
    }

    fn expect_answer(&mut self, now: Instant, attempts: u8) {
        self.attempts = attempts;
        let doublings = attempts.saturating_sub(1).min(ATTEMPTS_MAX);
        let wait = RESEND_FIRST.saturating_mul(1 << doublings);
        self.resend_at = now + wait.min(RESEND_MAX);
    }

    fn answered(&mut self) {
        self.attempts = 0;
        self.resend_at = Instant::FAR_FUTURE;
        if let Some(tls) = &mut self.tls {
            tls.unacknowledged = Vec::new();
        }
    }

    fn ask(&mut self, now: Instant, path: u32, world: &mut impl World) -> Result<(), Fault> {
        self.path = Some(path);
        self.reply = Reply::Head(Vec::new());
        self.asked_at = now;
        let Some(mut tls) = self.tls.take() else {
            // A head begins a frame: the server has nothing else to send.
            world.shorten(self.receive_next.wrapping_add(1));
            self.send_request(now, path, world);
            self.expect_answer(now, 1);
            return Ok(());
        };
        let record = tls
            .keys()
            .and_then(|keys| keys.seal(tls::APPLICATION_DATA, world.request(path).as_bytes()));
        let record = record.ok_or(Fault::Tls(TlsFault::Open))?;
        // Frames are whole until the first head.
        if self.replies > 0 {
            self.choose_frames(&mut tls, world);
        }
        self.send_sealed(now, &record, Some(path), &mut tls, world);
        self.tls = Some(tls);
        Ok(())
    }

    fn send_request(&mut self, now: Instant, path: u32, world: &mut impl World) {
        let transmit = self.segment(now, TcpFlags::ACK.union(TcpFlags::PSH));
        let bytes = request_bytes(path, world);
        world.send(Transmit {
            request: Some(path),
            ..transmit
        });
        self.send_next = self.send_next.wrapping_add(bytes);
    }

    fn send_syn(&mut self, now: Instant, world: &mut impl World) {
        let mut transmit = self.segment(now, TcpFlags::SYN);
        transmit.segment.window = u16::MAX;
        transmit.segment.acknowledgment = SeqNumber(0);
        transmit.segment.options.mss = Some(world.mss());
        transmit.segment.options.window_scale = Some(WINDOW_SCALE);
        transmit.segment.options.sack_permitted = true;
        world.send(transmit);
    }

    fn acknowledge(
        &mut self,
        now: Instant,
        duplicate: Option<(SeqNumber, SeqNumber)>,
        world: &mut impl World,
    ) {
        let mut transmit = self.segment(now, TcpFlags::ACK);
        transmit.segment.options.sack = self.ranges.blocks(duplicate);
        world.send(transmit);
    }

    fn segment(&self, now: Instant, flags: TcpFlags) -> Transmit {
        let timestamps = Timestamps {
            value: timestamp(now),
            echo: self.recent,
        };
        let segment = TcpRepr {
            sequence: self.send_next,
            acknowledgment: self.receive_next,
            flags,
            window: WINDOW_FIELD,
            options: TcpOptions {
                timestamps: self.has_timestamps.then_some(timestamps),
                ..TcpOptions::default()
            },
            ..TcpRepr::default()
        };
        Transmit {
            segment,
            request: None,
            sealed: None,
        }
    }
}

fn request_bytes(path: u32, world: &impl World) -> u32 {
    u32::try_from(world.request(path).len()).expect("invariant: requests fit a segment")
}

/// Where the text of a segment belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Placed {
    /// It was next, in part at least.
    InOrder,
    /// Behind a gap.
    Beyond,
    /// It had all come before.
    Before,
}

/// The timestamp clock: milliseconds (RFC 7323 s5.4), not from 0.
#[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
const fn timestamp(now: Instant) -> u32 {
    (now.as_millis() as u32).wrapping_add(1 << 20)
}
