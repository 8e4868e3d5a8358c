//! What waits to be sent: answers, resets of clients, and clients that have something to send.
//!
//! It refuses an answer for which there is no room, as if the network had lost it; the refusal is counted.
//! Bounds: those of [`Outbox`]; each client once among those that have something to send. A client to be
//! reset may be named more than once.

use wire::{HEADERS_BYTES_MAX, Route, TcpChecksum, TcpRepr};

use crate::TlsToken;
use crate::counters::Counters;
use crate::outbox::Outbox;
use crate::run_queue::RunQueue;

/// See the module.
#[derive(Debug)]
pub(super) struct TransmitQueues {
    /// Clients with something to send.
    pub(super) writers: RunQueue,
    pub(super) outbox: Outbox,
    /// Clients to be reset as soon as the outbox has room for their resets.
    pub(super) resets: Vec<TlsToken>,
    /// Of the last packet.
    identification: u16,
}

impl TransmitQueues {
    /// For at most so many clients.
    pub(super) fn new(connections_max: usize) -> Self {
        Self {
            writers: RunQueue::new(connections_max),
            outbox: Outbox::new(),
            resets: Vec::new(),
            identification: 0,
        }
    }

    /// Queues an answer.
    pub(super) fn answer(
        &mut self,
        counters: &mut Counters,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) {
        if self.outbox.push(write) {
            counters.wire_answer_frames += 1;
        } else {
            counters.wire_answer_overflow_count += 1;
        }
    }

    /// The same for one whose headers are all of it.
    pub(super) fn answer_short(
        &mut self,
        counters: &mut Counters,
        write: impl FnOnce(&mut [u8; HEADERS_BYTES_MAX]) -> usize,
    ) {
        self.answer(counters, |buffer| Some(write(buffer.first_chunk_mut()?)));
    }

    /// Queues a segment that is sent outside any client's stream, with a little text.
    pub(super) fn answer_with_text(
        &mut self,
        counters: &mut Counters,
        route: &Route,
        segment: &TcpRepr,
        text: &[u8],
    ) {
        let identification = self.next_identification();
        self.answer(counters, |buffer| {
            let headers = wire::emit_tcp(
                buffer.first_chunk_mut()?,
                route,
                segment,
                &[text],
                TcpChecksum::Full,
                identification,
            );
            let end = headers + text.len();
            buffer.get_mut(headers..end)?.copy_from_slice(text);
            Some(end)
        });
    }

    /// The identification of the next packet.
    pub(super) const fn next_identification(&mut self) -> u16 {
        self.identification = self.identification.wrapping_add(1);
        self.identification
    }
}
