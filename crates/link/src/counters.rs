//! What passed through a link and what did not: plain `u64`s, owned by the link's worker.

use counters::counters;

counters! {
    /// Counters of one link since it was opened. They only grow.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LinkCounters prefix "link_" {
        /// Frames received.
        pub received_frames: u64,
        /// Bytes of frames received.
        pub received_bytes: u64,
        /// Frames sent; a large one counts once.
        pub transmitted_frames: u64,
        /// Bytes of frames sent, before they are cut into packets.
        pub transmitted_bytes: u64,
        /// Those of the frames sent that the device read where the disk had put them: nothing was
        /// copied.
        pub lent_frames: u64,
        /// Frames the link had no room for; each attempt counts.
        pub full_frames: u64,
        /// Frames the kernel refused; TCP retransmits their bytes.
        pub lost_frames: u64,
        /// Frames lost because the device refused every frame for 20 ms.
        // See `crate::REFUSED_FOR_MAX`.
        pub refused_frames: u64,
        /// Times the bypass of the interface's queueing discipline ended for good.
        pub bypass_end_events: u64,
        /// Received frames larger than their buffer, dropped.
        pub truncated_frames: u64,
        /// Frames the kernel dropped because they were not received in time.
        pub overflow_frames: u64,
        /// Times receiving or sending found the interface down.
        pub down_events: u64,
        /// Times receiving failed for another reason and went on.
        pub receive_errors: u64,
        /// Descriptors put into the transmit ring of an AF_XDP socket: one for each packet, or for each
        /// piece of one.
        pub queued_descriptors: u64,
        /// Those of them that came back: their memory is free again.
        pub completed_descriptors: u64,
        /// Pages offered to the kernel to receive into, by AF_XDP sockets: `link_received_cells`, and
        /// as many as there are.
        // Less those that were received, it is how many there are: each is in the fill ring, with the
        // device, or in the receive ring.
        pub offered_cells: u64,
        /// Those of them that the kernel took, for the device to fill.
        // Less those that were received, it is what is with the device, or waits in the receive ring.
        pub accepted_cells: u64,
        /// Those of them that came back with a packet, or a part of one.
        pub received_cells: u64,
    }
}

impl LinkCounters {
    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received_frames += 1;
        self.received_bytes += bytes as u64;
    }

    pub(crate) fn count_transmitted(&mut self, bytes: usize) {
        self.transmitted_frames += 1;
        self.transmitted_bytes += bytes as u64;
    }
}
