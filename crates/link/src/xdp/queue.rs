//! One receive queue of an interface: its AF_XDP socket, the cells that frames are in, and who has each
//! cell now.
//!
//! Cells are [`CELL_BYTES`] long. The first are for receiving: each is in the fill ring, in the kernel's
//! hands or in the receive ring. A received frame is copied out and its cell returned to the fill ring
//! before the frame is handed on, so the fill ring is always full but for frames not yet taken. The other
//! cells are for sending: each is free or in flight. The one that was freed last is used first, as its
//! bytes are most likely in a cache.
//!
//! It refuses to trust addresses that the kernel returns: one that is of no cell, or of a cell that was
//! not handed out, is counted and ignored. Bounds: the cells it was made with; one buffer of a cell's
//! size; with slots, [`ENTRIES_PER_CELL`] entries of the transmit ring for each cell.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: maps the pages of slots in place of an arena's"
)]

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::loans::{LentPart, Loans};
use super::mapping::{Mapping, map_over};
use super::ring::Descriptor;
use super::socket::{self, Copying, Rings, XdpStatistics};
use super::vlan::TAG_BYTES;
use crate::ETHERNET_BYTES;
use crate::sys;
use memory::SlotMemory;

/// Bytes of a cell: a page, the most that all drivers take.
pub(super) const CELL_BYTES: u32 = 4_096;

/// Bytes at a receive cell's start that the kernel keeps for XDP programs (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM_BYTES: u32 = 256;

/// Bytes of the MAC addresses that a frame begins with.
const ADDRESSES_BYTES: usize = 12;

/// Frames taken between two hand-backs of their cells.
const RELEASE_EVERY: u32 = 32;

/// Entries of the transmit ring for each cell, if frames have pieces of slots: a frame has at most
/// [`DESCRIPTORS_MAX`], and the ring's size is a power of two.
const ENTRIES_PER_CELL: u32 = 4;

/// Most descriptors of a frame that is sent from a slot: headers, and two pieces, since it is smaller than
/// a page. Drivers that take several take at least five (i40e and ice: eight).
const DESCRIPTORS_MAX: usize = 3;

const _: () = assert!(DESCRIPTORS_MAX <= ENTRIES_PER_CELL as usize);

/// One received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken<'a> {
    /// The frame.
    Frame(&'a [u8]),
    /// The descriptor names no cell, or more bytes than a cell has.
    Invalid,
}

/// What became of the frames that wait in the transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kicked {
    /// Frames that the driver dropped, or the kernel because there is no carrier.
    pub(super) dropped_frames: u32,
    /// Why it takes none at all.
    pub(super) error: Option<i32>,
}

/// A bound socket and its cells.
#[derive(Debug)]
pub(super) struct Queue {
    // In this order: rings and socket go before the cells' memory.
    rings: Rings,
    socket: OwnedFd,
    memory: Mapping,
    /// What the cells and the slots are, if there are slots.
    file: Option<OwnedFd>,
    loans: Option<Loans>,
    receive_cells: u32,
    /// Transmit cells that are free, the one that was freed last at the end.
    free: Vec<u32>,
    /// By transmit cell.
    is_in_flight: Vec<bool>,
    is_zero_copy: bool,
    /// Addresses that came back and are of no cell that was handed out.
    stray_cells: u64,
    queued_descriptors: u64,
    completed_descriptors: u64,
    /// Whether the next received descriptor belongs to a frame whose first did not hold it all.
    is_continued: bool,
    /// Frames taken whose cells are not handed back yet.
    unreleased: u32,
    /// The tag that frames have in cells, and nowhere else.
    tag: Option<[u8; TAG_BYTES]>,
    buffer: Box<[u8]>,
}

impl Queue {
    /// Opens a socket with cells and rings, not bound; with memory for slots, if `slots_bytes` is not 0.
    /// Frames have `tag` on the wire.
    ///
    /// # Errors
    /// What failed, and its errno.
    pub(super) fn open(
        receive_cells: u32,
        transmit_cells: u32,
        slots_bytes: usize,
        tag: Option<[u8; TAG_BYTES]>,
    ) -> Result<Self, (QueueStep, i32)> {
        let socket = socket::open().map_err(|errno| (QueueStep::Socket, errno))?;
        let bytes = (receive_cells + transmit_cells) as usize * CELL_BYTES as usize;
        let (memory, file) = match slots_bytes {
            0 => Mapping::anonymous(bytes).map(|memory| (memory, None)),
            _ => Mapping::of_file(bytes + slots_bytes).map(|(memory, file)| (memory, Some(file))),
        }
        .map_err(|errno| (QueueStep::Memory, errno))?;
        let entries_per_cell = if slots_bytes > 0 { ENTRIES_PER_CELL } else { 1 };
        let transmit_entries = transmit_cells * entries_per_cell;
        socket::register_cells(socket.as_fd(), &memory, CELL_BYTES)
            .map_err(|errno| (QueueStep::Memory, errno))?;
        let rings = socket::make_rings(socket.as_fd(), receive_cells, transmit_entries)
            .map_err(|errno| (QueueStep::Rings, errno))?;
        let mut queue = Self {
            rings,
            socket,
            memory,
            file,
            loans: None,
            receive_cells,
            free: (receive_cells..receive_cells + transmit_cells)
                .rev()
                .collect(),
            is_in_flight: vec![false; transmit_cells as usize],
            is_zero_copy: false,
            stray_cells: 0,
            queued_descriptors: 0,
            completed_descriptors: 0,
            is_continued: false,
            unreleased: 0,
            tag,
            buffer: vec![0; CELL_BYTES as usize].into_boxed_slice(),
        };
        for cell in 0..receive_cells {
            queue.rings.fill.push(place_of(cell));
        }
        queue.rings.fill.publish();
        Ok(queue)
    }

    /// Binds the socket to a queue of an interface. From now on frames may pass.
    pub(super) fn bind(
        &mut self,
        interface_index: i32,
        queue: u32,
        copying: Copying,
    ) -> Result<(), i32> {
        let socket = self.socket.as_fd();
        socket::bind(socket, interface_index, queue, copying, self.file.is_some())?;
        self.is_zero_copy = socket::is_zero_copy(socket)?;
        Ok(())
    }

    pub(super) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether there is memory for slots, and frames may have pieces.
    pub(super) const fn has_slots(&self) -> bool {
        self.file.is_some()
    }

    /// Puts the socket's memory in place of an arena's, which nothing uses yet.
    ///
    /// # Errors
    /// `EINVAL` if there is not as much of it; the errno of mapping it.
    pub(super) fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), i32> {
        let file = self.file.as_ref().ok_or(libc::EINVAL)?;
        let start = (self.receive_cells as usize + self.cell_count()) * CELL_BYTES as usize;
        let bytes = slots.slot_count() as usize * slots.stride_bytes();
        if start + bytes > self.memory.bytes() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the pages of slots that nothing uses yet: no reference and no device knows them.
        unsafe { map_over(slots.address(), bytes, file.as_fd(), start) }?;
        self.loans = Some(Loans::new(slots, start as u64));
        Ok(())
    }

    /// Puts ordinary pages in place of the slots. What the device has not read yet it reads from the
    /// socket's memory, which stays.
    pub(super) fn return_slots(&mut self) {
        let Some(loans) = &mut self.loans else {
            return;
        };
        let slots = loans.end();
        let bytes = slots.slot_count() as usize * slots.stride_bytes();
        // SAFETY: the arena is still there, and its bytes are not used any more: the caller says so.
        let _ = unsafe { sys::map_ordinary_pages(slots.address().addr(), bytes) };
    }

    /// Whether a slot is on loan, so that [`Queue::give_back`] will be called.
    pub(super) fn is_lending(&self) -> bool {
        self.loans.as_ref().is_some_and(Loans::is_lending)
    }

    /// Names the slots that the device has read.
    pub(super) fn give_back(&mut self, sink: &mut dyn FnMut(u32)) {
        self.reap();
        if let Some(loans) = &mut self.loans {
            loans.give_back(sink);
        }
    }

    /// The part of the frame that can be sent from its slot.
    pub(super) fn find_lent(&self, frame: &wire::Outgoing<'_>) -> Option<LentPart> {
        self.loans.as_ref()?.find(frame)
    }

    /// The frames of `part` were pushed, with so many descriptors of its slot: it is on loan.
    pub(super) fn lend(&mut self, part: &LentPart, descriptors: u32) {
        if let Some(loans) = &mut self.loans {
            loans.begin(part.slot, descriptors);
        }
    }

    /// Whether the device accesses the cells itself.
    pub(super) const fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Copies the next received frame out and its cell back to the fill ring.
    pub(super) fn take(&mut self) -> Option<Taken<'_>> {
        let descriptor = self.rings.receive.take()?;
        let Descriptor { address, bytes, .. } = descriptor;
        // A frame of several cells is larger than the MTU allows: each of its cells counts as invalid.
        let has_more = descriptor.options & libc::XDP_PKT_CONTD != 0;
        let is_whole = !has_more && !self.is_continued;
        self.is_continued = has_more;
        let cell = cell_of(address).filter(|cell| *cell < self.receive_cells);
        let taken = self.copy_out(cell, address, bytes);
        self.refill(cell);
        self.unreleased += 1;
        if self.unreleased == RELEASE_EVERY {
            self.release();
        }
        let frame = taken
            .filter(|_| is_whole)
            .and_then(|bytes| self.without_tag(bytes));
        Some(frame.map_or(Taken::Invalid, Taken::Frame))
    }

    /// The frame in the buffer's first bytes, less its tag; `None` if it should have one and has not.
    fn without_tag(&mut self, bytes: usize) -> Option<&[u8]> {
        let frame = self.buffer.get_mut(..bytes)?;
        let Some(tag) = self.tag else {
            return Some(frame);
        };
        // The program has looked at the VLAN's number.
        if frame.get(ADDRESSES_BYTES..ADDRESSES_BYTES + 2)? != tag.first_chunk::<2>()? {
            return None;
        }
        if frame.len() < ETHERNET_BYTES + TAG_BYTES {
            return None;
        }
        frame.copy_within(..ADDRESSES_BYTES, TAG_BYTES);
        frame.get(TAG_BYTES..)
    }

    /// Puts the cell of a frame that was copied out back into the fill ring.
    fn refill(&mut self, cell: Option<u32>) {
        match cell {
            Some(cell) if self.rings.fill.free() > 0 => self.rings.fill.push(place_of(cell)),
            // One more than there are: the ring has an entry for each.
            Some(_) => self.stray_cells += 1,
            // The caller hears of an invalid descriptor.
            None => {}
        }
    }

    /// Hands the kernel back the cells of all frames that were taken, and wakes it if it waits for
    /// them.
    pub(super) fn release(&mut self) {
        if self.unreleased == 0 {
            return;
        }
        self.unreleased = 0;
        self.rings.receive.release();
        self.rings.fill.publish();
        if self.rings.fill.needs_wakeup() {
            // How the interface is, is asked elsewhere.
            let _ = self.check_interface();
        }
    }

    /// How many bytes were copied to the buffer; `None` if they are not inside of one cell.
    fn copy_out(&mut self, cell: Option<u32>, address: u64, bytes: u32) -> Option<usize> {
        let (cell, bytes) = (cell?, bytes as usize);
        let (start, end) = (place_of(cell), place_of(cell + 1));
        let from = usize::try_from(address).ok()?;
        let is_inside = address >= start && address.checked_add(bytes as u64)? <= end;
        let to = self.buffer.get_mut(..bytes)?;
        (is_inside && self.memory.copy_out(from, to)).then_some(bytes)
    }

    /// Takes back the cells that the device has read.
    pub(super) fn reap(&mut self) {
        let mut is_any = false;
        while let Some(address) = self.rings.completion.take() {
            is_any = true;
            self.completed_descriptors += 1;
            let cell = cell_of(address);
            let place = cell.and_then(|cell| cell.checked_sub(self.receive_cells));
            let state = place.and_then(|place| self.is_in_flight.get_mut(place as usize));
            match (cell, state) {
                (Some(cell), Some(is_in_flight)) if *is_in_flight => {
                    *is_in_flight = false;
                    self.free.push(cell);
                }
                _ => {
                    let loans = self.loans.as_mut();
                    let is_slot_s = loans.is_some_and(|loans| loans.complete(address));
                    self.stray_cells += u64::from(!is_slot_s);
                }
            }
        }
        if is_any {
            self.rings.completion.release();
        }
    }

    /// Whether `frames` more frames have room, which may be sent from a slot. [`Queue::reap`] may make some.
    pub(super) fn has_room(&mut self, frames: usize) -> bool {
        let entries = if self.loans.is_some() {
            frames * DESCRIPTORS_MAX
        } else {
            frames
        };
        self.free.len() >= frames && self.rings.transmit.free() as usize >= entries
    }

    /// Frames in the transmit ring that the kernel has not taken.
    pub(super) fn waiting_frames(&mut self) -> u32 {
        self.rings.transmit.unread()
    }

    /// Cells for sending.
    pub(super) const fn cell_count(&self) -> usize {
        self.is_in_flight.len()
    }

    /// Cells whose frames the device has not read, as far as is known.
    pub(super) const fn in_flight_count(&self) -> usize {
        self.is_in_flight.len() - self.free.len()
    }

    /// Writes a frame into a cell, but for what is lent, and puts it into the transmit ring. The kernel
    /// sees it after [`Queue::publish`]. Returns how many descriptors of the slot it has.
    ///
    /// # Panics
    /// If there is no room ([`Queue::has_room`]), or the frame is larger than a cell, or without MAC addresses.
    pub(super) fn push(
        &mut self,
        headers: &[u8],
        payload: &[&[u8]],
        lent: Option<&LentPart>,
    ) -> u32 {
        // What is lent is the last of a frame's parts, so it is the last of a cut frame's as well.
        let (copied, from_slot) = match (payload.split_last(), lent) {
            (Some((last, before)), Some(lent)) if lent.has(last) => (before, Some(*last)),
            _ => (payload, None),
        };
        let cell = self
            .free
            .pop()
            .expect("invariant: the caller asked for room");
        let start = place_of(cell);
        let mut bytes = 0_u32;
        let tag = self.tag;
        let (addresses, rest) = match tag {
            Some(_) => headers.split_at(ADDRESSES_BYTES),
            None => (headers, [].as_slice()),
        };
        let headers = [addresses, tag.as_ref().map_or(&[], |tag| tag), rest];
        for part in headers.into_iter().chain(copied.iter().copied()) {
            let length = u32::try_from(part.len()).expect("invariant: a part fits a cell");
            let at =
                usize::try_from(start).expect("invariant: cells are in memory") + bytes as usize;
            bytes += length;
            assert!(bytes <= CELL_BYTES, "a frame of {bytes} bytes for a cell");
            assert!(self.memory.copy_in(at, part), "a cell outside the memory");
        }
        let place = (cell - self.receive_cells) as usize;
        if let Some(is_in_flight) = self.is_in_flight.get_mut(place) {
            *is_in_flight = true;
        }
        let mut descriptor = Descriptor {
            address: start,
            bytes,
            options: 0,
        };
        let mut lent_descriptors = 0;
        if let (Some(part), Some(loans)) = (from_slot, &self.loans) {
            for (address, bytes) in loans.pieces(part) {
                self.queued_descriptors += 1;
                self.rings.transmit.push(Descriptor {
                    options: libc::XDP_PKT_CONTD,
                    ..descriptor
                });
                lent_descriptors += 1;
                descriptor = Descriptor {
                    address,
                    bytes,
                    options: 0,
                };
            }
        }
        self.queued_descriptors += 1;
        self.rings.transmit.push(descriptor);
        lent_descriptors
    }

    /// Lets the kernel see the frames that were pushed.
    pub(super) fn publish(&self) {
        self.rings.transmit.publish();
    }

    /// Has the kernel send what waits in the transmit ring, if it waits for that, until it takes no more.
    pub(super) fn kick(&mut self) -> Kicked {
        let mut kicked = Kicked {
            dropped_frames: 0,
            error: None,
        };
        loop {
            let waiting = self.rings.transmit.unread();
            if waiting == 0 || !self.rings.transmit.needs_wakeup() {
                return kicked;
            }
            match sys::send_ring(self.socket.as_fd()) {
                // No room in the device or the socket, or enough frames for one call.
                Ok(()) | Err(libc::EAGAIN | libc::ENOBUFS) => {}
                // One frame was dropped, the others are left.
                Err(libc::EBUSY) => kicked.dropped_frames += 1,
                Err(errno) => {
                    kicked.error = Some(errno);
                    return kicked;
                }
            }
            // Each call takes at least one frame, or none has room: this ends.
            if self.rings.transmit.unread() == waiting {
                return kicked;
            }
        }
    }

    /// `ENETDOWN` if the interface is down, `ENXIO` if it was removed.
    pub(super) fn check_interface(&self) -> Result<(), i32> {
        socket::wake_receive(self.socket.as_fd())
    }

    /// What the kernel has counted; zeros if it does not tell.
    pub(super) fn statistics(&self) -> XdpStatistics {
        socket::statistics(self.socket.as_fd()).unwrap_or_default()
    }

    /// Addresses that came back and are of no cell that was handed out: to send, or to receive.
    pub(super) const fn stray_cells(&self) -> u64 {
        self.stray_cells
    }

    /// Descriptors put into the transmit ring, and those that have come back.
    pub(super) const fn descriptor_counts(&self) -> (u64, u64) {
        (self.queued_descriptors, self.completed_descriptors)
    }
}

/// Which step of opening a queue failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueStep {
    /// Making the socket.
    Socket,
    /// Mapping or registering the cells.
    Memory,
    /// Making the rings.
    Rings,
}

/// Where a cell begins, bytes from the first.
const fn place_of(cell: u32) -> u64 {
    cell as u64 * CELL_BYTES as u64
}

/// The cell that an address lies in.
fn cell_of(address: u64) -> Option<u32> {
    u32::try_from(address / u64::from(CELL_BYTES)).ok()
}
