//! The TLS state of one client: its received bytes before the handshaker gets them, or before they
//! are opened.
//!
//! It makes no handshake itself: whole records go out in plans, and keys come back. Bounds:
//! [`crate::client::INPUT_BYTES_MAX`] bytes not yet opened, [`HELLOS_QUEUED_MAX`] handshakes in the
//! queue, and [`HANDSHAKES_MAX`] that were begun.

use record::{AlertDescription, CONTENT_BYTES_MAX, HEADER_BYTES, Inbound, KEY_UPDATE, Version};
use tcp::StreamOffset;

use crate::input::InputBuffer;
use crate::stream_map::RECORDS_PER_FETCH_MAX;
use crate::{Direction, TlsPlan, TlsSession, TlsToken};

/// Handshakes begun and not complete, of all clients. Before one more begins, the oldest one that is
/// waiting for its client is reset. Under a flood of 10,000 handshakes a second that never complete,
/// each client still has 100 ms for its next message.
pub(crate) const HANDSHAKES_MAX: usize = 1024;

/// ClientHellos that may wait in the queue. When it is full, a client whose ClientHello arrives is
/// reset, because it would wait too long. With a quarter of a core and an ECDSA key (80 us each, so
/// some 3,000 a second) the last one in the queue waits 170 ms, with RSA of 2048 bits 0.7 s.
pub(crate) const HELLOS_QUEUED_MAX: usize = 512;

/// With this many ClientHellos in the queue, SYNs to the HTTPS port are dropped. A client's TCP
/// sends its SYN again after a second (RFC 6298 s2), so the excess clients of a burst connect later
/// instead of being reset, and each costs us one frame. The other half of the queue is for clients
/// whose SYN was answered before: at 3,000 a second, those of 85 ms.
pub(crate) const HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED: usize = HELLOS_QUEUED_MAX / 2;

/// Content type `application_data(23)`.
const TYPE_APPLICATION_DATA: u8 = 23;

/// Most bytes of a plaintext record, header included.
const PLAIN_RECORD_BYTES_MAX: usize = HEADER_BYTES + CONTENT_BYTES_MAX;

/// More records than one fetch can claim: one for each run of text, and those of one slot of an
/// object.
const KEY_MARGIN_RECORDS: u64 = 2 * RECORDS_PER_FETCH_MAX as u64;
/// The same for a client that takes short records only, so that text is cut into several: a frame of
/// 64 KiB has at most so many, of [`record::ClientLimits`]' least content.
const KEY_MARGIN_SHORT_RECORDS: u64 = 1024;
const _: () =
    assert!((1 << 16) / (63 + 21) + RECORDS_PER_FETCH_MAX as u64 <= KEY_MARGIN_SHORT_RECORDS);

/// See the module.
#[derive(Debug)]
pub(crate) struct Tls {
    /// Bytes received and not yet opened: a part of a record, or more.
    pub(crate) sealed: InputBuffer,
    pub(crate) phase: Phase,
    /// The plan the handshaker has not answered yet.
    asked: Option<Asked>,
    /// The client's next key is needed.
    pub(crate) wants_receive_key: bool,
    /// Our next key is needed.
    pub(crate) wants_send_key: bool,
    /// Most records that one key of ours seals.
    key_records_max: u64,
    /// More records than one fetch can claim.
    key_margin: u64,
    /// A `close_notify` must be sent before our FIN.
    owes_close_notify: bool,
    /// The client asked for renegotiation, and was refused.
    pub(crate) has_refused_renegotiation: bool,
    /// Where what was read of the stream ends, some of it maybe sealed and not claimed yet.
    pub(crate) read_to: StreamOffset,
    /// What the handshake agreed on; `None`: it is not complete.
    pub(crate) session: Option<TlsSession>,
}

/// The phase of a TLS connection.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The handshake is under way.
    Handshaking(Stage),
    /// Keys are in use. An [`Inbound`] is large, but all except one in a thousand clients have one.
    Open(Inbound),
    /// Over: further input is discarded.
    Over,
}

/// The stage of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The first record is not complete yet.
    Arriving,
    /// The first record waits in the queue; nothing was computed for it yet.
    Queued,
    /// The handshaker got a record and has not answered: the ClientHello is cut into several
    /// records.
    Begun,
    /// We have answered the ClientHello. The costly part is done, and would be lost if the
    /// handshake did not complete; the rest is cheap.
    Answered,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Handshake,
    Key(Direction),
}

impl Tls {
    pub(crate) fn new() -> Self {
        Self {
            sealed: InputBuffer::default(),
            phase: Phase::Handshaking(Stage::Arriving),
            asked: None,
            wants_receive_key: false,
            wants_send_key: false,
            key_records_max: 0,
            key_margin: KEY_MARGIN_RECORDS,
            owes_close_notify: false,
            has_refused_renegotiation: false,
            read_to: StreamOffset::ZERO,
            session: None,
        }
    }

    /// The handshake is complete.
    pub(crate) fn open(
        &mut self,
        inbound: Inbound,
        key_records_max: u64,
        content_bytes_max: usize,
    ) {
        self.phase = Phase::Open(inbound);
        if content_bytes_max < http::REPLY_TEXT_BYTES_MAX {
            self.key_margin = KEY_MARGIN_SHORT_RECORDS;
        }
        self.key_records_max = key_records_max.max(2 * self.key_margin);
        self.owes_close_notify = true;
    }

    /// Opens and sends nothing more.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Over;
        self.sealed.discard();
        self.owes_close_notify = false;
    }

    /// Whether a `close_notify` must still be queued; the caller queues it.
    pub(crate) fn take_close_notify(&mut self) -> bool {
        std::mem::take(&mut self.owes_close_notify)
    }

    /// Whether our `close_notify` was sent or queued.
    pub(crate) const fn has_queued_close_notify(&self) -> bool {
        self.is_open() && !self.owes_close_notify
    }

    /// Whether keys are in use.
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open(_))
    }

    /// Whether the client has sent its `close_notify`.
    pub(crate) const fn is_input_closed(&self) -> bool {
        matches!(&self.phase, Phase::Open(inbound) if inbound.is_closed())
    }

    /// The version spoken, once keys are in use.
    pub(crate) fn version(&self) -> Option<Version> {
        match &self.phase {
            Phase::Open(inbound) => Some(inbound.version()),
            _ => None,
        }
    }

    /// Whether the key may seal what one fetch claims from record `number` on.
    pub(crate) const fn may_seal(&self, number: u64) -> bool {
        number + self.key_margin <= self.key_records_max
    }

    /// Whether record `number` is beyond half of what our key may seal and no other key can follow:
    /// TLS 1.2 has no KeyUpdate.
    pub(crate) fn is_half_used(&self, number: u64) -> bool {
        self.version() == Some(Version::Tls12) && number > self.key_records_max / 2
    }

    /// Whether an answer of the handshaker must come before the next record can be opened.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.wants_receive_key || matches!(self.asked, Some(Asked::Handshake))
    }

    /// Whether bytes the client has sent already may still make a request.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_waiting() || self.has_record() == Ok(true)
    }

    /// Whether a whole record was received.
    ///
    /// # Errors
    /// The alert to send if the record's header is not valid.
    pub(crate) fn has_record(&self) -> Result<bool, AlertDescription> {
        let Some(length) = record::peek_record(self.sealed.as_slice())? else {
            return Ok(false);
        };
        // RFC 8446 s5.1: "The length MUST NOT exceed 2^14 bytes. An endpoint that receives a
        // record that exceeds this length MUST terminate the connection with a "record_overflow"
        // alert." What is sealed may be longer: of TLS 1.3 it has the type of application data;
        // of TLS 1.2 it is a Finished, some 40 bytes.
        let is_sealed = self.sealed.as_slice().first() == Some(&TYPE_APPLICATION_DATA);
        if self.is_handshaking() && !is_sealed && length > PLAIN_RECORD_BYTES_MAX {
            return Err(AlertDescription::RecordOverflow);
        }
        Ok(length <= self.sealed.len())
    }

    /// The next plan for the handshaker, unless one is unanswered. The client's next key comes
    /// before ours, which is needed because of it.
    pub(crate) fn take_plan(&mut self, token: TlsToken) -> Option<TlsPlan> {
        if self.asked.is_some() {
            return None;
        }
        let plan = match self.phase {
            Phase::Handshaking(_) => TlsPlan::Handshake {
                token,
                record: self.take_record()?,
            },
            Phase::Open(_) if self.wants_receive_key => TlsPlan::NextKey {
                token,
                direction: Direction::Receive,
            },
            Phase::Open(_) if self.wants_send_key => TlsPlan::NextKey {
                token,
                direction: Direction::Send,
            },
            Phase::Open(_) | Phase::Over => return None,
        };
        self.asked = Some(match plan {
            TlsPlan::NextKey { direction, .. } => Asked::Key(direction),
            _ => Asked::Handshake,
        });
        Some(plan)
    }

    /// Takes the first whole record out, or all bytes if their header is not valid.
    fn take_record(&mut self) -> Option<Vec<u8>> {
        let sealed = self.sealed.as_slice();
        let length = match record::peek_record(sealed) {
            Ok(length) => length?,
            Err(_) => sealed.len(),
        };
        let record = sealed.get(..length)?.to_vec();
        self.sealed.take(length);
        Some(record)
    }

    /// The plan was answered. Returns which key it asked for, if it asked for one.
    pub(crate) fn take_answer(&mut self) -> Option<Direction> {
        match self.asked.take()? {
            Asked::Handshake => None,
            Asked::Key(direction) => {
                match direction {
                    Direction::Receive => self.wants_receive_key = false,
                    Direction::Send => self.wants_send_key = false,
                }
                Some(direction)
            }
        }
    }

    /// The stage of the handshake, if it is not over.
    pub(crate) const fn stage(&self) -> Option<Stage> {
        match self.phase {
            Phase::Handshaking(stage) => Some(stage),
            Phase::Open(_) | Phase::Over => None,
        }
    }

    /// Whether the handshake is under way.
    pub(crate) const fn is_handshaking(&self) -> bool {
        self.stage().is_some()
    }

    /// Whether a handshake was begun and is waiting for its client only.
    pub(crate) fn waits_for_client(&self) -> bool {
        let is_begun = matches!(self.stage(), Some(Stage::Begun | Stage::Answered));
        // The handshaker still has to refuse a header that is not valid.
        is_begun && self.asked.is_none() && self.has_record() == Ok(false)
    }

    /// Whether the client sends plain HTTP to the HTTPS port: the first byte is an upper-case
    /// letter, as of a method, instead of a record's type.
    pub(crate) fn is_plain_http(&self) -> bool {
        self.stage() == Some(Stage::Arriving)
            && self
                .sealed
                .as_slice()
                .first()
                .is_some_and(u8::is_ascii_uppercase)
    }
}

/// An alert record before there are keys, in plaintext (RFC 8446 s5.1).
pub(crate) fn plain_alert(description: AlertDescription) -> [u8; 7] {
    let [level, number] = record::Alert::fatal(description).to_bytes();
    [21, 3, 3, 0, 2, level, number]
}

/// The KeyUpdate message, which precedes our records under a new key.
pub(crate) const KEY_UPDATE_TEXT: &[u8] = &KEY_UPDATE;
