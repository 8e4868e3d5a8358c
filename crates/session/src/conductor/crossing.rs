//! Segments that cross between two processes of a take-over: the successor, which has the link and takes new
//! connections, and its predecessor, which finishes those it has.
//!
//! ```text
//!  link ──▶ successor: no connection ──▶ predecessor: no connection in any of its workers ──┐
//!           refuses it at last        ◀──────────── "returned" ─────────────────────────────┘
//! ```
//!
//! One rule for each direction, so that nothing goes in circles, also where a predecessor has one of its own:
//! what the link or the successor brought and nobody here has goes to the predecessor; what came back from
//! there, or has no predecessor to go to, goes around the workers here and then to the successor; the process
//! without a successor refuses it. A predecessor answers no SYN that opens a connection: it goes to the successor.
//!
//! A message is a kind, and then a frame for a segment. It refuses what is not a TCP segment to one of our
//! addresses ([`CrossingError`]). Bounds: [`CROSSING_MAX`] wait; a message has at most [`MESSAGE_BYTES_MAX`].

use core::net::IpAddr;
use std::collections::VecDeque;

use clock::Instant;
use memory::Arena;
use wire::{
    ChecksumState, Ecn, HEADERS_BYTES_MAX, Incoming, MacAddress, OriginalTcp, Path, Route,
    SeqNumber, TcpChecksum, TcpRepr,
};

use super::next_hops::Statement;
use super::strays::StrayContent;
use super::{Conductor, Received, Stray};

/// Most segments that wait to cross, in each worker: those of a round.
pub const CROSSING_MAX: usize = 2048;
/// Longest message, bytes: a kind, and the headers and the text of the largest packet.
pub const MESSAGE_BYTES_MAX: usize = 1 + 14 + 40 + 65_535;
/// Most bytes of a TCP segment, header included, that the headers of both IP versions can tell.
const SEGMENT_BYTES_MAX: usize = 65_535 - 20;

/// Kinds of messages.
const SEGMENT: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const STATEMENT: u8 = 3;

/// The other process of a take-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Process {
    /// The one that had the link before.
    Predecessor,
    /// The one that has it now.
    Successor,
}

/// Why a message from the other process means nothing here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CrossingError {
    /// Of a kind that this version does not know.
    Kind,
    /// Too short, or not the frame that it should be.
    Malformed,
    /// To an address that is not served here.
    Foreign,
}

/// What crosses, and where from what is handled now came.
#[derive(Debug, Default)]
pub(super) struct Crossing {
    pub(super) has_predecessor: bool,
    pub(super) has_successor: bool,
    /// Whether what is handled now came back from a predecessor, which has no connection for it.
    pub(super) is_returned: bool,
    /// Whether it came from the successor.
    is_from_successor: bool,
    waiting: VecDeque<(Process, Stray)>,
}

impl Crossing {
    /// Queues it; whether there was room.
    pub(super) fn push(&mut self, to: Process, content: StrayContent) -> bool {
        if self.waiting.len() == CROSSING_MAX {
            return false;
        }
        self.waiting.push_back((to, Stray::of_process(content)));
        true
    }
}

impl Conductor {
    /// There is a process that this one took over from, and that has connections of its own; or it has ended.
    pub fn set_predecessor(&mut self, is_there: bool) {
        self.crossing.has_predecessor = is_there;
    }

    /// Another process takes over: it has the link from now on, and gets SYNs and what belongs to nobody here. The
    /// reply to a connection's next request is its last. `false`: it is gone, and all is as it was before.
    pub fn set_successor(&mut self, is_there: bool) {
        self.crossing.has_successor = is_there;
    }

    /// The next segment for the other process: [`Stray::write_message`]. To be polled after each batch of frames.
    pub fn poll_crossing(&mut self) -> Option<(Process, Stray)> {
        self.crossing.waiting.pop_front()
    }

    /// A message of the other process arrived; [`Conductor::end_batch`] follows, as behind a frame.
    ///
    /// # Errors
    /// [`CrossingError`]; then nothing has changed.
    pub fn handle_crossing(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        from: Process,
        message: &[u8],
    ) -> Result<(), CrossingError> {
        let (&kind, rest) = message.split_first().ok_or(CrossingError::Malformed)?;
        self.apply_acknowledgments(now, arena);
        self.crossing.is_returned = from == Process::Predecessor;
        self.crossing.is_from_successor = from == Process::Successor;
        let outcome = match kind {
            SEGMENT => self.handle_crossed_frame(now, arena, rest),
            PACKET_TOO_BIG => match read_packet_too_big(rest) {
                Some((mtu_bytes, original)) => {
                    self.handle_packet_too_big(now, mtu_bytes, &original);
                    Ok(())
                }
                None => Err(CrossingError::Malformed),
            },
            STATEMENT => match read_statement(rest) {
                Some(statement) => {
                    self.tell_predecessor(&statement);
                    self.apply_statement(now, &statement);
                    Ok(())
                }
                None => Err(CrossingError::Malformed),
            },
            _ => Err(CrossingError::Kind),
        };
        self.crossing.is_returned = false;
        self.crossing.is_from_successor = false;
        outcome
    }

    fn handle_crossed_frame(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        frame: &[u8],
    ) -> Result<(), CrossingError> {
        // The process that it reached has looked at its checksum.
        let Ok(Incoming::Tcp {
            path,
            segment,
            ecn,
            payload,
        }) = wire::parse_frame(frame, ChecksumState::Trusted)
        else {
            return Err(CrossingError::Malformed);
        };
        if !self.is_ours(path.destination) {
            return Err(CrossingError::Foreign);
        }
        let received = Received {
            path: self.answer_path(path),
            segment,
            ecn,
            payload,
        };
        let tuple = received.tuple();
        let tag = self.connections.table.tag(&tuple);
        self.apply(now, arena, &tuple, tag, &received);
        Ok(())
    }

    /// A SYN that would open a connection here goes to the successor.
    pub(super) fn leave_to_successor(&mut self, received: &Received<'_>) {
        // The successor sends none, and would get it back for ever.
        if !self.crossing.is_from_successor {
            self.cross(Process::Successor, || received.content());
        }
    }

    /// Passes on what a station said of itself to the predecessor, which may know the station.
    pub(super) fn tell_predecessor(&mut self, statement: &Statement) {
        if self.crossing.has_predecessor && !self.crossing.is_returned {
            let _full =
                (self.crossing).push(Process::Predecessor, StrayContent::Statement(*statement));
        }
    }

    pub(super) fn cross(&mut self, to: Process, content: impl FnOnce() -> StrayContent) {
        let counters = &mut self.telemetry.counters;
        if self.crossing.push(to, content()) {
            counters.tcp_crossed_count += 1;
        } else {
            counters.tcp_crossing_dropped_count += 1;
        }
    }
}

impl Stray {
    /// Writes it as a message for the other process, in place of what is in `buffer`. `false`: it is too large for
    /// one, and lost.
    #[must_use]
    pub fn write_message(&self, buffer: &mut Vec<u8>) -> bool {
        buffer.clear();
        match self.content() {
            StrayContent::Segment {
                path,
                segment,
                ecn,
                payload,
            } => return write_segment(buffer, path, segment, *ecn, payload),
            StrayContent::PacketTooBig {
                mtu_bytes,
                original,
            } => {
                buffer.push(PACKET_TOO_BIG);
                buffer.extend(mtu_bytes.to_be_bytes());
                write_address(buffer, original.source);
                write_address(buffer, original.destination);
                buffer.extend(original.source_port.to_be_bytes());
                buffer.extend(original.destination_port.to_be_bytes());
                buffer.extend(original.sequence.0.to_be_bytes());
            }
            StrayContent::Statement(statement) => {
                buffer.extend([STATEMENT, statement.is_to_us.into()]);
                write_address(buffer, statement.address);
                buffer.extend(statement.mac.0);
            }
        }
        true
    }
}

fn write_segment(
    buffer: &mut Vec<u8>,
    path: &Path,
    segment: &TcpRepr,
    ecn: Ecn,
    payload: &[u8],
) -> bool {
    if segment.header_bytes() + payload.len() > SEGMENT_BYTES_MAX {
        return false;
    }
    let route = Route {
        source_mac: path.source_mac,
        destination_mac: path.destination_mac,
        source: path.source,
        destination: path.destination,
    };
    let mut headers = [0; HEADERS_BYTES_MAX];
    // Nobody looks at the TCP checksum again.
    let partial = TcpChecksum::Partial;
    let length = wire::emit_tcp(&mut headers, &route, segment, &[payload], partial, 0);
    let headers = &mut headers[..length];
    wire::set_ecn(headers, ecn);
    buffer.push(SEGMENT);
    buffer.extend_from_slice(headers);
    buffer.extend_from_slice(payload);
    true
}

/// All addresses are written as those of IPv6.
fn write_address(buffer: &mut Vec<u8>, address: IpAddr) {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    buffer.extend(address.octets());
}

/// Takes what is needed off the front.
fn take<const BYTES: usize>(rest: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

fn take_address(rest: &mut &[u8]) -> Option<IpAddr> {
    Some(IpAddr::from(take::<16>(rest)?).to_canonical())
}

fn read_packet_too_big(mut rest: &[u8]) -> Option<(u32, OriginalTcp)> {
    let rest = &mut rest;
    let mtu_bytes = u32::from_be_bytes(take(rest)?);
    let original = OriginalTcp {
        source: take_address(rest)?,
        destination: take_address(rest)?,
        source_port: u16::from_be_bytes(take(rest)?),
        destination_port: u16::from_be_bytes(take(rest)?),
        sequence: SeqNumber(u32::from_be_bytes(take(rest)?)),
    };
    rest.is_empty().then_some((mtu_bytes, original))
}

fn read_statement(mut rest: &[u8]) -> Option<Statement> {
    let rest = &mut rest;
    let [is_to_us] = take(rest)?;
    let statement = Statement {
        address: take_address(rest)?,
        mac: MacAddress(take(rest)?),
        is_to_us: is_to_us != 0,
    };
    rest.is_empty().then_some(statement)
}
