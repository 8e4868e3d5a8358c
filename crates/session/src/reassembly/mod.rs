//! Reassembly: fragments become the packet that was cut (docs/develop/decisions/0035-reassembly.md).
//!
//! A router cuts an IPv4 packet without DF that is larger than its next link, and an IPv6 host one that
//! is larger than its path. The parts arrive in any order, some of them twice or not at all. Each
//! datagram that is being put together has a buffer; a part is copied to its place there, and when no
//! part is missing the datagram's content is handed out, to be parsed as that of a whole packet.
//!
//! | what arrives | what happens |
//! |---|---|
//! | a part that is there already, with the same ends | ignored (RFC 8200 s4.5) |
//! | a part that overlaps another | the datagram is discarded (RFC 5722; Linux does so for IPv4, too) |
//! | a part behind the last one, or a second last one that ends elsewhere | discarded |
//! | a part beyond [`DATAGRAM_BYTES_MAX`], more than [`FRAGMENTS_MAX`] parts | discarded |
//! | parts with CE beside parts that are Not-ECT | discarded (RFC 3168 s5.3) |
//! | not all parts within [`REASSEMBLY_TIME`] of the first to come | forgotten |
//!
//! What is discarded stays as a name until its time is over, so that its other parts find it and are
//! ignored.
//!
//! Memory is [`DATAGRAMS_MAX`] buffers, allocated at start. A source, as [`crate::sources`] has it, gets
//! [`DATAGRAMS_PER_SOURCE_MAX`] of them; its next datagram takes the place of its oldest. With all
//! buffers in use, the oldest of the source that has the most gives way. So a flood of first parts from
//! one source takes nothing from others, and one from many sources forgets a datagram only when
//! [`DATAGRAMS_MAX`] others have begun after it: the parts of an honest one come within milliseconds.
//!
//! It refuses to say anything: there is no "time exceeded" for what is forgotten, as no other part of
//! this stack sends ICMP errors.

use core::net::IpAddr;

use clock::{Duration, Instant};
use sites::networks::network_of;
use wire::{Ecn, Fragment};

use crate::counters::Counters;

/// Datagrams that are being put together at once.
pub(crate) const DATAGRAMS_MAX: usize = 64;
/// Those of one source: clients behind one address have some at the same moment, and a lost fragment
/// keeps a place for [`REASSEMBLY_TIME`]. `[guess]`
pub(crate) const DATAGRAMS_PER_SOURCE_MAX: usize = 8;
/// Bytes that the fragments of a datagram carry at most. A peer sends segments no larger than our MSS
/// lets it, so that is a packet of a link with jumbo frames.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 9_216;
/// Fragments of a datagram at most: of one as large as may be, where the smallest MTU that IPv4 hosts must
/// cope with (576 bytes) cuts it, there are 17.
pub(crate) const FRAGMENTS_MAX: usize = 32;
/// From the first fragment that arrives to the end of the attempt: Linux's for IPv4. RFC 8200 s4.5 allows
/// a minute; identifications repeat sooner than that on fast paths (RFC 4963).
pub(crate) const REASSEMBLY_TIME: Duration = Duration::from_secs(30);

/// What tells one datagram from another (RFC 791 s3.2, RFC 8200 s4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// 0 over IPv6, where only the first fragment knows it.
    protocol: u8,
}

/// The datagrams that are being put together.
#[derive(Debug)]
pub(crate) struct Reassembly {
    datagrams: Box<[Datagram]>,
    /// Of the datagram that began last.
    last_number: u64,
    /// When the oldest datagram's time is over.
    next_expiry: Option<Instant>,
}

/// A datagram of which some fragments are there, or a free place for one.
#[derive(Debug)]
struct Datagram {
    /// `None`: the place is free.
    name: Option<Name>,
    source: IpAddr,
    /// Datagrams of this source, this one among them.
    of_source: usize,
    /// Later ones have higher numbers.
    number: u64,
    expiry: Instant,
    /// Further fragments are ignored.
    is_discarded: bool,
    /// What the first fragment says that the content begins with.
    protocol: u8,
    /// A bit for each codepoint of ECN that a fragment has.
    codepoints: u8,
    /// Start and end of each fragment that is there, bytes.
    pieces: [(usize, usize); FRAGMENTS_MAX],
    piece_count: usize,
    received_bytes: usize,
    /// Known once the last fragment is there.
    total_bytes: Option<usize>,
    content: Box<[u8]>,
}

/// A datagram of which nothing is missing; to be given back.
#[derive(Debug)]
pub(crate) struct Whole {
    place: usize,
    /// What the content begins with.
    pub(crate) protocol: u8,
    /// Of all its fragments.
    pub(crate) ecn: Ecn,
    content: Box<[u8]>,
    length: usize,
}

impl Whole {
    /// What the fragments carried, in order.
    pub(crate) fn content(&self) -> &[u8] {
        self.content.get(..self.length).unwrap_or_default()
    }
}

/// What a fragment did to its datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Added {
    /// It is there now, or was before; something is missing.
    Incomplete,
    /// Nothing is missing any more.
    Whole(Ecn),
    /// The fragments contradict each other, or are too many or too large.
    Contradictory,
}

impl Reassembly {
    pub(crate) fn new() -> Self {
        let free = |_| Datagram {
            name: None,
            source: IpAddr::from([0; 4]),
            of_source: 0,
            number: 0,
            expiry: Instant::ZERO,
            is_discarded: false,
            protocol: 0,
            codepoints: 0,
            pieces: [(0, 0); FRAGMENTS_MAX],
            piece_count: 0,
            received_bytes: 0,
            total_bytes: None,
            content: vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice(),
        };
        Self {
            datagrams: (0..DATAGRAMS_MAX).map(free).collect(),
            last_number: 0,
            next_expiry: None,
        }
    }

    /// A fragment arrived. Returns its datagram if it was the last that was missing, to be given back
    /// before the next call.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        fragment: &Fragment<'_>,
        counters: &mut Counters,
    ) -> Option<Whole> {
        counters.wire_fragment_frames += 1;
        self.expire(now, counters);
        let name = name_of(fragment);
        let found = self.datagrams.iter().position(|it| it.name == Some(name));
        let place = found.unwrap_or_else(|| self.begin(now, name, counters));
        let datagram = self.datagrams.get_mut(place)?;
        if datagram.is_discarded {
            return None;
        }
        match datagram.add(fragment) {
            Added::Incomplete => None,
            Added::Contradictory => {
                datagram.is_discarded = true;
                counters.wire_reassembly_refused_count += 1;
                None
            }
            Added::Whole(ecn) => {
                counters.wire_reassembled_count += 1;
                let whole = Whole {
                    place,
                    protocol: datagram.protocol,
                    ecn,
                    content: core::mem::take(&mut datagram.content),
                    length: datagram.received_bytes,
                };
                self.free(place);
                Some(whole)
            }
        }
    }

    /// The datagram is done with.
    pub(crate) fn give_back(&mut self, whole: Whole) {
        if let Some(datagram) = self.datagrams.get_mut(whole.place) {
            datagram.content = whole.content;
        }
    }

    /// When [`Reassembly::expire`] next has work.
    pub(crate) const fn next_expiry(&self) -> Option<Instant> {
        self.next_expiry
    }

    /// Forgets the datagrams whose time is over.
    pub(crate) fn expire(&mut self, now: Instant, counters: &mut Counters) {
        while self.next_expiry.is_some_and(|expiry| expiry <= now) {
            for place in 0..self.datagrams.len() {
                let it = &self.datagrams[place];
                if it.name.is_some() && it.expiry <= now {
                    counters.wire_reassembly_timeout_count += u64::from(!it.is_discarded);
                    self.free(place);
                }
            }
        }
    }

    /// Finds a place for a datagram of which the first fragment has come, and returns it.
    fn begin(&mut self, now: Instant, name: Name, counters: &mut Counters) -> usize {
        let source = network_of(name.source);
        let place = self.place_for(source);
        if self.datagrams[place].name.is_some() {
            counters.wire_reassembly_evicted_count +=
                u64::from(!self.datagrams[place].is_discarded);
            self.free(place);
        }
        self.last_number += 1;
        let datagram = &mut self.datagrams[place];
        datagram.name = Some(name);
        datagram.source = source;
        datagram.number = self.last_number;
        datagram.expiry = now + REASSEMBLY_TIME;
        datagram.is_discarded = false;
        datagram.protocol = 0;
        datagram.codepoints = 0;
        datagram.piece_count = 0;
        datagram.received_bytes = 0;
        datagram.total_bytes = None;
        self.note_change(source);
        place
    }

    /// A free place; or the oldest of this source, if it has its share; or the oldest of the source that
    /// has the most.
    fn place_for(&self, source: IpAddr) -> usize {
        let places = || self.datagrams.iter().enumerate();
        let taken = || places().filter(|(_, it)| it.name.is_some());
        let own = || taken().filter(|(_, it)| it.source == source);
        let free = || places().find(|(_, it)| it.name.is_none());
        let found = match own().next() {
            Some((_, it)) if it.of_source >= DATAGRAMS_PER_SOURCE_MAX => {
                own().min_by_key(|(_, it)| it.number)
            }
            _ => free().or_else(|| {
                taken().max_by_key(|(_, it)| (it.of_source, core::cmp::Reverse(it.number)))
            }),
        };
        found.map_or(0, |(place, _)| place)
    }

    fn free(&mut self, place: usize) {
        let Some(datagram) = self.datagrams.get_mut(place) else {
            return;
        };
        datagram.name = None;
        let source = datagram.source;
        self.note_change(source);
    }

    /// A datagram of this source began or ended.
    fn note_change(&mut self, source: IpAddr) {
        let taken = || self.datagrams.iter().filter(|it| it.name.is_some());
        let count = taken().filter(|it| it.source == source).count();
        self.next_expiry = taken().map(|it| it.expiry).min();
        let own = self.datagrams.iter_mut().filter(|it| it.source == source);
        own.for_each(|it| it.of_source = count);
    }
}

impl Datagram {
    /// Copies a fragment to its place.
    fn add(&mut self, fragment: &Fragment<'_>) -> Added {
        let start = usize::from(fragment.place.offset_bytes);
        let end = start + fragment.payload.len();
        let pieces = self.pieces.get(..self.piece_count).unwrap_or_default();
        if pieces.contains(&(start, end)) {
            return Added::Incomplete;
        }
        let is_overlapping = pieces.iter().any(|piece| start < piece.1 && piece.0 < end);
        let received_end = pieces.iter().map(|piece| piece.1).max().unwrap_or(0);
        let is_behind_the_end = match self.total_bytes {
            Some(total) => end > total || fragment.place.is_last,
            None => fragment.place.is_last && received_end > end,
        };
        if is_overlapping || is_behind_the_end {
            return Added::Contradictory;
        }
        let room = self.content.get_mut(start..end);
        let piece = self.pieces.get_mut(self.piece_count);
        let (Some(room), Some(piece)) = (room, piece) else {
            return Added::Contradictory;
        };
        room.copy_from_slice(fragment.payload);
        *piece = (start, end);
        self.piece_count += 1;
        self.received_bytes += end - start;
        self.codepoints |= 1 << fragment.ecn as u8;
        if start == 0 {
            self.protocol = fragment.protocol;
        }
        if fragment.place.is_last {
            self.total_bytes = Some(end);
        }
        // None overlaps another, and none is behind the end.
        if self.total_bytes != Some(self.received_bytes) {
            return Added::Incomplete;
        }
        self.ecn().map_or(Added::Contradictory, Added::Whole)
    }

    /// Of all fragments (RFC 3168 s5.3): CE if one has it, which none that is Not-ECT may be beside.
    fn ecn(&self) -> Option<Ecn> {
        let has = |ecn: Ecn| self.codepoints & 1 << ecn as u8 != 0;
        match (has(Ecn::Ce), has(Ecn::NotEct)) {
            (true, true) => None,
            (true, false) => Some(Ecn::Ce),
            (false, true) => Some(Ecn::NotEct),
            (false, false) if has(Ecn::Ect1) => Some(Ecn::Ect1),
            (false, false) => Some(Ecn::Ect0),
        }
    }
}

fn name_of(fragment: &Fragment<'_>) -> Name {
    let source = fragment.path.source;
    Name {
        source,
        destination: fragment.path.destination,
        identification: fragment.place.identification,
        protocol: if source.is_ipv4() {
            fragment.protocol
        } else {
            0
        },
    }
}

#[cfg(test)]
mod tests;
