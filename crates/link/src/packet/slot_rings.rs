//! Transmit rings (`PACKET_TX_RING`) in the slots' own memory: a frame is sent from where the disk put
//! it, without a copy.
//!
//! The kernel takes a ring's frames in order only, and reads complete in any order, so there is one
//! socket with a ring of one entry for each slot. The entry's memory is the slot's: the kernel's
//! header (`struct tpacket2_hdr`) stands in the slot's first 32 bytes, a frame's headers right before
//! its payload (`PACKET_TX_HAS_OFF`). The kernel attaches the pages to the frame, and marks the entry
//! available when the device has read it.
//!
//! Making and closing a ring waits for one or two RCU grace periods, which take 10 to 100 ms each. So
//! [`RING_THREADS`] threads do it at once, and their grace periods are the same: 512 rings, one after the
//! other, took 7 s to make and 16 s to close.
//!
//! It refuses frames that are not in one piece but for their headers, and slots on loan: those are
//! copied. Bounded by: one descriptor for each slot; [`SlotMemory::lent_max`].
//!
//! Reading first: Documentation/networking/packet_mmap.rst; `tpacket_snd` in net/packet.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: maps rings over the slots and writes frames' headers into them"
)]

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use memory::SlotMemory;
use wire::Outgoing;

use crate::LENT_BYTES_MIN;
use crate::sys;
use crate::vnet::{VNET_HEADER_BYTES, VnetHeader};

/// Slots that one [`SlotRings::give_back`] finds still on loan before it ends: devices complete frames nearly in order.
const MISSES_MAX: usize = 64;

/// Threads that make or close rings at once.
const RING_THREADS: usize = 64;

/// Bytes of a slot's start that belong to the kernel: `struct tpacket2_hdr` and a `sockaddr_ll`.
const KERNEL_BYTES: usize = 64;

/// Bytes before the payload's last part that are worth copying: headers, and a reply's head.
const BEFORE_BYTES_MAX: usize = 2048;

/// Where the frame's length is in `struct tpacket2_hdr`, behind the entry's status.
const OFFSET_LENGTH: usize = 4;

/// `TP_STATUS_AVAILABLE`: the entry is ours.
const STATUS_AVAILABLE: u32 = 0;
/// `TP_STATUS_SEND_REQUEST`: the kernel is to send it.
const STATUS_SEND_REQUEST: u32 = 1;
/// `TP_STATUS_SENDING`: the device has it.
const STATUS_SENDING: u32 = 2;

/// `PACKET_TX_HAS_OFF`: the frame's offset is in its header.
const PACKET_TX_HAS_OFF: i32 = 19;

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offered {
    /// The device has it, and the slot of this number.
    Lent(u32),
    /// It is not for these rings: copy it.
    Refused,
    /// The kernel did not take it, with this errno. The slot is not on loan.
    Failed(i32),
}

/// What of `struct tpacket2_hdr` the kernel reads, from [`OFFSET_LENGTH`] on: the frame's length, how much
/// of it was kept (32 bits each), and where it begins, twice (16 bits each).
fn entry_header(length: u32, offset: u16) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[8..10].copy_from_slice(&offset.to_ne_bytes());
    bytes[10..].copy_from_slice(&offset.to_ne_bytes());
    bytes
}

/// Where a frame begins in its slot, with `before_bytes` in front of what stands at `place`; `None` if that is where the
/// kernel's part is, or beyond the 16 bits that the entry's header has for it. So what begins more than 4 KiB behind
/// the payload of an odd slot ([`memory::ArenaConfig::odd_shift_bytes`]) or 60 KiB behind that of an even one is copied:
/// the rest of a read whose beginning was acknowledged meanwhile.
fn frame_offset(place: usize, before_bytes: usize) -> Option<u16> {
    let from = place.checked_sub(before_bytes)?;
    let offset = u16::try_from(from).ok()?;
    (from >= KERNEL_BYTES).then_some(offset)
}

/// Opens `count` sockets, each with a ring of one entry of `entry_bytes`.
fn open_rings(
    count: usize,
    entry_bytes: usize,
    open: &(impl Fn() -> Result<OwnedFd, i32> + Sync),
) -> Result<Vec<OwnedFd>, i32> {
    let open_ring = || {
        let socket = open()?;
        let fd = socket.as_fd();
        sys::set_integer(fd, libc::SOL_PACKET, libc::PACKET_VERSION, 1)?;
        sys::set_integer(fd, libc::SOL_PACKET, PACKET_TX_HAS_OFF, 1)?;
        sys::set_transmit_ring(fd, entry_bytes)?;
        Ok(socket)
    };
    let share = count.div_ceil(RING_THREADS).max(1);
    let shares: Vec<Result<Vec<OwnedFd>, i32>> = thread::scope(|scope| {
        let open_share = |first: usize| {
            let some = share.min(count - first);
            scope.spawn(move || (0..some).map(|_| open_ring()).collect())
        };
        let threads: Vec<_> = (0..count).step_by(share).map(open_share).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("invariant: opening does not panic"))
            .collect()
    });
    let shares: Vec<Vec<OwnedFd>> = shares.into_iter().collect::<Result<_, _>>()?;
    Ok(shares.into_iter().flatten().collect())
}

/// One ring for each slot.
#[derive(Debug)]
pub(super) struct SlotRings {
    slots: SlotMemory,
    /// By slot.
    sockets: Vec<OwnedFd>,
    /// Slots on loan, in the order in which they were lent.
    lent: VecDeque<u32>,
    /// By slot: whether it is in `lent`. The device may have read it already.
    is_lent: Vec<bool>,
    /// Whether all frames are refused.
    is_stopped: bool,
}

// SAFETY: `slots` is an address of the process, good for every thread. The arena it belongs to is used
// by the thread that drives the link, and goes to another thread with the link if it does at all.
unsafe impl Send for SlotRings {}

impl SlotRings {
    /// Replaces the memory of all slots, which nothing uses yet, by rings of sockets that send on an
    /// interface; `open` makes such a socket, not bound.
    ///
    /// # Errors
    /// The errno of the first call that failed. The slots whose ring was made keep it: their memory
    /// stays mapped, as ordinary memory.
    pub(super) fn new(
        slots: SlotMemory,
        interface_index: i32,
        open: impl Fn() -> Result<OwnedFd, i32> + Sync,
    ) -> Result<Self, i32> {
        let count = slots.slot_count() as usize;
        let sockets = open_rings(count, slots.stride_bytes(), &open)?;
        for (slot, socket) in sockets.iter().enumerate() {
            let fd = socket.as_fd();
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
            let place = slots.address().wrapping_add(slot * slots.stride_bytes());
            // SAFETY: replaces the pages of one slot, which the caller says nothing uses yet: no
            // reference and no device knows them.
            let mapped = unsafe {
                libc::mmap(
                    place.cast(),
                    slots.stride_bytes(),
                    protection,
                    flags,
                    socket.as_raw_fd(),
                    0,
                )
            };
            if mapped != place.cast() {
                return Err(sys::last_errno());
            }
            sys::bind_to_interface(fd, interface_index, 0)?;
        }
        Ok(Self {
            slots,
            sockets,
            lent: VecDeque::with_capacity(count),
            is_lent: vec![false; count],
            is_stopped: false,
        })
    }

    /// Puts ordinary pages in place of the rings, and closes these. The arena must still be there, and
    /// nothing may use a slot any more. Frames that the device has not read yet are still sent.
    pub(super) fn end(self) {
        let (start, stride) = (self.slots.address().addr(), self.slots.stride_bytes());
        let mut rings: Vec<(usize, OwnedFd)> = (0..)
            .map(|slot| start + slot * stride)
            .zip(self.sockets)
            .collect();
        let share = rings.len().div_ceil(RING_THREADS).max(1);
        thread::scope(|scope| {
            while !rings.is_empty() {
                let some = rings.split_off(rings.len().saturating_sub(share));
                let close = move || {
                    for (address, socket) in some {
                        // A ring that stays mapped is closed by the kernel later.
                        // SAFETY: one slot of the arena, which is still there; its bytes are not used
                        // any more. The caller says both.
                        let _ = unsafe { sys::map_ordinary_pages(address, stride) };
                        drop(socket);
                    }
                };
                // Without a thread the rings are closed when what was not spawned is dropped.
                let _ = thread::Builder::new().spawn_scoped(scope, close);
            }
        });
    }

    /// Refuses all frames from now on. Slots on loan come back as before.
    pub(super) const fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Sends a frame from its slot, if it can be.
    pub(super) fn transmit(&mut self, frame: &Outgoing<'_>) -> Offered {
        let Some((last, before)) = frame.payload.split_last() else {
            return Offered::Refused;
        };
        let has_room = self.lent.len() < self.slots.lent_max();
        if self.is_stopped || last.len() < LENT_BYTES_MIN || !has_room {
            return Offered::Refused;
        }
        let Some((slot, place)) = self.slots.find(last) else {
            return Offered::Refused;
        };
        let before_bytes = VNET_HEADER_BYTES
            + frame.headers.len()
            + before.iter().map(|part| part.len()).sum::<usize>();
        let Some(offset) = frame_offset(place, before_bytes) else {
            return Offered::Refused;
        };
        if before_bytes > BEFORE_BYTES_MAX
            // Parts before it in the same slot would be overwritten by the headers.
            || before.iter().any(|part| self.slots.find(part).is_some_and(|(of, _)| of == slot))
        {
            return Offered::Refused;
        }
        let Some(socket) = self.sockets.get(slot as usize) else {
            return Offered::Refused;
        };
        // One loan at a time, also if the device has read it: its owner has not heard that.
        if self.is_lent.get(slot as usize) != Some(&false) {
            return Offered::Refused;
        }
        let header = VnetHeader::from_offload(&frame.offload, frame.headers.len()).to_bytes();
        let parts = [header.as_slice(), frame.headers];
        let mut to = self.address(slot).wrapping_add(offset.into());
        for part in parts.into_iter().chain(before.iter().copied()) {
            // SAFETY: `before_bytes` bytes of this slot that end where the payload's last part
            // begins: within the slot (`place >= before_bytes`), behind the kernel's header, covered
            // by no reference (the parts before are not in this slot, the last begins behind), and the
            // device does not read them, for the entry is available.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            to = to.wrapping_add(part.len());
        }
        let length = u32::try_from(before_bytes + last.len()).unwrap_or(u32::MAX);
        let entry = entry_header(length, offset);
        let to = self.address(slot).wrapping_add(OFFSET_LENGTH);
        // SAFETY: within the entry's header, behind its status word, which is all that the kernel looks
        // at before the frame is requested.
        unsafe { std::ptr::copy_nonoverlapping(entry.as_ptr(), to, entry.len()) };
        self.status(slot)
            .store(STATUS_SEND_REQUEST, Ordering::Release);
        let result = sys::send_ring(socket.as_fd());
        // The device may have read it already.
        match (result, self.status(slot).load(Ordering::Acquire)) {
            (Ok(()), _) | (Err(_), STATUS_SENDING) => {
                self.lent.push_back(slot);
                self.is_lent[slot as usize] = true;
                Offered::Lent(slot)
            }
            (Err(errno), _) => {
                self.status(slot).store(STATUS_AVAILABLE, Ordering::Release);
                Offered::Failed(errno)
            }
        }
    }

    /// Names the slots that the device has read.
    pub(super) fn give_back(&mut self, sink: &mut dyn FnMut(u32)) {
        let mut misses = 0;
        for _ in 0..self.lent.len() {
            let Some(slot) = self.lent.pop_front() else {
                break;
            };
            if self.status(slot).load(Ordering::Acquire) == STATUS_AVAILABLE {
                self.is_lent[slot as usize] = false;
                sink(slot);
            } else {
                self.lent.push_back(slot);
                misses += 1;
                if misses == MISSES_MAX {
                    break;
                }
            }
        }
    }

    fn address(&self, slot: u32) -> *mut u8 {
        let distance = slot as usize * self.slots.stride_bytes();
        self.slots.address().wrapping_add(distance)
    }

    /// The status word of a slot's entry, which both sides access atomically.
    fn status(&self, slot: u32) -> &AtomicU32 {
        // SAFETY: an aligned word of the slot's mapping, which lives as long as the arena or longer;
        // no other reference covers it, for payload and framing stand behind `KERNEL_BYTES`.
        unsafe { AtomicU32::from_ptr(self.address(slot).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{KERNEL_BYTES, frame_offset};

    #[test]
    fn a_frame_begins_behind_the_kernels_part_and_within_16_bits() {
        let before = 100;
        assert_eq!(frame_offset(before - 1, before), None);
        assert_eq!(frame_offset(KERNEL_BYTES + before - 1, before), None);
        assert_eq!(frame_offset(KERNEL_BYTES + before, before), Some(64));
        assert_eq!(frame_offset(65_535 + before, before), Some(65_535));
        assert_eq!(frame_offset(65_536 + before, before), None);
    }
}
