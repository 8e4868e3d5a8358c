//! One receive queue of an interface: its AF_XDP socket, the cells that frames are in, and who has each
//! cell now.
//!
//! Cells are [`CELL_BYTES`] long; a larger frame is in several, if the socket has pieces. The first are for
//! receiving: each is in the fill ring, in the kernel's
//! hands or in the receive ring. A received frame is copied out and its cell returned to the fill ring
//! before the frame is handed on, so the fill ring is always full but for frames not yet taken. The other
//! cells are for sending: each is free or in flight. The one that was freed last is used first, as its
//! bytes are most likely in a cache. If the memory was registered for metadata (`metadata`), these cells begin
//! with it, and the frame's bytes are behind.
//!
//! It refuses to trust addresses that the kernel returns: one that is of no cell, or of a cell that was
//! not handed out, is counted and ignored. Bounds: the cells it was made with; one buffer of a cell's
//! size, or of the largest frame's with pieces; with slots, up to eight entries of the transmit ring for each
//! cell.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: maps the pages of slots in place of an arena's"
)]

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::loans::{LentPart, Loans};
use super::mapping::{Mapping, map_over};
use super::metadata::{self, METADATA_BYTES};
use super::ring::Descriptor;
use super::socket::{self, Copying, Rings, XdpStatistics};
use super::vlan::TAG_BYTES;
use crate::sys;
use crate::{ETHERNET_BYTES, IP_PACKET_BYTES_MAX};
use memory::SlotMemory;
use wire::PartialChecksum;

/// Bytes of a cell: a page, the most that all drivers take.
pub(super) const CELL_BYTES: u32 = 4_096;

/// Bytes at a receive cell's start that the kernel keeps for XDP programs (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM_BYTES: u32 = 256;

/// Bytes of the MAC addresses that a frame begins with.
const ADDRESSES_BYTES: usize = 12;

/// Frames taken between two hand-backs of their cells.
const RELEASE_EVERY: u32 = 32;

/// Most cells of a frame that is sent.
const SENT_CELLS_MAX: u32 = 3;

/// Bytes of the largest frame that is sent, if it may be in several cells without metadata.
pub(super) const SENT_BYTES_MAX: u32 = Layout::PLAIN.sent_bytes_max();

/// Most descriptors of a frame: the least that drivers with frames of several buffers take is eight (i40e
/// and ice), as far as is known.
pub(super) const DESCRIPTORS_MAX: u32 = 8;

/// Bytes of the largest frame that is received, if it may be in several cells: the largest IP packet, with
/// a tag.
const RECEIVED_BYTES_MAX: usize = ETHERNET_BYTES + TAG_BYTES + IP_PACKET_BYTES_MAX as usize;

/// What a page of the socket's memory that is sent from is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Bytes at the page's start that no descriptor may have: of a cell, the frame's metadata.
    reserved_bytes: u32,
}

impl Layout {
    /// Memory registered without metadata.
    const PLAIN: Self = Self { reserved_bytes: 0 };
    /// Memory registered with metadata. The kernel (net/xdp, `xp_aligned_validate_desc`) then wants room for
    /// it before every descriptor in its page, also where there is none.
    const WITH_METADATA: Self = Self {
        reserved_bytes: METADATA_BYTES,
    };

    /// Bytes of a frame that a cell holds.
    const fn cell_room_bytes(self) -> u32 {
        CELL_BYTES - self.reserved_bytes
    }

    /// Bytes of the largest frame that is sent, if it may be in several cells.
    const fn sent_bytes_max(self) -> u32 {
        SENT_CELLS_MAX * self.cell_room_bytes()
    }

    /// Cells of a frame of so many bytes that is all copied.
    const fn cells_of(self, frame_bytes: usize) -> usize {
        frame_bytes.div_ceil(self.cell_room_bytes() as usize)
    }

    /// Most cells that a segment with so many bytes of payload has beyond those of its frames as
    /// copied, if it is sent from a slot: one for each page that begins within what is lent.
    const fn lent_cells_max(self, payload_bytes: usize) -> usize {
        match self.reserved_bytes {
            0 => 0,
            _ => payload_bytes.div_ceil(CELL_BYTES as usize),
        }
    }

    /// Most descriptors of a frame of so many bytes that is sent from a slot: those of cells, for what is
    /// copied, and a piece of the slot in each of the pages that the rest is in.
    const fn descriptors_max(self, frame_bytes: u32) -> u32 {
        match self.reserved_bytes {
            // Of c bytes copied and n lent, c / 4,096 and (n - 1) / 4,096 + 1, both rounded up.
            0 => (frame_bytes + 2 * CELL_BYTES - 3) / CELL_BYTES + 1,
            // The headers' cell and the first page's piece, then a cell and a piece for each page.
            _ => 2 + 2 * frame_bytes.saturating_sub(2).div_ceil(CELL_BYTES),
        }
    }

    /// How many bytes of a piece that begins at `address` are copied, as no descriptor may have them.
    fn copied_of_piece(self, address: u64, bytes: u32) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "less than a page")]
        let in_page = (address % u64::from(CELL_BYTES)) as u32;
        self.reserved_bytes.saturating_sub(in_page).min(bytes)
    }
}

const _: () = assert!(
    Layout::PLAIN.descriptors_max(CELL_BYTES) == 3
        && Layout::PLAIN.descriptors_max(SENT_BYTES_MAX) == 5
        && Layout::WITH_METADATA.descriptors_max(1_518) == 4
);
const _: () = assert!(
    Layout::WITH_METADATA.descriptors_max(Layout::WITH_METADATA.sent_bytes_max())
        == DESCRIPTORS_MAX
);

/// A descriptor that is not in the ring yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    descriptor: Descriptor,
    /// Bytes that can still be written behind its own: none of a piece of a slot.
    room_bytes: u32,
}

/// What a socket is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) receive_cells: u32,
    pub(super) transmit_cells: u32,
    /// Bytes of slots that are to be lent; 0: none.
    pub(super) slots_bytes: usize,
    /// Whether a frame may have several descriptors (`XDP_USE_SG`, Linux 6.6). Where there are slots it
    /// must.
    pub(super) has_pieces: bool,
    /// The tag of frames on the wire.
    pub(super) tag: Option<[u8; TAG_BYTES]>,
    /// Whether the memory is to be registered for metadata, if the kernel knows it.
    pub(super) has_metadata: bool,
}

impl Shape {
    /// Bytes of the memory.
    const fn bytes(&self) -> usize {
        let cells = self.receive_cells as usize + self.transmit_cells as usize;
        cells * CELL_BYTES as usize + self.slots_bytes
    }

    /// Entries of the rings for sending. A frame has a cell at least.
    const fn transmit_entries(&self) -> u32 {
        match self.slots_bytes {
            0 => self.transmit_cells,
            _ => self.transmit_cells * DESCRIPTORS_MAX,
        }
    }
}

/// Room that frames take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) cells: usize,
    entries: usize,
}

/// How many bytes of the buffer the parts of a frame have filled that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    Bytes(usize),
    /// More than the buffer has.
    TooLarge,
    /// A descriptor was not as it must be.
    Invalid,
}

/// One received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken<'a> {
    /// The frame.
    Frame(&'a [u8]),
    /// It was larger than the buffer.
    TooLarge,
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
    /// What the cells and the slots are.
    file: OwnedFd,
    loans: Option<Loans>,
    /// Bytes of slots behind the cells; 0: none, or they are another process's.
    slots_bytes: usize,
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
    /// Descriptors that another process has queued and that have not come back. While there are some, it is not known
    /// which cells are free.
    others_descriptors: u32,
    /// Cells put into the fill ring, taken from the receive ring, and, when another process began to use them, taken by the
    /// kernel.
    offered_cells: u64,
    received_cells: u64,
    accepted_before: u64,
    /// Of the frame whose last descriptor has not come yet.
    filled: Filled,
    /// Whether its last descriptor has not come.
    is_in_frame: bool,
    /// Cells taken that are not handed back yet.
    unreleased: u32,
    /// Another process uses the rings.
    is_paused: bool,
    /// The tag that frames have in cells, and nowhere else.
    tag: Option<[u8; TAG_BYTES]>,
    /// Whether a frame may have several descriptors.
    has_pieces: bool,
    layout: Layout,
    /// Whether checksums are left to the kernel or the device, which the metadata tells where they are.
    finishes_checksums: bool,
    buffer: Box<[u8]>,
}

impl Queue {
    /// Opens a socket with cells and rings, not bound.
    ///
    /// # Errors
    /// What failed, and its errno.
    pub(super) fn open(shape: Shape) -> Result<Self, (QueueStep, i32)> {
        let Shape {
            receive_cells,
            slots_bytes,
            has_metadata,
            ..
        } = shape;
        let socket = socket::open().map_err(|errno| (QueueStep::Socket, errno))?;
        let (memory, file) =
            Mapping::of_file(shape.bytes()).map_err(|errno| (QueueStep::Memory, errno))?;
        let layout = register(socket.as_fd(), &memory, has_metadata)
            .map_err(|errno| (QueueStep::Memory, errno))?;
        let rings = socket::make_rings(socket.as_fd(), receive_cells, shape.transmit_entries())
            .map_err(|errno| (QueueStep::Rings, errno))?;
        let mut queue = Self::of_parts(shape, layout, rings, (socket, memory, file));
        queue.slots_bytes = slots_bytes;
        for cell in 0..receive_cells {
            queue.rings.fill.push(place_of(cell));
        }
        queue.rings.fill.publish();
        Ok(queue)
    }

    /// The same socket in another process, which has bound it: with the shape and the files of [`Queue::share`]. What
    /// slots it has are that process's. Good after [`Queue::resume`].
    ///
    /// # Errors
    /// What failed, and its errno.
    pub(super) fn of_shared(
        shape: Shape,
        (socket, file): (OwnedFd, OwnedFd),
    ) -> Result<Self, (QueueStep, i32)> {
        let memory = Mapping::of_whole_file(file.as_fd(), shape.bytes())
            .map_err(|errno| (QueueStep::Memory, errno))?;
        let entries = shape.transmit_entries();
        let rings = socket::map_rings(socket.as_fd(), shape.receive_cells, entries)
            .map_err(|errno| (QueueStep::Rings, errno))?;
        let is_zero_copy =
            socket::is_zero_copy(socket.as_fd()).map_err(|errno| (QueueStep::Socket, errno))?;
        let layout = if shape.has_metadata {
            Layout::WITH_METADATA
        } else {
            Layout::PLAIN
        };
        let mut queue = Self::of_parts(shape, layout, rings, (socket, memory, file));
        queue.is_zero_copy = is_zero_copy;
        queue.is_paused = true;
        Ok(queue)
    }

    fn of_parts(
        shape: Shape,
        layout: Layout,
        rings: Rings,
        (socket, memory, file): (OwnedFd, Mapping, OwnedFd),
    ) -> Self {
        let buffer_bytes = if shape.has_pieces {
            RECEIVED_BYTES_MAX
        } else {
            CELL_BYTES as usize
        };
        let cells = shape.receive_cells..shape.receive_cells + shape.transmit_cells;
        Self {
            rings,
            socket,
            memory,
            file,
            loans: None,
            slots_bytes: 0,
            receive_cells: shape.receive_cells,
            free: cells.rev().collect(),
            is_in_flight: vec![false; shape.transmit_cells as usize],
            is_zero_copy: false,
            stray_cells: 0,
            queued_descriptors: 0,
            completed_descriptors: 0,
            others_descriptors: 0,
            offered_cells: shape.receive_cells.into(),
            received_cells: 0,
            accepted_before: 0,
            filled: Filled::Bytes(0),
            is_in_frame: false,
            unreleased: 0,
            is_paused: false,
            tag: shape.tag,
            has_pieces: shape.has_pieces,
            layout,
            finishes_checksums: false,
            buffer: vec![0; buffer_bytes].into_boxed_slice(),
        }
    }

    /// What another process needs to go on with the socket: its shape, the socket, and the file that its memory is.
    ///
    /// # Errors
    /// The kernel's: no descriptors.
    pub(super) fn share(&self) -> io::Result<(Shape, [OwnedFd; 2])> {
        let cells_bytes = (self.receive_cells as usize + self.cell_count()) * CELL_BYTES as usize;
        let shape = Shape {
            receive_cells: self.receive_cells,
            transmit_cells: u32::try_from(self.cell_count()).unwrap_or(u32::MAX),
            slots_bytes: self.memory.bytes() - cells_bytes,
            has_pieces: self.has_pieces,
            tag: self.tag,
            has_metadata: self.has_metadata(),
        };
        let socket = self.socket.try_clone()?;
        Ok((shape, [socket, self.file.try_clone()?]))
    }

    /// Leaves the rings to another process: what was queued comes back to that.
    pub(super) fn pause(&mut self) {
        self.release();
        self.accepted_before = self.accepted_cells();
        self.completed_descriptors = self.queued_descriptors;
        let transmit_cells = u32::try_from(self.cell_count()).unwrap_or(u32::MAX);
        let cells = self.receive_cells..self.receive_cells + transmit_cells;
        self.free = cells.rev().collect();
        self.is_in_flight.fill(false);
        self.is_paused = true;
    }

    /// Goes on where another process has left the rings, which has stopped using them, in whatever way it did. What it
    /// received and sent is not counted here: the cells to receive into are those of before, wherever they are now.
    pub(super) fn resume(&mut self) {
        self.is_paused = false;
        self.rings.fill.resume_producing();
        self.rings.receive.resume_consuming();
        self.rings.transmit.resume_producing();
        self.rings.completion.resume_consuming();
        self.filled = Filled::Bytes(0);
        self.is_in_frame = false;
        self.unreleased = 0;
        // Each descriptor comes back once.
        let queued = self.rings.transmit.own_index();
        self.others_descriptors = queued.wrapping_sub(self.rings.completion.own_index());
    }

    /// Whether all that another process has queued has come back, as far as was reaped, so that frames can be queued.
    pub(super) const fn is_settled(&self) -> bool {
        self.others_descriptors == 0
    }

    /// Whether the device has read all slots that were lent.
    pub(super) fn are_loans_back(&self) -> bool {
        self.loans.as_ref().is_none_or(Loans::are_all_back)
    }

    /// Binds the socket to a queue of an interface. From now on frames may pass.
    pub(super) fn bind(
        &mut self,
        interface_index: i32,
        queue: u32,
        copying: Copying,
    ) -> Result<(), i32> {
        let socket = self.socket.as_fd();
        socket::bind(socket, interface_index, queue, copying, self.has_pieces)?;
        self.is_zero_copy = socket::is_zero_copy(socket)?;
        Ok(())
    }

    /// Leaves the checksums of frames to the kernel or the device from now on, before any is sent.
    ///
    /// # Panics
    /// If the memory was not registered for metadata.
    pub(super) fn leave_checksums(&mut self) {
        assert!(self.layout != Layout::PLAIN, "no room for metadata");
        self.finishes_checksums = true;
    }

    /// Whether a frame whose checksum is unfinished can be pushed.
    pub(super) const fn finishes_checksums(&self) -> bool {
        self.finishes_checksums
    }

    /// Whether the memory is registered for metadata.
    pub(super) const fn has_metadata(&self) -> bool {
        self.layout.reserved_bytes > 0
    }

    pub(super) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether there is memory for slots of this process.
    pub(super) const fn has_slots(&self) -> bool {
        self.slots_bytes > 0
    }

    /// The largest IP packet that can be sent, and is always received, bytes.
    pub(super) const fn mtu_bytes_max(&self) -> u16 {
        let ethernet = match self.tag {
            Some(_) => ETHERNET_BYTES + TAG_BYTES,
            None => ETHERNET_BYTES,
        };
        let frame_bytes = if self.has_pieces {
            self.layout.sent_bytes_max()
        } else {
            CELL_BYTES - HEADROOM_BYTES
        };
        // Three cells are less than 65,536 bytes.
        #[allow(clippy::cast_possible_truncation, reason = "less than 65,536")]
        let bytes = (frame_bytes as usize - ethernet) as u16;
        bytes
    }

    /// Puts the socket's memory in place of an arena's, which nothing uses yet.
    ///
    /// # Errors
    /// `EINVAL` if there is not as much of it; the errno of mapping it.
    pub(super) fn borrow_slots(&mut self, slots: SlotMemory) -> Result<(), i32> {
        let start = (self.receive_cells as usize + self.cell_count()) * CELL_BYTES as usize;
        let bytes = slots.slot_count() as usize * slots.stride_bytes();
        if bytes > self.slots_bytes {
            return Err(libc::EINVAL);
        }
        // SAFETY: the pages of slots that nothing uses yet: no reference and no device knows them.
        unsafe { map_over(slots.address(), bytes, self.file.as_fd(), start) }?;
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

    /// Names the slots that the device has read, as far as was reaped.
    pub(super) fn give_back(&mut self, sink: &mut dyn FnMut(u32)) {
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

    /// Whether there is a frame to take.
    pub(super) fn has_received(&mut self) -> bool {
        self.rings.receive.has_ready()
    }

    /// Copies the next received frame out, and its cells back to the fill ring. `None` if there is none, or
    /// not all of it: then the next call goes on.
    pub(super) fn take(&mut self) -> Option<Taken<'_>> {
        loop {
            let descriptor = self.rings.receive.take()?;
            let cell = cell_of(descriptor.address).filter(|cell| *cell < self.receive_cells);
            self.filled = self.append(cell, descriptor);
            self.refill(cell);
            self.unreleased += 1;
            self.is_in_frame = descriptor.options & libc::XDP_PKT_CONTD != 0;
            if !self.is_in_frame {
                break;
            }
        }
        if self.unreleased >= RELEASE_EVERY {
            self.release();
        }
        Some(
            match std::mem::replace(&mut self.filled, Filled::Bytes(0)) {
                Filled::Bytes(bytes) => {
                    self.without_tag(bytes).map_or(Taken::Invalid, Taken::Frame)
                }
                Filled::TooLarge => Taken::TooLarge,
                Filled::Invalid => Taken::Invalid,
            },
        )
    }

    /// Copies a part of a frame behind those before it.
    fn append(&mut self, cell: Option<u32>, part: Descriptor) -> Filled {
        let Filled::Bytes(at) = self.filled else {
            return self.filled;
        };
        let bytes = part.bytes as usize;
        let Some(from) = cell.and_then(|cell| offset_in(cell, part.address, part.bytes)) else {
            return Filled::Invalid;
        };
        let Some(to) = self.buffer.get_mut(at..at + bytes) else {
            return Filled::TooLarge;
        };
        if self.memory.copy_out(from, to) {
            Filled::Bytes(at + bytes)
        } else {
            Filled::Invalid
        }
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
        // The caller hears of an invalid descriptor.
        let Some(cell) = cell else {
            return;
        };
        // Else one more than there are: the ring has an entry for each.
        if self.rings.fill.free() == 0 {
            self.stray_cells += 1;
            return;
        }
        self.received_cells += 1;
        self.offered_cells += 1;
        self.rings.fill.push(place_of(cell));
    }

    /// Hands the kernel back the cells of all frames that were taken, and wakes it if it waits for
    /// them. Of a frame whose last descriptor has not come it keeps them, and those before: another process that takes
    /// over begins with a frame's first descriptor.
    pub(super) fn release(&mut self) {
        if self.unreleased == 0 || self.is_in_frame {
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

    /// Takes back the cells that the device has read.
    pub(super) fn reap(&mut self) {
        let mut is_any = false;
        while let Some(address) = self.rings.completion.take() {
            is_any = true;
            if self.others_descriptors > 0 {
                self.others_descriptors -= 1;
                continue;
            }
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

    /// The room that frames take at most, each of `frame_bytes` without a tag, which may be sent from a
    /// slot; together they have `payload_bytes` of payload.
    pub(super) fn room_of(&self, frames: usize, frame_bytes: usize, payload_bytes: usize) -> Room {
        let frame_bytes = frame_bytes + self.tag.map_or(0, |tag| tag.len());
        let cells = frames * self.layout.cells_of(frame_bytes);
        let Some(_) = self.loans else {
            return Room {
                cells,
                entries: cells,
            };
        };
        let frame_bytes = u32::try_from(frame_bytes).unwrap_or(SENT_BYTES_MAX);
        Room {
            cells: cells + self.layout.lent_cells_max(payload_bytes),
            entries: frames * self.layout.descriptors_max(frame_bytes) as usize,
        }
    }

    /// Whether there is so much room. [`Queue::reap`] may make some.
    pub(super) fn has_room(&mut self, room: Room) -> bool {
        self.free.len() >= room.cells && self.rings.transmit.free() as usize >= room.entries
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

    /// Writes a frame into cells, but for what is lent, and puts it into the transmit ring. `checksum` is
    /// where its unfinished checksum is, if it has one. The kernel sees it after [`Queue::publish`]. Returns
    /// how many descriptors of the slot it has.
    ///
    /// # Panics
    /// If there is no room ([`Queue::has_room`]), or the frame is larger than a cell and the socket has no
    /// pieces, or it is without MAC addresses, or its checksum is unfinished and nobody finishes it.
    pub(super) fn push(
        &mut self,
        headers: &[u8],
        payload: &[&[u8]],
        lent: Option<&LentPart>,
        checksum: Option<PartialChecksum>,
    ) -> u32 {
        // What is lent is the last of a frame's parts, so it is the last of a cut frame's as well.
        let (copied, from_slot) = match (payload.split_last(), lent) {
            (Some((last, before)), Some(lent)) if lent.has(last) => (before, Some(*last)),
            _ => (payload, None),
        };
        let tag = self.tag;
        let (addresses, rest) = match tag {
            Some(_) => headers.split_at(ADDRESSES_BYTES),
            None => (headers, [].as_slice()),
        };
        let tag = tag.as_ref().map_or([].as_slice(), |tag| tag);
        let mut open = self.take_cell();
        if let Some(checksum) = checksum {
            self.request_checksum(&mut open, checksum, tag.len());
        }
        for part in [addresses, tag, rest]
            .into_iter()
            .chain(copied.iter().copied())
        {
            self.write_all(&mut open, part);
        }
        let mut lent_descriptors = 0;
        if let (Some(part), Some(loans)) = (from_slot, &self.loans) {
            let mut part = part;
            for (address, bytes) in loans.pieces(part) {
                let copied = self.layout.copied_of_piece(address, bytes);
                let (piece, others) = part.split_at(bytes as usize);
                part = others;
                self.write_all(&mut open, piece.split_at(copied as usize).0);
                if copied == bytes {
                    continue;
                }
                self.queue(open.descriptor, true);
                lent_descriptors += 1;
                open = Open {
                    descriptor: Descriptor {
                        address: address + u64::from(copied),
                        bytes: bytes - copied,
                        options: 0,
                    },
                    room_bytes: 0,
                };
            }
        }
        self.queue(open.descriptor, false);
        lent_descriptors
    }

    /// Writes the metadata of a frame that begins in this cell, which is empty: it asks for the checksum.
    fn request_checksum(&mut self, cell: &mut Open, checksum: PartialChecksum, tag_bytes: usize) {
        assert!(self.finishes_checksums, "nobody finishes the checksum");
        let metadata = metadata::checksum_request(checksum, tag_bytes);
        let start = cell.descriptor.address - u64::from(METADATA_BYTES);
        let start = usize::try_from(start).expect("invariant: cells are in memory");
        let is_inside = self.memory.copy_in(start, &metadata);
        assert!(is_inside, "a cell outside the memory");
        cell.descriptor.options = libc::XDP_TX_METADATA;
    }

    /// Writes bytes behind those of `open`, and into further cells where it has no room.
    fn write_all(&mut self, open: &mut Open, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            if open.room_bytes == 0 {
                let next = self.take_cell();
                self.queue(open.descriptor, true);
                *open = next;
            }
            bytes = self.write(open, bytes);
        }
    }

    /// A free cell, with nothing in it.
    fn take_cell(&mut self) -> Open {
        let cell = self.free.pop();
        let cell = cell.expect("invariant: the caller asked for room");
        let place = (cell - self.receive_cells) as usize;
        if let Some(is_in_flight) = self.is_in_flight.get_mut(place) {
            *is_in_flight = true;
        }
        Open {
            descriptor: Descriptor {
                address: place_of(cell) + u64::from(self.layout.reserved_bytes),
                bytes: 0,
                options: 0,
            },
            room_bytes: self.layout.cell_room_bytes(),
        }
    }

    /// Writes as many bytes into the cell as it has room for; what is left of them.
    fn write<'a>(&mut self, cell: &mut Open, bytes: &'a [u8]) -> &'a [u8] {
        let (fits, left) = bytes.split_at(bytes.len().min(cell.room_bytes as usize));
        let Open {
            descriptor,
            room_bytes,
        } = cell;
        let start = usize::try_from(descriptor.address).expect("invariant: cells are in memory");
        let at = start + descriptor.bytes as usize;
        assert!(self.memory.copy_in(at, fits), "a cell outside the memory");
        let written = u32::try_from(fits.len()).expect("invariant: it fits a cell");
        descriptor.bytes += written;
        *room_bytes -= written;
        left
    }

    /// Puts a descriptor into the transmit ring; `has_more`: of a frame of which another follows.
    fn queue(&mut self, descriptor: Descriptor, has_more: bool) {
        assert!(
            self.has_pieces || !has_more,
            "a frame of several cells on a socket without pieces"
        );
        self.queued_descriptors += 1;
        let more = if has_more { libc::XDP_PKT_CONTD } else { 0 };
        self.rings.transmit.push(Descriptor {
            options: descriptor.options | more,
            ..descriptor
        });
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

    /// Cells offered to the kernel, those that it took, and those that came back.
    pub(super) fn receive_counts(&self) -> [u64; 3] {
        let accepted = if self.is_paused {
            self.accepted_before
        } else {
            self.accepted_cells()
        };
        [self.offered_cells, accepted, self.received_cells]
    }

    /// Never fewer than before, though another process may have left fewer with the kernel.
    fn accepted_cells(&self) -> u64 {
        let unread = u64::from(self.rings.fill.unread_now());
        let accepted = self.offered_cells.saturating_sub(unread);
        accepted.max(self.accepted_before)
    }

    /// Descriptors put into the transmit ring, and those that have come back.
    pub(super) const fn descriptor_counts(&self) -> (u64, u64) {
        (self.queued_descriptors, self.completed_descriptors)
    }
}

/// Registers the memory, for metadata if that is wanted and the kernel knows it: one before 6.8 says
/// `EINVAL`.
fn register(socket: BorrowedFd<'_>, memory: &Mapping, has_metadata: bool) -> Result<Layout, i32> {
    let try_layout = |layout: Layout| {
        socket::register_cells(socket, memory, CELL_BYTES, layout.reserved_bytes).map(|()| layout)
    };
    if has_metadata {
        match try_layout(Layout::WITH_METADATA) {
            Err(libc::EINVAL) => {}
            result => return result,
        }
    }
    try_layout(Layout::PLAIN)
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

/// Where a part of a frame begins in the memory, if all of it is inside of the cell.
fn offset_in(cell: u32, address: u64, bytes: u32) -> Option<usize> {
    let end = place_of(cell + 1);
    let is_inside = address >= place_of(cell) && address.checked_add(bytes.into())? <= end;
    is_inside.then(|| usize::try_from(address).ok())?
}

/// The cell that an address lies in.
fn cell_of(address: u64) -> Option<u32> {
    u32::try_from(address / u64::from(CELL_BYTES)).ok()
}

#[cfg(test)]
mod tests {
    use super::{CELL_BYTES, DESCRIPTORS_MAX, Layout, METADATA_BYTES, offset_in};

    const LAYOUTS: [Layout; 2] = [Layout::PLAIN, Layout::WITH_METADATA];

    /// Descriptors of cells and of a slot that a frame has, counted byte by byte: of so many bytes
    /// copied, and so many lent from a slot's byte `at` on.
    fn count(layout: Layout, copied: u32, lent: u32, at: u32) -> (u32, u32) {
        let (mut cells, mut pieces, mut room) = (0, 0, 0);
        let mut is_piece = false;
        for byte in 0..copied + lent {
            let in_page = (at + byte.saturating_sub(copied)) % CELL_BYTES;
            if byte >= copied && in_page >= layout.reserved_bytes {
                pieces += u32::from(!is_piece || in_page == 0);
                (is_piece, room) = (true, 0);
                continue;
            }
            is_piece = false;
            if room == 0 {
                cells += 1;
                room = CELL_BYTES - layout.reserved_bytes;
            }
            room -= 1;
        }
        (cells, pieces)
    }

    #[test]
    fn no_frame_has_more_descriptors_or_cells_than_room_is_made_for() {
        for layout in LAYOUTS {
            let largest = layout.sent_bytes_max();
            let mut most_of_all = 0;
            let sizes = [
                60, 1_514, 4_072, 4_073, 4_096, 4_097, 8_193, 8_194, 8_195, 9_014,
            ];
            for frame_bytes in sizes.into_iter().chain([largest - 1, largest]) {
                let bound = layout.descriptors_max(frame_bytes);
                let cells_bound = layout.cells_of(frame_bytes as usize);
                assert!(cells_bound <= bound as usize);
                let edges = [1, 54, 66, 4_071, 4_072, 4_073, 4_096, 8_144, 8_145];
                for copied in edges.into_iter().chain((1..frame_bytes).step_by(1_013)) {
                    let Some(lent) = frame_bytes.checked_sub(copied).filter(|it| *it > 0) else {
                        continue;
                    };
                    // From every place of a page that matters: the last byte gives the most pieces.
                    for at in [0, 1, 22, 23, 24, 25, 2_000, 4_094, 4_095] {
                        let (cells, pieces) = count(layout, copied, lent, at);
                        let what = format!("{frame_bytes}: {copied} copied, from {at}");
                        assert!(cells + pieces <= bound, "{what}");
                        let more = layout.lent_cells_max(lent as usize);
                        assert!(cells as usize <= cells_bound + more, "{what}");
                        most_of_all = most_of_all.max(cells + pieces);
                    }
                }
            }
            assert!(most_of_all <= DESCRIPTORS_MAX);
            // The bounds are not larger than they must be.
            assert_eq!(most_of_all, layout.descriptors_max(largest));
        }
    }

    #[test]
    fn room_for_metadata_is_before_every_descriptor() {
        let with = Layout::WITH_METADATA;
        assert_eq!(METADATA_BYTES, 24);
        assert_eq!(
            (with.cell_room_bytes(), with.sent_bytes_max()),
            (4_072, 12_216)
        );
        assert_eq!((with.cells_of(4_072), with.cells_of(4_073)), (1, 2));
        for (address, bytes, copied) in [
            (8_192, 4_096, 24),
            (8_192, 24, 24),
            (8_192, 10, 10),
            (8_193, 4_095, 23),
            (8_215, 100, 1),
            (8_216, 100, 0),
            (12_287, 1, 0),
        ] {
            assert_eq!(with.copied_of_piece(address, bytes), copied, "{address}");
            assert_eq!(Layout::PLAIN.copied_of_piece(address, bytes), 0);
        }
    }

    #[test]
    fn a_part_of_a_frame_is_inside_of_its_cell() {
        assert_eq!(offset_in(1, 4_096, 4_096), Some(4_096));
        assert_eq!(offset_in(1, 4_096 + 256, 3_840), Some(4_352));
        assert_eq!(offset_in(1, 4_096 + 256, 3_841), None);
        assert_eq!(offset_in(1, 4_095, 1), None);
        assert_eq!(offset_in(1, 8_192, 1), None);
        assert_eq!(offset_in(1, u64::MAX, 1), None);
    }
}
