//! A stream whose frames are shortened: heads are decrypted, the rest is counted by record headers.
//!
//! Between two heads the BPF program's numbers are enough. It is ahead of what is read here by the
//! frames that wait; so what has come in order is what it has counted less what lies between, and a
//! reply is complete when the stream has come in order up to the next header and the sum fits: no
//! request is under way then, so no record follows. Within a record the count is up to a record's
//! overhead low; at its end it is right.
//!
//! Two bytes more than the reply are taken for the `close_notify` of a server that closes behind it:
//! nothing is asked on that connection any more, and it refuses all but a FIN there.
//!
//! It refuses heads that go on beyond what is seen of a frame, data that nobody asked for, sums
//! that do not fit. Bounded by [`KEPT_BYTES_MAX`] of stream before a head is complete; nothing is kept
//! after.

use wire::SeqNumber;

use super::super::reply::{Head, Piece, parse_head};
use super::keys::OVERHEAD_BYTES;
use super::{Fault, HEADER_BYTES, Keys, TlsFault, Watched, parse_header, take_content};

/// Most bytes of the stream from the last reply's end to the end of a head: a record, tickets.
pub(crate) const KEPT_BYTES_MAX: usize = 1 << 17;

/// Most bytes of a header that is not complete.
const PARTIAL_HEADER_MAX: i32 = 4;

/// The content of the alert that may follow the last reply: level and description.
const ALERT_BYTES: u64 = 2;

/// A followed stream.
#[derive(Debug)]
pub(crate) struct Followed {
    /// A record's header is here, and all before is accounted for.
    base: SeqNumber,
    /// Records before it.
    records: u32,
    /// What has come since, while a head is not complete: all of it.
    kept: Vec<u8>,
    /// Whether anything of a head was found.
    has_begun: bool,
    /// Plaintext of the reply that was counted up to `base`.
    counted_bytes: u64,
    /// Plaintext of the reply: its head, and its body.
    head_bytes: u64,
    body_bytes: u64,
    /// Body that was reported.
    reported_bytes: u64,
}

/// What was found where a head may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Nothing new of a head.
    Nothing,
    /// Its first bytes, but not all of it.
    Begun,
    /// All of it; whether these are its first bytes.
    Head(Head, bool),
}

/// What has come of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// Bytes of body more.
    pub(crate) body_bytes: u64,
    /// Records more.
    pub(crate) records: u32,
    pub(crate) is_complete: bool,
    /// An alert follows the reply: the server closes.
    pub(crate) has_alert: bool,
}

impl Followed {
    /// A stream at a record's header behind so many records.
    pub(crate) const fn new(base: SeqNumber, records: u32) -> Self {
        Self {
            base,
            records,
            kept: Vec::new(),
            has_begun: false,
            counted_bytes: 0,
            head_bytes: 0,
            body_bytes: 0,
            reported_bytes: 0,
        }
    }

    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Takes bytes that come next, while no head is known.
    pub(crate) fn take_head(
        &mut self,
        keys: &mut Keys,
        piece: Piece<'_>,
        is_asked: bool,
    ) -> Result<Found, Fault> {
        self.kept.extend_from_slice(piece.seen);
        let is_cut = piece.seen.len() < usize::try_from(piece.bytes).unwrap_or(usize::MAX);
        let mut text = Vec::new();
        let (mut at, mut number) = (0, keys.read_number);
        let found = loop {
            let Some(rest) = self.kept.get(at..) else {
                break Found::Nothing;
            };
            let Some((header, body)) = rest.split_first_chunk::<HEADER_BYTES>() else {
                break Found::Nothing;
            };
            let (_, bytes) = parse_header(*header, OVERHEAD_BYTES)?;
            let Some(whole) = body.get(..bytes) else {
                // What kind it is stands at its end.
                let beginning = keys.peek(number, body, bytes);
                text.extend(beginning.ok_or(Fault::Tls(TlsFault::Open))?);
                break match parse_head(&text) {
                    Ok(Some(head)) if is_asked => Found::Head(head, !self.has_begun),
                    Ok(_) if is_asked && !text.is_empty() && !self.has_begun => Found::Begun,
                    Err(fault) if is_asked && is_cut => return Err(fault),
                    _ => Found::Nothing,
                };
            };
            let mut whole = whole.to_vec();
            let (kind, content) = keys.open(number, *header, &mut whole)?;
            let Some(content) = take_content(kind, content)? else {
                if !text.is_empty() {
                    return Err(Fault::Tls(TlsFault::Header));
                }
                self.pass(keys, HEADER_BYTES + bytes);
                number = keys.read_number;
                continue;
            };
            at += HEADER_BYTES + bytes;
            number += 1;
            if !is_asked && !content.is_empty() {
                return Err(Fault::Unasked);
            }
            text.extend_from_slice(content);
            if let Some(head) = parse_head(&text)? {
                break Found::Head(head, !self.has_begun);
            }
        };
        match found {
            Found::Head(head, _) => {
                self.kept = Vec::new();
                self.has_begun = false;
                self.counted_bytes = 0;
                self.reported_bytes = 0;
                self.head_bytes = head.head_bytes as u64;
                self.body_bytes = head.body_bytes;
            }
            _ if is_cut && is_asked => return Err(Fault::Head),
            _ if is_cut => return Err(Fault::Unasked),
            _ if self.kept.len() > KEPT_BYTES_MAX => return Err(Fault::Head),
            Found::Begun => self.has_begun = true,
            Found::Nothing if self.kept.is_empty() => self.kept = Vec::new(),
            Found::Nothing => {}
        }
        Ok(found)
    }

    /// Leaves a record behind that is no data.
    fn pass(&mut self, keys: &mut Keys, bytes: usize) {
        self.kept.drain(..bytes);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.base = self.base.wrapping_add(bytes);
        self.records = self.records.wrapping_add(1);
        keys.read_number += 1;
    }

    /// What has come of the reply whose head was found, the stream being in order up to `reached`.
    pub(crate) fn count(
        &mut self,
        keys: &mut Keys,
        watched: Watched,
        reached: SeqNumber,
    ) -> Result<Progress, Fault> {
        if let Some(lost) = watched.lost {
            return Err(Fault::Tls(TlsFault::Lost(lost)));
        }
        let fault = Fault::Tls(TlsFault::Header);
        let stream_bytes = u32::try_from(watched.next_header.distance(self.base));
        let stream_bytes = u64::from(stream_bytes.map_err(|_| fault)?);
        let records = watched.records.wrapping_sub(self.records);
        let overhead = (HEADER_BYTES + OVERHEAD_BYTES) as u64 * u64::from(records);
        let plain_bytes = stream_bytes.checked_sub(overhead).ok_or(fault)?;
        self.counted_bytes += plain_bytes;
        self.base = watched.next_header;
        self.records = watched.records;
        keys.read_number += u64::from(records);
        let ahead = self.base.distance(reached);
        // The last bytes read may begin a header that the program has not counted yet.
        if ahead < -PARTIAL_HEADER_MAX {
            return Err(fault);
        }
        let ahead_bytes = u64::from(ahead.max(0).unsigned_abs());
        let reply_bytes = self.head_bytes + self.body_bytes;
        let surplus = self.counted_bytes.saturating_sub(reply_bytes);
        if surplus > 0 && surplus != ALERT_BYTES {
            return Err(Fault::Length);
        }
        let is_complete = ahead == 0 && self.counted_bytes >= reply_bytes;
        let counted = self.counted_bytes.min(reply_bytes);
        let in_order = counted.saturating_sub(ahead_bytes);
        let body = in_order.saturating_sub(self.head_bytes);
        let body = body.max(self.reported_bytes);
        let more = body - self.reported_bytes;
        self.reported_bytes = body;
        Ok(Progress {
            body_bytes: more,
            records,
            is_complete,
            has_alert: surplus > 0,
        })
    }
}
