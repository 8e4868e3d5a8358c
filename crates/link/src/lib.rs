//! Packet I/O for one worker: receives and sends Ethernet frames, and queues none.
//!
//! A [`Link`] is chosen once at start and driven by one thread. There are seven:
//!
//! | type | frames pass through | other addresses on the interface |
//! |---|---|---|
//! | [`Tap`] on a tap | `/dev/net/tun`, virtio-net header | the host's, at the other end |
//! | [`Tap`] on a macvtap | `/dev/tapN` of an existing interface | none |
//! | [`Packet`] | `AF_PACKET` socket, virtio-net header | the kernel's |
//! | [`Xdp`] | `AF_XDP` socket of one receive queue, XDP program | the kernel's; ours may be, too |
//! | [`XdpPacket`] | received through [`Xdp`], sent as by [`Packet`] | the kernel's; ours may be, too |
//! | [`Relay`] | a second TCP stack in this process, between it and the host's sockets | none |
//! | [`sim::SimLink`] | a seeded virtual wire with faults | those of the simulated clients |
//!
//! A [`Packet`] or a [`Tap`] is one queue of its interface. With several workers each has a queue of its
//! own ([`Packet::open_queues`], [`Tap::open_queues`]), and nothing is shared between them: a queue may
//! be sent to another thread than opened it. All frames of one client reach one queue: by the rule of
//! [`steering`] on a packet socket, by the kernel's own on a tap (the queue that last sent to this
//! client) and a macvtap (a hash of addresses and ports). A segment may still reach a wrong queue, where
//! a rule changes while connections live, and ICMP errors do on a tap and a macvtap.
//!
//! [`Captured`] wraps any of them and writes the frames that pass to a pcap file.
//!
//! It refuses to queue: when [`Link::transmit`] returns, the kernel has the frame or the error says
//! why not, and the caller may use the frame's memory again, except a slot that the link took on
//! loan ([`Sent::Lent`]): its device reads the slot until [`Link::give_back`] names it. It refuses to
//! block, to log and to parse more of a frame than an offload needs.
//!
//! Bounds, all allocated at start:
//!
//! | link | memory |
//! |---|---|
//! | a queue of a tap or macvtap | one receive buffer of 64 KB |
//! | a queue of a packet socket | one receive buffer of 64 KB, a ring of 4 MiB |
//! | AF_XDP socket | one receive buffer of 4 KB, cells of 16 MiB |
//! | AF_XDP and packet socket | one receive buffer of 4 KB, cells of 8 MiB |
//! | relay | one receive buffer of 32 KB; 72 MiB for its connections, once they are used |
//! | simulated | allocates per frame; bounded by its queues |
//!
//! No reference is ever formed to bytes the kernel may write. Frames are copied out of the receive
//! ring, whose status words are accessed atomically by both sides. The kernel accesses all other
//! buffers only during a system call, but the cells of an AF_XDP socket: those are copied in and out, never
//! referenced.

use std::io::IoSlice;
use std::net::IpAddr;

use clock::{Duration, Instant};
use memory::SlotMemory;
use wire::{ChecksumState, MacAddress, Outgoing};

mod counters;
mod error;
mod features;
mod interface;
mod netdev;
mod netlink;
mod offers;
pub mod packet;
pub mod pcap;
mod refusal;
pub mod relay;
pub mod sim;
pub mod steering;
mod sys;
pub mod tap;
mod unix_owner;
mod vnet;
mod watch;
pub mod xdp;
mod xdp_packet;

pub use counters::LinkCounters;
pub use error::{CopyReason, LinkError, SetupError, TransmitError};
pub use interface::{
    InterfaceAddress, interface_exists, interface_mac, interface_mtu_bytes, is_macvtap,
};
pub use netlink::VlanTag;
pub use offers::{InterfaceOffers, interface_offers};
pub use packet::{MacChoice, Packet, PacketConfig, ZeroCopy};
pub use pcap::{CaptureConfig, Captured};
pub use relay::{Relay, RelayConfig};
pub use steering::QUEUES_MAX;
pub use tap::{Tap, TapConfig};
pub use unix_owner::abstract_name_owner;
pub use watch::{InterfaceState, InterfaceWatch};
pub use xdp::{AddressUse, AttachMode, ChecksumOffload, Xdp, XdpConfig, XdpShape, XdpStatistics};
pub use xdp_packet::XdpPacket;

/// Largest IP packet any link takes or hands up, bytes: what the 16-bit IPv4 length can say.
pub const IP_PACKET_BYTES_MAX: u32 = 65_535;

/// How long a caller waits at most before it offers a frame again after [`TransmitError::Full`].
///
/// A full socket buffer makes the descriptor unwritable, and polling for writability is enough.
/// A full device queue behind a packet socket that bypasses the queueing discipline does not:
/// the descriptor stays writable while every frame is refused. So the wait needs a limit: 500 us is
/// 40 full packets of 64 KB at 40 Gb/s, well inside any device queue. `[guess]`
pub const FULL_RETRY_AFTER: Duration = Duration::from_micros(500);

/// Payload in a slot, bytes, that is worth a loan: below, a copy is cheaper than a completion. `[guess]`
pub const LENT_BYTES_MIN: usize = 4_096;

/// How long a device may refuse every frame before the link drops the current one.
///
/// A frame that waits blocks all frames behind it, answers to ARP included. A device may refuse a
/// frame for ever, because its queue has stopped or because it will never take this frame. A queue
/// that is merely full has room again much sooner: 20 ms are 25 frames of 64 KB at 1 Gb/s. They are
/// also two round trips of a client in the same city, so the loss costs little. `[guess]`
pub const REFUSED_FOR_MAX: Duration = Duration::from_millis(20);

/// How often a link that receives nothing asks the kernel for the state of its interface, where no
/// notification reports it.
const STATE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Bytes of an Ethernet header: two addresses and a type.
pub(crate) const ETHERNET_BYTES: usize = 14;

/// Most pieces of memory one frame is gathered from: virtio-net header, headers, payload parts.
const GATHER_MAX: usize = 2 + Outgoing::PARTS_MAX;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Smallest payload part that is worth aligning: a page. The parts before a body (a record's
/// header, a reply's head) are smaller.
const ALIGNED_PART_BYTES_MIN: usize = 4096;

/// Most payload bytes before the part to align: the kernel allocates contiguous memory for them.
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

/// Which way frames pass between a link and its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramePath {
    /// Where an XDP program takes the frames that are received; `None`: no program does.
    pub program: Option<ProgramPlace>,
    /// Whether the device itself accesses the memory of the AF_XDP sockets, and the kernel copies nothing.
    pub is_zero_copy: bool,
    /// Who computes the checksums of frames that are sent.
    pub checksums: Checksums,
}

/// Who computes the transport checksums of frames that are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// The device, or the kernel for one that cannot.
    #[default]
    Device,
    /// The link, which reads all bytes for it.
    Software,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramPlace {
    /// In the driver, before the kernel has made a socket buffer.
    Driver,
    /// Behind it.
    Generic,
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

/// How a frame was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The frame was copied.
    Copied,
    /// The device reads the last payload part where it is, in the slot of this number. Nobody may
    /// write the slot, its headroom included, until [`Link::give_back`] names it.
    Lent(u32),
}

/// Packet I/O for one worker: chosen once at start.
pub trait Link {
    /// What this link can do. Only [`Link::apply_interface_state`] changes it.
    fn capabilities(&self) -> Capabilities;

    /// Which way frames pass. It does not change.
    fn frame_path(&self) -> FramePath {
        FramePath::default()
    }

    /// Applies the interface's new MTU and GSO limit, and returns what the link can do now. A link
    /// without an interface ignores them.
    fn apply_interface_state(&mut self, state: &InterfaceState) -> Capabilities {
        let _ = state;
        self.capabilities()
    }

    /// Takes frames to these addresses of the host's from now on, and to no others of its. By one link of an
    /// interface for all. A link with addresses of its own ignores it.
    ///
    /// # Errors
    /// `E2BIG` with more than [`ADDRESSES_MAX`](packet::ADDRESSES_MAX); what the kernel said.
    fn share_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), i32> {
        let _ = addresses;
        Ok(())
    }

    /// Whether frames reach this link from now on. While another process has them, it still sends, and hands over
    /// those that had reached it before.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the link can't hand over to another process; `EBUSY` if the device goes on reading slots on loan, and
    /// the link goes on as before; what the kernel said.
    fn set_receiving(&mut self, is_receiving: bool) -> Result<(), i32> {
        let _ = is_receiving;
        Err(libc::EOPNOTSUPP)
    }

    /// Hands up to `frames_max` waiting frames to `sink`, never blocks, returns how many.
    ///
    /// An interface that is down yields 0 frames and is counted; it is no error, and traffic goes on
    /// when the interface is up again. Frames larger than their buffer are dropped and counted.
    ///
    /// # Errors
    /// [`LinkError::Gone`] from when the interface no longer exists. A call notices the removal up
    /// to 5 ms of `now` later. The removal may wake no poll, so an idle caller calls on a timer.
    fn receive(
        &mut self,
        now: Instant,
        frames_max: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, LinkError>;

    /// Whether the device was to be polled when the link is driven ([`XdpConfig::busy_poll_us`]), and the
    /// first frame showed that the kernel does not: its driver has not told what to poll. Interrupts bring
    /// the frames then.
    fn is_polling_in_vain(&self) -> bool {
        false
    }

    /// Whether [`Link::borrow_slots`] is worth calling.
    ///
    /// # Errors
    /// Why not.
    fn zero_copy(&self) -> Result<(), CopyReason> {
        Err(CopyReason::Unsupported)
    }

    /// The best distance from one slot to the next for [`Link::borrow_slots`], bytes: `stride_bytes`, which a slot takes
    /// with its room, or more if the link's own memory is allocated in larger pieces.
    fn lent_stride_bytes(&self, stride_bytes: usize) -> usize {
        stride_bytes
    }

    /// From now on frames whose last payload part is in one of these slots may be sent from there,
    /// without a copy. Called at most once, before the first frame, and before a device knows the
    /// slots, which are in ordinary pages: the link may put other pages in their place. It takes a
    /// descriptor for each slot.
    ///
    /// # Errors
    /// Why frames are copied all the same.
    fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), CopyReason> {
        let _ = slots;
        Err(CopyReason::Unsupported)
    }

    /// Gives the memory of [`Link::borrow_slots`] back: in place of what the link put there are ordinary
    /// pages with undefined content. Frames are copied from now on. Called when the link is not needed
    /// any more, before the arena is dropped; a link that is dropped without it may take the kernel a
    /// minute.
    fn return_slots(&mut self) {}

    /// Names each slot that the device has read since it was lent.
    fn give_back(&mut self, now: Instant, sink: &mut dyn FnMut(u32)) {
        let _ = (now, sink);
    }

    /// Sends one frame. After the call (any result but [`Sent::Lent`]) the caller may use the frame's
    /// memory again.
    ///
    /// # Errors
    /// [`TransmitError::Full`]: nothing was sent; offer the same frame again when
    /// [`Link::writable_fd`] is writable, and not sooner than other work or [`FULL_RETRY_AFTER`] passed
    /// (see there why writability alone is not enough). When the device has refused for
    /// [`REFUSED_FOR_MAX`], the frame is lost instead.
    /// [`TransmitError::Lost`]: the frame is dropped, as if the network had dropped it; do not offer
    /// it again at once.
    fn transmit(&mut self, now: Instant, frame: &Outgoing<'_>) -> Result<Sent, TransmitError>;

    /// The descriptor to poll for readability; `None` in simulation.
    fn poll_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>>;

    /// The descriptor to poll for requests: readable when a frame longer than an acknowledgment has come since
    /// [`Link::clear_requests`]. `None`: this link does not tell.
    fn request_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// Forgets the requests that have come; called before a sleep. Returns whether frames wait to be received, which may
    /// be requests: then they are to be received first.
    fn clear_requests(&mut self) -> bool {
        false
    }

    /// The descriptor to poll for writability after `Full`; `None` in simulation.
    fn writable_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.poll_fd()
    }

    /// What passed and what did not, since the link was opened.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// The pieces of a frame in the order they leave, behind `header`, which is the link's own; and how
/// many.
///
/// # Panics
/// If the frame has more than [`Outgoing::PARTS_MAX`] payload parts.
fn gather<'a>(header: &'a [u8], frame: &Outgoing<'a>) -> ([IoSlice<'a>; GATHER_MAX], usize) {
    let count = frame.payload.len();
    assert!(
        count <= Outgoing::PARTS_MAX,
        "a frame of {count} payload parts"
    );
    let mut pieces = [IoSlice::new(&[]); GATHER_MAX];
    let sources = [header, frame.headers]
        .into_iter()
        .chain(frame.payload.iter().copied());
    for (piece, source) in pieces.iter_mut().zip(sources) {
        *piece = IoSlice::new(source);
    }
    (pieces, 2 + count)
}

/// Bytes at a frame's start that the kernel is to keep linear (in one piece): the headers, and the
/// payload up to the first cache line of the first part worth aligning. The kernel copies the rest
/// into pages, from a page's start.
///
/// The copy then has the same offset in a cache line as its source. Otherwise the five bytes of a
/// TLS record's header would shift each body by five bytes. The kernel copies with `rep movsb`,
/// which takes ten times as long if the target is 1 to 15 bytes ahead of the source within a page:
/// 0.31 instead of 0.03 s/GB on an AMD EPYC of family 25, model 17.
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

/// The largest IP packet that a device takes uncut. `gso_bytes_max` is the device's `gso_max_size`:
/// 65,536 on most devices, and assumed where it is unknown.
///
/// The kernel compares `gso_max_size` with the whole frame, Ethernet header included, and cuts a
/// frame that is as large or larger: an IP packet of 65,521 bytes passes in one piece, one of 65,522
/// in forty-six. When the queueing discipline is bypassed, the kernel refuses the larger one
/// (docs/develop/decisions/0005-packet-io.md).
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

    /// Starts at a cache line.
    #[repr(align(64))]
    struct Slot([u8; 2 * ALIGNED_PART_BYTES_MIN]);

    const SLOT: Slot = Slot([0; 2 * ALIGNED_PART_BYTES_MIN]);

    /// Payload bytes that stay linear in a frame with 54 bytes of headers.
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
    fn the_copy_of_a_body_keeps_its_offset_in_the_cache_line() {
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
    fn parts_below_a_page_or_behind_2048_bytes_are_not_aligned() {
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
        let payload: [&[u8]; 2] = [b"", b"cdd"];
        let frame = Outgoing {
            headers: b"bb",
            payload: &payload,
            offload: Offload::default(),
        };
        let (pieces, count) = gather(b"a", &frame);
        let all: Vec<u8> = pieces[..count]
            .iter()
            .flat_map(|piece| piece.to_vec())
            .collect();
        assert_eq!((all.as_slice(), frame.bytes()), (b"abbcdd".as_slice(), 5));
    }

    #[test]
    #[should_panic(expected = "3 payload parts")]
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
