//! Writing alone: frames of a fetch through `link`'s packet socket, out of slots in turn.
//!
//! They go to a MAC address nobody has, so the kernel at the other end of the link drops each as
//! another host's as soon as it looks. Included: the headers, the system call, lending the frame and taking it back, and
//! the device, which is the wire of `atlas-bench wire`. Left out: deciding what to send.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clock::Instant;
use link::{Link as _, Packet, PacketConfig, Sent, TransmitError, ZeroCopy};
use memory::{Arena, FilledSlot};
use nic_wire::sink::Sink;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::{
    HEADERS_BYTES_MAX, MacAddress, Offload, Outgoing, Route, Segmentation, SeqNumber, TcpChecksum,
    TcpFlags, TcpOptions, TcpRepr, Timestamps,
};

use crate::FETCH_BYTES;
use crate::args::WriteArgs;
use crate::seal::filled_slots;
use crate::timing::Step;

/// A locally administered address that nobody has: the server's derive from a hash.
const NOBODY: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x99]);

/// Of the documentation's network (RFC 5737): never routed.
const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Nobody listens there.
const PORT: u16 = 20_000;

/// Bytes of IPv4 and TCP headers with timestamps.
const HEADERS_BYTES: u16 = 20 + 32;

/// Frames in what stands for a round of the server.
const ROUND_FRAMES: usize = 8;

/// Longest wait for room: then the link has failed.
const ROOM_TIME_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Writer {
    link: Packet,
    arena: Arena,
    slots: Vec<FilledSlot>,
    route: Route,
    segment: TcpRepr,
    segment_bytes: u16,
    identification: u16,
    /// What takes the frames; goes after the link.
    sink: Sink,
}

impl Writer {
    pub(crate) fn new(args: &WriteArgs) -> Result<Self> {
        let source = IpAddr::V4(args.address);
        let sink = Sink::open(&args.interface, args.sink_core)?;
        let mut config = PacketConfig::new(&args.interface, &[source]);
        config.zero_copy = ZeroCopy::On;
        let mut link = Packet::open(&config)?;
        let (arena, slots) = filled_slots(args.slots)?;
        let borrowed = link.borrow_slots(arena.slot_memory());
        borrowed.map_err(|reason| anyhow!("slots cannot be lent: {reason}"))?;
        let capabilities = link.capabilities();
        let segment_bytes = capabilities.mtu_bytes.saturating_sub(HEADERS_BYTES);
        let frame_bytes = FETCH_BYTES + u32::from(HEADERS_BYTES);
        if capabilities.segmentation_bytes_max < frame_bytes || segment_bytes == 0 {
            let interface = &args.interface;
            bail!("{interface} takes no frames of {frame_bytes} bytes: use another interface");
        }
        Ok(Self {
            arena,
            slots,
            route: Route {
                source_mac: capabilities.mac,
                destination_mac: NOBODY,
                source,
                destination: NOBODY_V4.into(),
            },
            link,
            segment: segment(),
            segment_bytes,
            identification: 0,
            sink,
        })
    }

    /// Ends the loans of slots that the device has read.
    fn give_back(&mut self) {
        let arena = &mut self.arena;
        let sink = &mut |index| arena.give_back(index);
        self.link.give_back(Instant::ZERO, sink);
    }

    /// Waits until a slot is not on loan. As a server does in each of its rounds, it looks for others that
    /// are not, too: a quarter of the slots is never lent.
    fn take_back(&mut self, slot: usize) -> Result<()> {
        if slot.is_multiple_of(ROUND_FRAMES) {
            self.give_back();
        }
        let start = std::time::Instant::now();
        while self.arena.is_lent(&self.slots[slot]) {
            self.give_back();
            ensure!(
                start.elapsed() < ROOM_TIME_MAX,
                "the device gives a slot back too late"
            );
        }
        Ok(())
    }

    /// One slot's frame; waits for room.
    fn send(&mut self, slot: usize) -> Result<()> {
        self.take_back(slot)?;
        let payload = [self.arena.payload(&self.slots[slot])];
        self.identification = self.identification.wrapping_add(1);
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length = wire::emit_tcp(
            &mut headers,
            &self.route,
            &self.segment,
            &payload,
            TcpChecksum::Partial,
            self.identification,
        );
        let frame = Outgoing {
            headers: &headers[..length],
            payload: &payload,
            offload: Offload {
                checksum: Some(self.route.partial_checksum()),
                segmentation: Some(Segmentation {
                    kind: self.route.segmentation_kind(),
                    segment_bytes: self.segment_bytes,
                }),
            },
        };
        let start = std::time::Instant::now();
        let sent = loop {
            let error = match self.link.transmit(Instant::ZERO, &frame) {
                Ok(sent) => break sent,
                Err(error) => error,
            };
            let waited = start.elapsed();
            if error != TransmitError::Full || waited > ROOM_TIME_MAX {
                return Err(error).context("sending a frame");
            }
            // Writable it may be all the time: see `link::FULL_RETRY_AFTER`.
            let pause = Timespec::try_from(link::FULL_RETRY_AFTER)?;
            let room = self
                .link
                .writable_fd()
                .context("a real link has a descriptor")?;
            poll(&mut [PollFd::new(&room, PollFlags::OUT)], Some(&pause))?;
        };
        match sent {
            Sent::Lent(_) => self.arena.lend(&self.slots[slot]),
            Sent::Copied => bail!("a frame was copied"),
        }
        self.segment.sequence = self.segment.sequence.wrapping_add(FETCH_BYTES);
        Ok(())
    }
}

impl Drop for Writer {
    /// The slots are the kernel's rings until then.
    fn drop(&mut self) {
        self.link.return_slots();
    }
}

/// The header of a segment of data, as `tcp` has them.
fn segment() -> TcpRepr {
    TcpRepr {
        source_port: 80,
        destination_port: PORT,
        sequence: SeqNumber(1),
        acknowledgment: SeqNumber(1),
        flags: TcpFlags::ACK.union(TcpFlags::PSH),
        window: 1024,
        options: TcpOptions {
            timestamps: Some(Timestamps { value: 1, echo: 1 }),
            ..TcpOptions::default()
        },
    }
}

impl Step for Writer {
    fn step(&mut self) -> Result<u64> {
        for slot in 0..self.slots.len() {
            self.send(slot)?;
        }
        let lost = self.sink.lost_frames()?;
        ensure!(
            lost == 0,
            "{lost} frames were not taken in time from the wire"
        );
        Ok(self.slots.len() as u64 * u64::from(FETCH_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_long_as_counted() {
        assert_eq!(20 + segment().header_bytes(), usize::from(HEADERS_BYTES));
    }

    #[test]
    fn nobody_is_one_locally_administered_station() {
        let [first, ..] = NOBODY.0;
        assert_eq!(first & 0b11, 0b10, "local, and no group");
    }
}
