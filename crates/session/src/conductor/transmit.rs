//! Transmission: sends fetches that are ready, in order for each connection, in frames as large as
//! the link takes.

use clock::Instant;
use memory::Arena;
use tcp::{Framing, StreamRange};
use wire::{Ecn, HEADERS_BYTES_MAX, Offload, Outgoing, Route, Segmentation, TcpChecksum, TcpRepr};

use super::Conductor;
use super::ahead::prefetch_turns;
use super::telemetry::Telemetry;
use super::transmit_queues::TransmitQueues;
use crate::client::Client;
use crate::fetch::{Arrived, Fetch, FetchPlan, FetchState};
use crate::kept_slots::{Kept, KeptMemory, KeptSlots, ReadAhead};
use crate::stream_map::{ContentChanged, StreamMap};
use crate::{Config, TransmitProgress, Transmitted, Warning};

type Sink<'s> = dyn FnMut(&Outgoing<'_>) -> Transmitted + 's;

impl Conductor {
    /// Offers every frame that may be sent now to `sink`, in order.
    pub fn transmit(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        sink: &mut dyn FnMut(&Outgoing<'_>) -> Transmitted,
    ) -> TransmitProgress {
        loop {
            if self.outgoing.outbox.transmit(sink) == TransmitProgress::Full {
                return TransmitProgress::Full;
            }
            if self.outgoing.resets.is_empty() {
                break;
            }
            self.send_pending_resets(now, arena);
        }
        while let Some(index) = self.outgoing.writers.pop() {
            prefetch_turns(&self.outgoing.writers, &self.connections.clients);
            let Some(client) = self.connections.clients.entry_mut(index) else {
                continue;
            };
            let mut sender = Sender {
                now,
                telemetry: &mut self.telemetry,
                kept: &mut self.kept,
                frames: Frames {
                    config: &self.config,
                    outgoing: &mut self.outgoing,
                    sink: &mut *sink,
                },
            };
            match sender.serve(client, arena) {
                Ok(progress) => {
                    let is_full = progress == TransmitProgress::Full;
                    if is_full {
                        self.outgoing.writers.push_front(index);
                    }
                    self.end_begun_request(now, index);
                    self.update_queues_and_timers(now, index);
                    if is_full {
                        return TransmitProgress::Full;
                    }
                }
                Err(ContentChanged) => {
                    self.telemetry.counters.record_reseal_mismatch_count += 1;
                    let peer = client.tcp.tuple().peer;
                    let read = client.fetches.front().and_then(|fetch| fetch.plan.read);
                    if let Some(read) = read {
                        let object = read.object.handle;
                        self.telemetry
                            .warn(Warning::ContentChanged { peer, object });
                    }
                    self.abort(now, arena, index);
                }
            }
        }
        // Resets of what was aborted above.
        self.outgoing.outbox.transmit(sink)
    }
}

/// The state needed to send one client's frames.
struct Sender<'a, 's> {
    now: Instant,
    telemetry: &'a mut Telemetry,
    kept: &'a mut KeptSlots,
    frames: Frames<'a, 's>,
}

/// What writes frames.
struct Frames<'a, 's> {
    config: &'a Config,
    outgoing: &'a mut TransmitQueues,
    sink: &'a mut Sink<'s>,
}

impl Sender<'_, '_> {
    /// Sends the client's fetches that are ready, then its segments without data.
    ///
    /// # Errors
    /// A record differs from the one sent before: nothing more may be sent.
    fn serve(
        &mut self,
        client: &mut Client,
        arena: &mut Arena,
    ) -> Result<TransmitProgress, ContentChanged> {
        while let Some(Fetch {
            state: FetchState::Ready(_),
            ..
        }) = client.fetches.front()
        {
            if self.send_first_fetch(client, arena)? == TransmitProgress::Full {
                return Ok(TransmitProgress::Full);
            }
            if let Some(Fetch {
                plan,
                state: FetchState::Ready(arrived),
                ..
            }) = client.fetches.pop_front()
            {
                self.end_fetch(client, arena, &plan, arrived);
            }
        }
        if client.fetches.is_empty() {
            // The next fetch begins the queue's memory again, and not lines that are in no cache.
            client.fetches.clear();
            client.tcp.void_claims();
        }
        while let Some(control) = client.tcp.control() {
            let segment = client.tcp.control_segment(self.now, control);
            if self
                .frames
                .send(&client.route, &segment, &[], Framing::CONTROL)
                == Transmitted::Full
            {
                return Ok(TransmitProgress::Full);
            }
            self.telemetry.counters.tcp_control_segments += 1;
            client.tcp.on_control_transmitted(self.now, control);
            let empty = StreamRange::new(client.tcp.sent(), client.tcp.sent());
            self.telemetry
                .record_sent(self.now, client, &segment, empty, false);
        }
        Ok(TransmitProgress::Done)
    }

    /// A fetch was sent, or is not needed any more: its slot is kept if it has more for the client, or was sent on a
    /// path that loses. That of a retransmission is if more was lost of what it holds.
    fn end_fetch(
        &mut self,
        client: &mut Client,
        arena: &mut Arena,
        plan: &FetchPlan,
        arrived: Option<Arrived>,
    ) {
        let (claimed, acknowledged) = (client.tcp.claimed_once(), client.tcp.acknowledged());
        if let Some(key) = plan.kept {
            self.kept.end_plan(key);
            let end = self.kept.unsent_end(&client.kept, client.serial);
            if end.is_some_and(|end| claimed >= end) {
                client.ahead = ReadAhead::default();
                let is_kept_on = client.tcp.has_lost();
                let (of_client, owner) = (&mut client.kept, client.serial);
                (self.kept).on_all_sent(
                    self.now,
                    arena,
                    of_client,
                    owner,
                    is_kept_on,
                    acknowledged,
                );
            }
        }
        let (Some(arrived), Some(shape)) = (arrived, plan.read) else {
            return;
        };
        let is_unsent = claimed < shape.end && !plan.is_retransmission;
        let has_use = if plan.is_retransmission {
            plan.range.end < shape.end
        } else {
            is_unsent || client.tcp.has_lost()
        };
        let is_of_stream = shape.records.is_none() || arrived.is_sealed;
        if is_of_stream && has_use {
            let kept = Kept {
                owner: client.serial,
                shape,
                memory: KeptMemory::Slot(arrived.slot),
                usable_from: arrived.usable_from,
            };
            let of_client = &mut client.kept;
            (self.kept).keep(self.now, arena, of_client, kept, is_unsent, acknowledged);
        } else {
            arena.release(arrived.slot.into_free());
        }
    }

    /// Sends what must still be sent of the first fetch, in as few frames as the link allows.
    fn send_first_fetch(
        &mut self,
        client: &mut Client,
        arena: &mut Arena,
    ) -> Result<TransmitProgress, ContentChanged> {
        let Some(fetch) = client.fetches.front() else {
            return Ok(TransmitProgress::Done);
        };
        if client.tcp.admit(&fetch.claim).is_none() {
            self.telemetry.counters.session_read_stale_count +=
                u64::from(fetch.plan.read.is_some());
            return Ok(TransmitProgress::Done);
        }
        self.seal_first_fetch(client, arena)?;
        while let Some(fetch) = client.fetches.front()
            && let Some(admitted) = client.tcp.admit(&fetch.claim)
        {
            let framing = client.tcp.framing(&admitted);
            let admitted = admitted.beginning(self.frames.bytes_max(framing));
            let range = admitted.range();
            let before = client.tcp.retransmitted_bytes();
            let segment = client.tcp.segment(self.now, &admitted);
            let parts = parts_of(fetch, self.kept, &client.stream, arena, range);
            match self
                .frames
                .send(&client.route, &segment, parts.as_slice(), framing)
            {
                Transmitted::Full => return Ok(TransmitProgress::Full),
                Transmitted::Taken => {}
                Transmitted::Lent => self.lend(client, arena, range),
            }
            client.tcp.on_transmitted(self.now, admitted);
            let is_again = client.tcp.retransmitted_bytes() > before;
            self.count_data(range, is_again);
            self.telemetry
                .record_sent(self.now, client, &segment, range, is_again);
        }
        Ok(TransmitProgress::Done)
    }

    /// A frame of the first fetch is on loan, from `range.start` on at the latest. Only a slot's own bytes are the last
    /// part of a frame that a link lends.
    fn lend(&mut self, client: &mut Client, arena: &mut Arena, range: StreamRange) {
        let Some(fetch) = client.fetches.front_mut() else {
            return;
        };
        let kept_end = fetch.plan.kept_end();
        let from = range.start.max(fetch.plan.text_end());
        if let FetchState::Ready(Some(arrived)) = &mut fetch.state
            && range.end > kept_end
        {
            arrived.usable_from = from.max(kept_end);
            arena.lend(&arrived.slot);
        } else if let Some(kept) = fetch.plan.kept.and_then(|key| self.kept.get_mut(key))
            && let KeptMemory::Slot(slot) = &kept.memory
        {
            kept.usable_from = from;
            arena.lend(slot);
        }
    }

    /// Seals the first fetch in place, just before it is sent: its text if it is sent for the first
    /// time, and the records in its slot each time they were read.
    fn seal_first_fetch(
        &mut self,
        client: &mut Client,
        arena: &mut Arena,
    ) -> Result<(), ContentChanged> {
        let Client {
            fetches, stream, ..
        } = client;
        let Some(Fetch { plan, state, .. }) = fetches.front_mut() else {
            return Ok(());
        };
        stream.seal_text(StreamRange::new(plan.range.start, plan.text_end()));
        let (FetchState::Ready(Some(arrived)), Some(read)) = (state, plan.read) else {
            return Ok(());
        };
        let Some(run) = read.records.filter(|_| !arrived.is_sealed) else {
            return Ok(());
        };
        // The range is not acknowledged, so its run is still in the stream map.
        let records = stream.records_mut(read.stream_start);
        let records = records.expect("invariant: what is unacknowledged is in the map");
        let (before, behind) = run.room();
        let window = arena.window_mut(&mut arrived.slot, before, behind);
        let bytes = window.get_mut(read.records_place(&run));
        let bytes = bytes.expect("invariant: a ready slot holds all bytes of its fetch");
        let (fresh, again) = records.seal(&run, bytes)?;
        arrived.is_sealed = true;
        self.telemetry.counters.record_seal_count += fresh;
        self.telemetry.counters.record_reseal_count += again;
        self.telemetry.counters.record_seal_bytes += run.all_content_bytes();
        Ok(())
    }

    fn count_data(&mut self, range: StreamRange, is_retransmission: bool) {
        self.telemetry.counters.tcp_send_segments += 1;
        self.telemetry.counters.tcp_send_bytes += range.bytes();
        if is_retransmission {
            self.telemetry.counters.tcp_retransmit_segments += 1;
            self.telemetry.counters.tcp_retransmit_bytes += range.bytes();
        }
    }
}

impl Frames<'_, '_> {
    /// How many bytes of a fetch one frame carries: all where the link segments, unless it is to have
    /// one packet.
    fn bytes_max(&self, framing: Framing) -> u64 {
        if self.config.segmentation_bytes_max > 0 && !framing.is_single {
            u64::MAX
        } else {
            u64::from(framing.segment_bytes)
        }
    }

    /// Hands one frame to the link, which cuts it as `framing` says.
    fn send(
        &mut self,
        route: &Route,
        segment: &TcpRepr,
        payload: &[&[u8]],
        framing: Framing,
    ) -> Transmitted {
        let mut headers = [0; HEADERS_BYTES_MAX];
        let identification = self.outgoing.next_identification();
        let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
        let (checksum, mut offload) = if self.config.checksum_offload {
            let partial = Some(route.partial_checksum());
            (
                TcpChecksum::Partial,
                Offload {
                    checksum: partial,
                    segmentation: None,
                },
            )
        } else {
            (TcpChecksum::Full, Offload::default())
        };
        if payload_bytes > usize::from(framing.segment_bytes) {
            offload.segmentation = Some(Segmentation {
                kind: route.segmentation_kind(),
                segment_bytes: framing.segment_bytes,
            });
        }
        let length = wire::emit_tcp(
            &mut headers,
            route,
            segment,
            payload,
            checksum,
            identification,
        );
        let (headers, _) = headers.split_at_mut(length);
        if framing.ecn != Ecn::NotEct {
            wire::set_ecn(headers, framing.ecn);
        }
        (self.sink)(&Outgoing {
            headers,
            payload,
            offload,
        })
    }
}

/// The parts of one frame's payload, in order.
struct Parts<'a> {
    parts: [&'a [u8]; Outgoing::PARTS_MAX],
    count: usize,
}

impl<'a> Parts<'a> {
    const fn new() -> Self {
        Self {
            parts: [&[]; Outgoing::PARTS_MAX],
            count: 0,
        }
    }

    fn push(&mut self, part: &'a [u8]) {
        if !part.is_empty() {
            self.parts[self.count] = part;
            self.count += 1;
        }
    }

    fn as_slice(&self) -> &[&'a [u8]] {
        &self.parts[..self.count]
    }
}

/// Where the bytes of `range`, a part of the fetch's, are.
fn parts_of<'a>(
    fetch: &'a Fetch,
    kept: &'a KeptSlots,
    stream: &'a StreamMap,
    arena: &'a Arena,
    range: StreamRange,
) -> Parts<'a> {
    let mut parts = Parts::new();
    let plan = &fetch.plan;
    let kept_end = plan.kept_end();
    if let Some(key) = plan.kept
        && range.start < kept_end
    {
        let from = kept.get(key);
        let from = from.expect("invariant: what is planned from is kept");
        let range = StreamRange::new(range.start, range.end.min(kept_end));
        parts.push(kept.content(arena, from, range));
    }
    let text_end = plan.text_end();
    let text = StreamRange::new(range.start, text_end.clamp(range.start, range.end));
    if !text.is_empty() {
        parts.push(stream.text_bytes(text));
    }
    if let (FetchState::Ready(Some(arrived)), Some(read)) = (&fetch.state, plan.read) {
        let first = text_end.max(kept_end).max(range.start).min(range.end);
        let content = StreamRange::new(first, range.end);
        parts.push(read.content(arena, &arrived.slot, content));
    }
    parts
}
