//! What is ready leaves: in order per connection, at once, as large as the link takes.

use clock::Instant;
use memory::Arena;
use tcp::StreamRange;
use wire::{HEADERS_BYTES_MAX, Offload, Outgoing, Route, Segmentation, TcpChecksum, TcpRepr};

use super::Conductor;
use crate::client::Client;
use crate::counters::Counters;
use crate::fetch::{Fetch, FetchState};
use crate::stream_map::StreamMap;
use crate::{Config, TransmitProgress, Transmitted};

type Sink<'s> = dyn FnMut(&Outgoing<'_>) -> Transmitted + 's;

impl Conductor {
    /// Offers every frame that may leave now to `sink`, in order.
    pub fn transmit(
        &mut self,
        now: Instant,
        arena: &mut Arena,
        sink: &mut dyn FnMut(&Outgoing<'_>) -> Transmitted,
    ) -> TransmitProgress {
        loop {
            if self.outbox.transmit(sink) == TransmitProgress::Full {
                return TransmitProgress::Full;
            }
            if self.condemned.is_empty() {
                break;
            }
            self.abort_condemned(now, arena);
        }
        while let Some(index) = self.writers.pop() {
            let Some(client) = self.clients.entry_mut(index) else {
                continue;
            };
            let mut sender = Sender {
                now,
                config: &self.config,
                counters: &mut self.counters,
                identification: &mut self.identification,
                sink: &mut *sink,
            };
            let progress = sender.serve(client, arena);
            if progress == TransmitProgress::Full {
                self.writers.push_front(index);
            }
            self.settle(now, index);
            if progress == TransmitProgress::Full {
                return TransmitProgress::Full;
            }
        }
        TransmitProgress::Done
    }
}

/// What sending one client's frames juggles.
struct Sender<'a, 's> {
    now: Instant,
    config: &'a Config,
    counters: &'a mut Counters,
    identification: &'a mut u16,
    sink: &'a mut Sink<'s>,
}

impl Sender<'_, '_> {
    /// Sends the client's fetches that are ready, then what it has to say without data.
    fn serve(&mut self, client: &mut Client, arena: &mut Arena) -> TransmitProgress {
        while let Some(Fetch {
            state: FetchState::Ready(_),
            ..
        }) = client.fetches.front()
        {
            if self.send_first_fetch(client, arena) == TransmitProgress::Full {
                return TransmitProgress::Full;
            }
            let fetch = client.fetches.pop_front();
            if let Some(Fetch {
                state: FetchState::Ready(Some(slot)),
                ..
            }) = fetch
            {
                arena.release(slot.into_free());
            }
        }
        if client.fetches.is_empty() {
            client.tcp.void_claims();
        }
        while let Some(control) = client.tcp.control() {
            let segment = client.tcp.control_segment(self.now, control);
            if self.send(&client.route, &segment, &[], 0) == Transmitted::Full {
                return TransmitProgress::Full;
            }
            self.counters.tcp_control_segments += 1;
            client.tcp.on_control_transmitted(self.now, control);
        }
        TransmitProgress::Done
    }

    /// Sends what is still wanted of the first fetch, in as few frames as the link allows.
    fn send_first_fetch(&mut self, client: &mut Client, arena: &Arena) -> TransmitProgress {
        let Some(fetch) = client.fetches.front() else {
            return TransmitProgress::Done;
        };
        if client.admit(fetch.plan.range).is_none() {
            self.counters.session_read_stale_count += u64::from(fetch.plan.read.is_some());
        }
        while let Some(admitted) = client
            .fetches
            .front()
            .and_then(|fetch| client.admit(fetch.plan.range))
        {
            let Some(fetch) = client.fetches.front() else {
                break;
            };
            let range = self.frame_range(client, admitted);
            let before = client.tcp.retransmitted_bytes();
            let segment = client.tcp.segment(self.now, range);
            let parts = parts_of(fetch, &client.stream, arena, range);
            let segment_bytes = client.tcp.segment_bytes();
            if self.send(&client.route, &segment, &parts, segment_bytes) == Transmitted::Full {
                return TransmitProgress::Full;
            }
            client.tcp.on_transmitted(self.now, range);
            self.count_data(range, client.tcp.retransmitted_bytes() > before);
        }
        TransmitProgress::Done
    }

    /// The beginning of `admitted` that one frame carries.
    fn frame_range(&self, client: &Client, admitted: StreamRange) -> StreamRange {
        if self.config.segmentation_bytes_max > 0 {
            return admitted;
        }
        let bytes = admitted.bytes().min(u64::from(client.tcp.segment_bytes()));
        StreamRange::new(admitted.start, admitted.start + bytes)
    }

    fn count_data(&mut self, range: StreamRange, is_retransmission: bool) {
        self.counters.tcp_send_segments += 1;
        self.counters.tcp_send_bytes += range.bytes();
        if is_retransmission {
            self.counters.tcp_retransmit_segments += 1;
            self.counters.tcp_retransmit_bytes += range.bytes();
        }
    }

    /// Hands one frame to the link. `segment_bytes` is where a larger one is to be cut.
    fn send(
        &mut self,
        route: &Route,
        segment: &TcpRepr,
        payload: &[&[u8]],
        segment_bytes: u16,
    ) -> Transmitted {
        let mut headers = [0; HEADERS_BYTES_MAX];
        *self.identification = self.identification.wrapping_add(1);
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
        if payload_bytes > usize::from(segment_bytes) {
            let kind = route.segmentation_kind();
            offload.segmentation = Some(Segmentation {
                kind,
                segment_bytes,
            });
        }
        let length = wire::emit_tcp(
            &mut headers,
            route,
            segment,
            payload,
            checksum,
            *self.identification,
        );
        (self.sink)(&Outgoing {
            headers: &headers[..length],
            payload,
            offload,
        })
    }
}

/// Where the bytes of `range`, a part of the fetch's, are.
fn parts_of<'a>(
    fetch: &'a Fetch,
    stream: &'a StreamMap,
    arena: &'a Arena,
    range: StreamRange,
) -> [&'a [u8]; 2] {
    let text_end = fetch
        .plan
        .read
        .map_or(fetch.plan.range.end, |read| read.stream_start);
    let text = StreamRange::new(range.start, text_end.clamp(range.start, range.end));
    let text = if text.is_empty() {
        &[][..]
    } else {
        stream.text_bytes(text)
    };
    let (FetchState::Ready(Some(slot)), Some(read)) = (&fetch.state, fetch.plan.read) else {
        return [text, &[]];
    };
    let first = read.stream_start.max(range.start).min(range.end);
    let from = u64::from(read.skip_bytes) + first.since(read.stream_start);
    let bytes = range.end.since(first);
    let window = usize::try_from(from).unwrap_or(usize::MAX)
        ..usize::try_from(from + bytes).unwrap_or(usize::MAX);
    let payload = arena.payload(slot).get(window);
    [
        text,
        payload.expect("invariant: a ready slot holds all bytes of its fetch"),
    ]
}
