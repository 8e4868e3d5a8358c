//! One client's side of TLS: its bytes on their way to the handshake, or to be opened.
//!
//! It refuses to shake hands: whole records go out in plans, and keys come back. Bounds:
//! [`crate::client::INPUT_BYTES_MAX`] bytes not yet opened, [`HELLOS_QUEUED_MAX`] handshakes that
//! wait for their turn, and [`HANDSHAKES_MAX`] that were begun.

use record::{AlertDescription, CONTENT_BYTES_MAX, HEADER_BYTES, Inbound, KEY_UPDATE, Version};

use crate::input::InputBuffer;
use crate::stream_map::RECORDS_PER_FETCH_MAX;
use crate::{Direction, TlsPlan, TlsToken};

/// Handshakes begun and not complete, of all clients. Before one more begins, the one that began
/// first among those that wait for their client is reset: a flood of 10,000 a second that never
/// finish leaves each client a round trip of 100 ms.
pub(crate) const HANDSHAKES_MAX: usize = 1024;

/// Clients whose first record waits to be looked at. Over this a newcomer is reset: those in the
/// queue would wait too long. With a quarter of a core and an ECDSA key (80 us each, so some 3,000
/// a second) the last one waits 170 ms, with RSA of 2048 bits 0.7 s.
pub(crate) const HELLOS_QUEUED_MAX: usize = 512;

/// From this many on, SYNs to the port of TLS are not answered. A client's TCP sends its SYN again
/// after a second (RFC 6298 s2), so what a burst is too large for comes later instead of being
/// reset, and costs one frame. The other half of the queue is for clients whose SYN was answered
/// before: those of 85 ms at 3,000 a second.
pub(crate) const HELLOS_QUEUED_BEFORE_SYNS_ARE_DROPPED: usize = HELLOS_QUEUED_MAX / 2;

/// Content type `application_data(23)`.
const TYPE_APPLICATION_DATA: u8 = 23;

/// Most bytes of a record that is not sealed, header included.
const PLAIN_RECORD_BYTES_MAX: usize = HEADER_BYTES + CONTENT_BYTES_MAX;

/// More records than one fetch claims: text, one record a run, and a slot of an object's.
const KEY_MARGIN_RECORDS: u64 = 2 * RECORDS_PER_FETCH_MAX as u64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tls {
    /// Bytes that arrived and are not opened: the beginning of a record, or more.
    pub(crate) sealed: InputBuffer,
    pub(crate) phase: Phase,
    /// A plan is out.
    asked: Option<Asked>,
    /// The client's next key is needed.
    pub(crate) wants_receive_key: bool,
    /// Our next key is needed.
    pub(crate) wants_send_key: bool,
    /// Records one key of ours seals at most.
    key_records_max: u64,
    /// The client is to be told when nothing more comes.
    owes_farewell: bool,
    /// A second handshake was asked for, and refused.
    pub(crate) has_refused_renegotiation: bool,
}

/// How far the client came.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Shaking hands.
    Shaking(Stage),
    /// Keys are in use. An [`Inbound`] is large, and only one in a thousand clients has none.
    Open(Inbound),
    /// Over: what still comes is thrown away.
    Over,
}

/// How far a handshake came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Its first record is not here yet, or not whole.
    Arriving,
    /// Its first record waits for its turn; nothing was computed for it yet.
    Queued,
    /// Whoever shakes hands had a record of it, and has said nothing: the hello is cut into
    /// several records.
    Begun,
    /// We have said something. What it cost is lost if the handshake does not go on, and what
    /// is left to do is cheap.
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
            phase: Phase::Shaking(Stage::Arriving),
            asked: None,
            wants_receive_key: false,
            wants_send_key: false,
            key_records_max: 0,
            owes_farewell: false,
            has_refused_renegotiation: false,
        }
    }

    /// The handshake is complete.
    pub(crate) fn open(&mut self, inbound: Inbound, key_records_max: u64) {
        self.phase = Phase::Open(inbound);
        self.key_records_max = key_records_max.max(2 * KEY_MARGIN_RECORDS);
        self.owes_farewell = true;
    }

    /// Nothing more is opened or said.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Over;
        self.sealed.discard();
        self.owes_farewell = false;
    }

    /// Whether a `close_notify` is still owed; from now on it is not.
    pub(crate) fn take_farewell(&mut self) -> bool {
        std::mem::take(&mut self.owes_farewell)
    }

    /// Whether the client was told that nothing more comes, or will be by what is queued.
    pub(crate) const fn has_said_farewell(&self) -> bool {
        self.is_open() && !self.owes_farewell
    }

    /// Whether keys are in use.
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open(_))
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
        number + KEY_MARGIN_RECORDS <= self.key_records_max
    }

    /// Whether less than half of what our key may seal is left from record `number` on, and there
    /// will be no other key: TLS 1.2 has no KeyUpdate.
    pub(crate) fn is_half_used(&self, number: u64) -> bool {
        self.version() == Some(Version::Tls12) && number > self.key_records_max / 2
    }

    /// Whether an answer must come before anything more can be understood.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.wants_receive_key || matches!(self.asked, Some(Asked::Handshake))
    }

    /// Whether what the client said already may still lead to something.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_waiting() || self.has_record() == Ok(true)
    }

    /// Whether a whole record waits.
    ///
    /// # Errors
    /// What the client is to be told of its header.
    pub(crate) fn has_record(&self) -> Result<bool, AlertDescription> {
        let Some(length) = record::peek_record(self.sealed.as_slice())? else {
            return Ok(false);
        };
        // RFC 8446 s5.1: "The length MUST NOT exceed 2^14 bytes. An endpoint that receives a
        // record that exceeds this length MUST terminate the connection with a "record_overflow"
        // alert." What is sealed may be longer: of TLS 1.3 it has the type of application data;
        // of TLS 1.2 it is a Finished, some 40 bytes.
        let is_sealed = self.sealed.as_slice().first() == Some(&TYPE_APPLICATION_DATA);
        if self.is_shaking() && !is_sealed && length > PLAIN_RECORD_BYTES_MAX {
            return Err(AlertDescription::RecordOverflow);
        }
        Ok(length <= self.sealed.len())
    }

    /// What is wanted of whoever shakes hands, if nothing is out. The client's key comes before
    /// ours, which is wanted because of it.
    pub(crate) fn take_plan(&mut self, token: TlsToken) -> Option<TlsPlan> {
        if self.asked.is_some() {
            return None;
        }
        let plan = match self.phase {
            Phase::Shaking(_) => TlsPlan::Handshake {
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

    /// Takes the first whole record out, or, if there can be none, all that there is.
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

    /// A plan was answered. Returns which key it was, if it was one.
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

    /// How far the handshake came, if it is not over.
    pub(crate) const fn stage(&self) -> Option<Stage> {
        match self.phase {
            Phase::Shaking(stage) => Some(stage),
            Phase::Open(_) | Phase::Over => None,
        }
    }

    /// Whether the handshake is not over.
    pub(crate) const fn is_shaking(&self) -> bool {
        self.stage().is_some()
    }

    /// Whether a handshake was begun and waits for nothing but its client.
    pub(crate) fn waits_for_client(&self) -> bool {
        let is_begun = matches!(self.stage(), Some(Stage::Begun | Stage::Answered));
        // A header that is none waits for whoever shakes hands to refuse it.
        is_begun && self.asked.is_none() && self.has_record() == Ok(false)
    }

    /// Whether it speaks plain HTTP to the wrong port: a method's first letter instead of a
    /// record's type.
    pub(crate) fn is_plain_http(&self) -> bool {
        self.stage() == Some(Stage::Arriving)
            && self
                .sealed
                .as_slice()
                .first()
                .is_some_and(u8::is_ascii_uppercase)
    }
}

/// An alert as it leaves before there are keys (RFC 8446 s5.1): a plain record.
pub(crate) fn plain_alert(description: AlertDescription) -> [u8; 7] {
    let [level, number] = record::Alert::fatal(description).to_bytes();
    [21, 3, 3, 0, 2, level, number]
}

/// The message before our records under a new key.
pub(crate) const KEY_UPDATE_TEXT: &[u8] = &KEY_UPDATE;
