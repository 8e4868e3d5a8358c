//! One connection and what its socket keeps: the bytes to send until they are acknowledged, the bytes
//! received until they are read, and how it ended. It stands where the session is in the server, but
//! its bytes come from memory and not from a disk.
//!
//! It refuses nothing that is written: the buffer to send from has no limit but the script.

use std::collections::VecDeque;
use std::net::SocketAddr;

use clock::Instant;
use tcp::{Claim, Connection, Credit, StreamOffset, StreamRange};
use wire::{Route, TcpRepr};

use super::errno::Errno;
use super::sockets::Readiness;

/// Our receive window, bytes: that of the session.
pub(super) const RECEIVE_WINDOW_BYTES: u16 = 17_408;

/// Most text of one frame, which is then cut into packets: an IP packet has less than 64 KiB.
const FRAME_BYTES_MAX: u64 = 64_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Stream {
    /// `None` once the connection is over.
    pub(super) tcp: Option<Connection>,
    peer: SocketAddr,
    pub(super) route: Route,
    /// Written and not acknowledged; the first is at `kept_from` of the stream.
    kept: VecDeque<u8>,
    kept_from: StreamOffset,
    /// In order and not read.
    pub(super) received: VecDeque<u8>,
    /// The peer will send nothing more.
    pub(super) is_peer_finished: bool,
    /// The program will read nothing more (`SHUT_RD`).
    pub(super) is_read_shut: bool,
    /// The program will write nothing more (`SHUT_WR`).
    pub(super) is_write_shut: bool,
    /// The program closed its descriptor.
    pub(super) is_orphan: bool,
    /// The next call returns this error.
    pub(super) error: Option<Errno>,
}

/// A segment that leaves: its header, its text, and the text of one packet at most.
pub(super) struct Leaving {
    pub(super) segment: TcpRepr,
    pub(super) text: Vec<u8>,
    pub(super) segment_bytes: u16,
}

impl Stream {
    pub(super) fn new(tcp: Connection, route: Route) -> Self {
        Self {
            peer: tcp.tuple().peer,
            tcp: Some(tcp),
            route,
            kept: VecDeque::new(),
            kept_from: StreamOffset::ZERO,
            received: VecDeque::new(),
            is_peer_finished: false,
            is_read_shut: false,
            is_write_shut: false,
            is_orphan: false,
            error: None,
        }
    }

    /// Whether neither the network nor the program knows it any more.
    pub(super) const fn is_over(&self) -> bool {
        self.tcp.is_none() && self.is_orphan
    }

    /// The peer's address and port.
    pub(super) const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What `poll` says.
    pub(super) fn readiness(&self) -> Readiness {
        let is_over = self.tcp.is_none();
        Readiness {
            is_readable: !self.received.is_empty()
                || self.is_peer_finished
                || self.is_read_shut
                || is_over,
            is_writable: true,
            is_hung_up: is_over || (self.is_peer_finished && self.is_write_shut),
            has_error: self.error.is_some(),
        }
    }

    /// Takes everything, as a send buffer without a limit.
    pub(super) fn write(&mut self, now: Instant, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(tcp) = self.tcp.as_mut().filter(|_| !self.is_write_shut) else {
            return Err(Errno::PIPE);
        };
        tcp.append(now, bytes.len() as u64);
        self.kept.extend(bytes);
        Ok(bytes.len())
    }

    /// Takes at most `bytes_max` of what was received; 0 bytes: no more will come.
    pub(super) fn read(&mut self, bytes_max: usize) -> Result<Vec<u8>, Errno> {
        if self.received.is_empty() {
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            let is_end = self.is_peer_finished || self.is_read_shut || self.tcp.is_none();
            return if is_end {
                Ok(Vec::new())
            } else {
                Err(Errno::AGAIN)
            };
        }
        let count = bytes_max.min(self.received.len());
        let bytes = self.received.drain(..count).collect();
        self.advertise();
        Ok(bytes)
    }

    /// The program has nothing more to write: a FIN follows the last byte.
    pub(super) fn finish(&mut self) {
        self.is_write_shut = true;
        if let Some(tcp) = &mut self.tcp {
            tcp.finish();
        }
    }

    /// The connection is over.
    pub(super) fn end(&mut self, error: Option<Errno>) {
        self.tcp = None;
        self.error = error;
        self.kept.clear();
    }

    /// Tells the connection how much room is left for what the peer sends.
    pub(super) fn advertise(&mut self) {
        let waiting = u16::try_from(self.received.len()).unwrap_or(u16::MAX);
        if let Some(tcp) = &mut self.tcp {
            tcp.set_receive_window(RECEIVE_WINDOW_BYTES.saturating_sub(waiting));
        }
    }

    /// Forgets what was acknowledged.
    pub(super) fn release(&mut self) {
        if let Some(tcp) = &self.tcp {
            let acknowledged = tcp.acknowledged();
            let count = acknowledged.since(self.kept_from);
            self.kept.drain(..as_index(count));
            self.kept_from = acknowledged;
        }
    }

    /// Everything that may leave now, in order.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Leaving> {
        let mut leaving = Vec::new();
        while let Some(tcp) = &mut self.tcp
            && let Credit::Now(demand) = tcp.credit(now)
        {
            let end = demand.range.end;
            let claim = tcp.claim(now, demand, end);
            self.send(now, &claim, &mut leaving);
        }
        while let Some(tcp) = &mut self.tcp
            && let Some(control) = tcp.control()
        {
            let segment = tcp.control_segment(now, control);
            tcp.on_control_transmitted(now, control);
            leaving.push(Leaving {
                segment,
                text: Vec::new(),
                segment_bytes: tcp.segment_bytes(),
            });
        }
        leaving
    }

    /// Sends what was claimed: its bytes are there at once.
    fn send(&mut self, now: Instant, claim: &Claim, leaving: &mut Vec<Leaving>) {
        while let Some(tcp) = &mut self.tcp
            && let Some(admitted) = tcp.admit(claim)
        {
            let segment_bytes = u64::from(tcp.segment_bytes());
            let admitted = admitted.beginning(FRAME_BYTES_MAX / segment_bytes * segment_bytes);
            let text = text_of(&self.kept, self.kept_from, admitted.range());
            let segment = tcp.segment(now, &admitted);
            tcp.on_transmitted(now, admitted);
            leaving.push(Leaving {
                segment,
                text,
                segment_bytes: tcp.segment_bytes(),
            });
        }
    }

    /// When something is due: a timer of the connection, or pacing.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let tcp = self.tcp.as_ref()?;
        let paced = match tcp.credit(now) {
            Credit::From(at) => Some(at),
            Credit::Now(_) | Credit::Nothing => None,
        };
        [tcp.poll_timeout(), paced].into_iter().flatten().min()
    }
}

fn text_of(kept: &VecDeque<u8>, from: StreamOffset, range: StreamRange) -> Vec<u8> {
    let places = as_index(range.start.since(from))..as_index(range.end.since(from));
    kept.range(places).copied().collect()
}

fn as_index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
