//! Packet I/O for one worker: frames in, frames out, nothing kept.
//!
//! A [`Link`] is chosen once at start and driven by one thread. Four of them exist:
//!
//! | type | what carries the frames | who else has an address there |
//! |---|---|---|
//! | [`Tap`] on a tap | `/dev/net/tun`, virtio-net header | the host, at the other end |
//! | [`Tap`] on a macvtap | `/dev/tapN` of an existing interface | nobody |
//! | [`Packet`] | `AF_PACKET` socket, virtio-net header | the kernel, beside us |
//! | [`sim::SimLink`] | a seeded virtual wire with faults | whoever the simulation says |
//!
//! [`Captured`] wraps any of them and writes a pcap file of what passes.
//!
//! It refuses to queue: [`Link::transmit`] has either handed the frame to the kernel when it
//! returns, or says why not, and the memory the frame named is the caller's again. It refuses to
//! block, to log and to parse beyond what an offload needs.
//!
//! Bounds: one receive buffer of 64 KB for a tap, that and a ring of 4 MiB for a packet socket, all
//! allocated at start; nothing is allocated afterwards. The simulated wire allocates
//! per frame and is bounded by its queues.
//!
//! No reference is ever formed to bytes the kernel may write: frames are copied out of the ring
//! it shares with us, whose status words are atomics on both sides, and other buffers are its own
//! only during a system call.

use std::io::IoSlice;

use clock::{Duration, Instant};
use wire::{ChecksumState, MacAddress, Outgoing};

mod counters;
mod error;
mod interface;
mod netlink;
pub mod packet;
pub mod pcap;
mod refusal;
pub mod sim;
mod sys;
pub mod tap;
mod vnet;
mod watch;

pub use counters::LinkCounters;
pub use error::{LinkError, SetupError, TransmitError};
pub use interface::{
    InterfaceAddress, interface_exists, interface_mac, interface_mtu_bytes, is_macvtap,
};
pub use packet::{MacChoice, Packet, PacketConfig};
pub use pcap::{CaptureConfig, Captured};
pub use tap::{Tap, TapConfig};
pub use watch::{InterfaceState, InterfaceWatch};

/// Largest IP packet any link takes or hands up, bytes: what the 16-bit IPv4 length can say.
pub const IP_PACKET_BYTES_MAX: u32 = 65_535;

/// How long a caller waits at most before it offers a frame again after [`TransmitError::Full`].
///
/// A full socket buffer makes the descriptor unwritable, and polling for writability is enough.
/// A full device queue behind a packet socket that bypasses the queueing discipline does not:
/// the descriptor stays writable while every frame is refused. The wait must therefore have an
/// end; 500 us is 40 full packets of 64 KB at 40 Gb/s, well inside any device queue. `[guess]`
pub const FULL_RETRY_AFTER: Duration = Duration::from_micros(500);

/// How long a device may refuse every frame before the link gives the one at hand up.
///
/// A frame that is held stops all that is behind it, answers to ARP included, and a device may
/// refuse it for ever: because its queue has stopped, or because it will never take this frame. A
/// queue that only is full has room again much sooner: 20 ms are 25 frames of 64 KB at 1 Gb/s, and
/// two round trips of a client in the same city, so a loss costs it little. `[guess]`
pub const REFUSED_FOR_MAX: Duration = Duration::from_millis(20);

/// How often a link with nothing to receive asks how its interface is, where nothing tells.
const STATE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Bytes of an Ethernet header: two addresses and a type.
pub(crate) const ETHERNET_BYTES: usize = 14;

/// Most pieces of memory one frame is gathered from: virtio-net header, headers, payload parts.
const GATHER_MAX: usize = 2 + Outgoing::PARTS_MAX;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// From so many bytes on a payload part is worth aligning: a page. What stands before a body, a
/// record's header or a reply's head, is less.
const ALIGNED_PART_BYTES_MIN: usize = 4096;

/// Most payload bytes before the part to align: the kernel allocates room for them in one piece.
const LINEAR_PAYLOAD_BYTES_MAX: usize = 2048;

/// What a link can do, asked once at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Our MAC address on it.
    pub mac: MacAddress,
    /// Largest IP packet of one frame on the wire, bytes.
    pub mtu_bytes: u16,
    /// Largest IP packet [`Link::transmit`] takes with `Offload::segmentation` set, bytes;
    /// 0: none, the caller cuts to the MTU first.
    pub segmentation_bytes_max: u32,
    /// Whether `Offload::checksum` may be set.
    pub checksum_offload: bool,
}

/// One received frame, borrowed from the link until the sink returns.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// From the destination MAC to the last payload byte, without frame check sequence. May be
    /// larger than the MTU (receive offload), up to 14 + [`IP_PACKET_BYTES_MAX`] bytes.
    pub frame: &'a [u8],
    /// What is known of its transport checksum.
    pub checksum: ChecksumState,
}

/// Packet I/O for one worker: chosen once at start.
pub trait Link {
    /// What this link can do. Does not change but by [`Link::follow`].
    fn capabilities(&self) -> Capabilities;

    /// Takes over what has become of the interface, as far as it limits frames, and returns what
    /// the link can do now. A link without an interface stays as it is.
    fn follow(&mut self, state: &InterfaceState) -> Capabilities {
        let _ = state;
        self.capabilities()
    }

    /// Hands up to `frames_max` waiting frames to `sink`, never blocks, returns how many.
    ///
    /// An interface that is down yields 0 frames and is counted, not an error: traffic goes on
    /// when it comes back. Frames that did not fit their buffer are dropped and counted.
    ///
    /// # Errors
    /// [`LinkError::Gone`] once the interface no longer exists, and ever after. A removed
    /// interface may be noticed up to 5 ms of `now` after its removal, and only
    /// by a call: with no frame and no error to wake it, an idle caller asks on a timer.
    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError>;

    /// Sends one frame. On return (any result) the memory it named is the caller's again.
    ///
    /// # Errors
    /// [`TransmitError::Full`]: nothing was sent; offer the same frame again when
    /// [`Link::room_fd`] is writable, and not sooner than other work or [`FULL_RETRY_AFTER`] passed
    /// (see there why writability alone is not enough). A device that refuses for
    /// [`REFUSED_FOR_MAX`] is not waited for any longer: then the frame is lost instead.
    /// [`TransmitError::Lost`]: the frame is gone as if the network had dropped it; do not offer
    /// it again at once.
    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<(), TransmitError>;

    /// The descriptor to poll for readability; `None` in simulation.
    fn poll_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>>;

    /// The descriptor to poll for writability after `Full`; `None` in simulation.
    fn room_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.poll_fd()
    }

    /// What passed and what did not, since the link was opened.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// The pieces of a frame in the order they leave, how many, and the frame's bytes without
/// `header` (which is the link's own).
///
/// # Panics
/// If the frame has more than [`Outgoing::PARTS_MAX`] payload parts.
fn gather<'a>(header: &'a [u8], frame: &Outgoing<'a>) -> ([IoSlice<'a>; GATHER_MAX], usize, usize) {
    let count = frame.payload.len();
    assert!(
        count <= Outgoing::PARTS_MAX,
        "a frame of {count} payload parts"
    );
    let mut pieces = [IoSlice::new(&[]); GATHER_MAX];
    let mut bytes = frame.headers.len();
    let sources = [header, frame.headers]
        .into_iter()
        .chain(frame.payload.iter().copied());
    for (piece, source) in pieces.iter_mut().zip(sources) {
        *piece = IoSlice::new(source);
    }
    for part in frame.payload {
        bytes += part.len();
    }
    (pieces, 2 + count, bytes)
}

/// Bytes from a frame's start that the kernel is to keep in one piece, before the pages it copies
/// the rest into: the headers, and what stands before the first part worth aligning and before that
/// part's first cache line.
///
/// The rest then lands as far from a line's start as it comes from. Else the five bytes of a TLS
/// record's header put each body five bytes further on than it was read, and `rep movsb`, which the
/// kernel copies with, takes ten times as long where the target is 1 to 15 bytes ahead of the source
/// in a page: 0.31 instead of 0.03 s/GB on an AMD EPYC of family 25, model 17.
fn linear_bytes(frame: &Outgoing<'_>) -> usize {
    let headers = frame.headers.len();
    let mut bytes = headers;
    for part in frame.payload {
        if part.len() >= ALIGNED_PART_BYTES_MIN {
            let past_line = part.as_ptr().addr() % LINE_BYTES;
            return bytes + (LINE_BYTES - past_line) % LINE_BYTES;
        }
        bytes += part.len();
        if bytes > headers + LINEAR_PAYLOAD_BYTES_MAX {
            break;
        }
    }
    headers
}

/// The largest IP packet that a device takes in one piece, from the size at which the kernel
/// starts to cut instead (`gso_max_size`, 65,536 on most devices; unknown: the same).
///
/// The kernel compares that size with the whole frame, Ethernet header included, and cuts from
/// equality on: 65,521 bytes of IP pass in one piece and 65,522 in forty-six, or, when the
/// queueing discipline is bypassed, not at all (docs/decisions/0005-packet-io.md).
fn segmentation_bytes_max(gso_bytes_max: Option<u32>) -> u32 {
    const KERNEL_DEFAULT: u32 = 65_536;
    const OVERHEAD: u32 = 14 + 1;
    let cut_from = gso_bytes_max.unwrap_or(KERNEL_DEFAULT);
    cut_from.saturating_sub(OVERHEAD).min(IP_PACKET_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use wire::{Offload, Outgoing};

    use super::{
        ALIGNED_PART_BYTES_MIN, IP_PACKET_BYTES_MAX, LINE_BYTES, LINEAR_PAYLOAD_BYTES_MAX, gather,
        linear_bytes, segmentation_bytes_max,
    };

    /// Begins with a line.
    #[repr(align(64))]
    struct Slot([u8; 2 * ALIGNED_PART_BYTES_MIN]);

    const SLOT: Slot = Slot([0; 2 * ALIGNED_PART_BYTES_MIN]);

    /// Of a frame with 54 bytes of headers, those of the payload that stay with them.
    fn linear_payload(payload: &[&[u8]]) -> usize {
        let headers = [0; 54];
        let frame = Outgoing {
            headers: &headers,
            payload,
            offload: Offload::default(),
        };
        linear_bytes(&frame) - headers.len()
    }

    #[test]
    fn bodies_are_copied_to_a_line_s_start_from_one() {
        let slot = SLOT;
        let page = ALIGNED_PART_BYTES_MIN;
        let body = |from: usize| &slot.0[from..from + page];
        assert_eq!(linear_payload(&[body(0)]), 0);
        assert_eq!(linear_payload(&[&[0; 5], body(0)]), 5, "a record's header");
        assert_eq!(linear_payload(&[&[0; 300], &[0; 5], body(0)]), 305);
        assert_eq!(linear_payload(&[body(0), &[0; 22], body(LINE_BYTES)]), 0);
        // A record sent again from its middle.
        assert_eq!(linear_payload(&[body(1)]), LINE_BYTES - 1);
        assert_eq!(linear_payload(&[&[0; 5], body(LINE_BYTES - 1)]), 5 + 1);
        assert_eq!(linear_payload(&[&[0; 5], body(LINE_BYTES)]), 5);
    }

    #[test]
    fn what_is_less_than_a_page_or_behind_too_much_is_not_worth_aligning() {
        let slot = SLOT;
        let page = ALIGNED_PART_BYTES_MIN;
        assert_eq!(linear_payload(&[]), 0);
        assert_eq!(linear_payload(&[&[0; 300]]), 0);
        assert_eq!(linear_payload(&[&[0; 5], &slot.0[1..page]]), 0);
        assert_eq!(linear_payload(&[&[0; 5], &slot.0[..page]]), 5);
        let (before, most) = ([0; LINEAR_PAYLOAD_BYTES_MAX + 1], LINEAR_PAYLOAD_BYTES_MAX);
        assert_eq!(linear_payload(&[&before[..most], &slot.0]), most);
        assert_eq!(linear_payload(&[&before, &slot.0]), 0);
    }

    #[test]
    fn the_largest_packet_leaves_room_for_its_ethernet_header() {
        assert_eq!(segmentation_bytes_max(Some(65_536)), 65_521);
        assert_eq!(segmentation_bytes_max(None), 65_521);
        assert_eq!(segmentation_bytes_max(Some(524_280)), IP_PACKET_BYTES_MAX);
        assert_eq!(segmentation_bytes_max(Some(0)), 0);
    }

    #[test]
    fn a_frame_is_gathered_in_order_and_counted_without_our_header() {
        let payload: [&[u8]; 4] = [b"c", b"", b"dd", b"e"];
        let frame = Outgoing {
            headers: b"bb",
            payload: &payload,
            offload: Offload::default(),
        };
        let (pieces, count, bytes) = gather(b"a", &frame);
        let all: Vec<u8> = pieces[..count]
            .iter()
            .flat_map(|piece| piece.to_vec())
            .collect();
        assert_eq!((all.as_slice(), bytes), (b"abbcdde".as_slice(), 6));
    }

    #[test]
    #[should_panic(expected = "35 payload parts")]
    fn a_part_too_many_is_a_programming_error() {
        let payload: [&[u8]; Outgoing::PARTS_MAX + 1] = [b"x"; Outgoing::PARTS_MAX + 1];
        let frame = Outgoing {
            headers: b"",
            payload: &payload,
            offload: Offload::default(),
        };
        let _ = gather(b"", &frame);
    }
}
