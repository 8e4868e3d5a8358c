//! The queue of small frames that answer received frames: ARP, neighbour discovery, echo, SYN-ACK,
//! reset.
//!
//! Each frame is complete when it is queued, checksums included. Bound: [`FRAMES_MAX`] frames of at
//! most [`FRAME_BYTES_MAX`]. A frame for which there is no room is dropped, as if the network had
//! lost it.

use wire::{Offload, Outgoing};

use crate::{TransmitProgress, Transmitted};

/// Most queued frames: one answer for each frame of a full receive ring.
pub(crate) const FRAMES_MAX: usize = 2_048;
/// Longest frame: an echo reply of a full Ethernet packet.
pub(crate) const FRAME_BYTES_MAX: usize = 1514;

/// The frames, oldest first.
#[derive(Debug)]
pub(crate) struct Outbox {
    frames: Box<[Frame]>,
    first: usize,
    count: usize,
}

#[derive(Clone, Debug)]
struct Frame {
    bytes: [u8; FRAME_BYTES_MAX],
    length: usize,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        let empty = Frame {
            bytes: [0; FRAME_BYTES_MAX],
            length: 0,
        };
        Self {
            frames: vec![empty; FRAMES_MAX].into_boxed_slice(),
            first: 0,
            count: 0,
        }
    }

    /// Whether there is no room.
    pub(crate) const fn is_full(&self) -> bool {
        self.count == FRAMES_MAX
    }

    /// Has `write` fill a frame and return its length, or `None` for no frame. Returns whether a
    /// frame was queued.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        if self.is_full() {
            return false;
        }
        let place = (self.first + self.count) % FRAMES_MAX;
        let frame = &mut self.frames[place];
        let Some(length) = write(&mut frame.bytes) else {
            return false;
        };
        frame.length = length;
        self.count += 1;
        true
    }

    /// Offers the frames in order until the sink is full.
    pub(crate) fn transmit(
        &mut self,
        sink: &mut dyn FnMut(&Outgoing<'_>) -> Transmitted,
    ) -> TransmitProgress {
        while self.count > 0 {
            let frame = &self.frames[self.first];
            let outgoing = Outgoing {
                headers: &frame.bytes[..frame.length],
                payload: &[],
                offload: Offload::default(),
            };
            if sink(&outgoing) == Transmitted::Full {
                return TransmitProgress::Full;
            }
            self.first = (self.first + 1) % FRAMES_MAX;
            self.count -= 1;
        }
        // The next frames reuse memory that is in the cache.
        self.first = 0;
        TransmitProgress::Done
    }
}

#[cfg(test)]
mod tests {
    use super::{FRAMES_MAX, Outbox};
    use crate::{TransmitProgress, Transmitted};

    fn push(outbox: &mut Outbox, byte: u8) -> bool {
        outbox.push(|buffer| {
            buffer[0] = byte;
            Some(1)
        })
    }

    #[test]
    fn a_frame_the_link_has_no_room_for_stays_first() {
        let mut outbox = Outbox::new();
        assert!(push(&mut outbox, 1) && push(&mut outbox, 2));
        let mut seen = Vec::new();
        let progress = outbox.transmit(&mut |frame| {
            seen.push(frame.headers[0]);
            if seen.len() == 2 {
                Transmitted::Full
            } else {
                Transmitted::Taken
            }
        });
        assert_eq!((progress, &seen[..]), (TransmitProgress::Full, &[1, 2][..]));
        let progress = outbox.transmit(&mut |frame| {
            seen.push(frame.headers[0]);
            Transmitted::Taken
        });
        assert_eq!(
            (progress, &seen[..]),
            (TransmitProgress::Done, &[1, 2, 2][..])
        );
        assert_eq!(outbox.count, 0);
    }

    #[test]
    fn a_full_outbox_takes_no_more() {
        let mut outbox = Outbox::new();
        for _ in 0..FRAMES_MAX {
            assert!(push(&mut outbox, 0));
        }
        assert!(!push(&mut outbox, 0));
        assert!(
            !Outbox::new().push(|_| None),
            "nothing written is nothing queued"
        );
    }
}
