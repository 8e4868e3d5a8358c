//! What passed through a link and what did not: plain `u64`s, owned by the link's worker.

/// Counters of one link since it was opened. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames handed to the sink.
    pub received_frames: u64,
    /// Their bytes, from the destination MAC to the last payload byte.
    pub received_bytes: u64,
    /// Frames taken by [`crate::Link::transmit`]; a large one counts once.
    pub transmitted_frames: u64,
    /// Their bytes as handed over, before they are cut.
    pub transmitted_bytes: u64,
    /// Those of them that were sent from their slot, without a copy.
    pub lent_frames: u64,
    /// Frames refused with `Full`: each offer counts.
    pub full_frames: u64,
    /// Frames given up with `Lost`.
    pub lost_frames: u64,
    /// Those of them that the device refused for [`crate::REFUSED_FOR_MAX`].
    pub refused_frames: u64,
    /// Times a packet socket went back to the queueing discipline it had bypassed: the device
    /// stopped segmenting, or refused for [`crate::REFUSED_FOR_MAX`].
    pub bypass_end_events: u64,
    /// Received frames larger than their buffer, dropped.
    pub truncated_frames: u64,
    /// Frames the kernel dropped because we did not receive in time.
    pub overflow_frames: u64,
    /// Times receiving or transmitting found the interface down.
    pub down_events: u64,
    /// Times receiving failed for another reason and went on.
    pub receive_errors: u64,
    /// Descriptors put into the transmit ring of an AF_XDP socket: one for each frame on the wire, or
    /// for each piece of one.
    pub queued_descriptors: u64,
    /// Those of them that came back in its completion ring.
    pub completed_descriptors: u64,
    /// Cells offered to the kernel in the fill ring of an AF_XDP socket, to receive into. Less those that
    /// were received, it is how many there are: each is in the fill ring, with the device, or in the
    /// receive ring.
    pub offered_cells: u64,
    /// Those of them that the kernel took from there.
    pub accepted_cells: u64,
    /// Those of them that came back, with a frame or a part of one. Fewer than were accepted: the rest is
    /// with the device, or waits.
    pub received_cells: u64,
}

impl LinkCounters {
    /// Every counter with its public name, in a fixed order.
    #[must_use]
    pub const fn as_pairs(&self) -> [(&'static str, u64); 18] {
        // Taken apart by name, so that a new field without a line here does not compile.
        let Self {
            received_frames,
            received_bytes,
            transmitted_frames,
            transmitted_bytes,
            lent_frames,
            full_frames,
            lost_frames,
            refused_frames,
            bypass_end_events,
            truncated_frames,
            overflow_frames,
            down_events,
            receive_errors,
            queued_descriptors,
            completed_descriptors,
            offered_cells,
            accepted_cells,
            received_cells,
        } = *self;
        [
            ("link_received_frames", received_frames),
            ("link_received_bytes", received_bytes),
            ("link_transmitted_frames", transmitted_frames),
            ("link_transmitted_bytes", transmitted_bytes),
            ("link_lent_frames", lent_frames),
            ("link_full_frames", full_frames),
            ("link_lost_frames", lost_frames),
            ("link_refused_frames", refused_frames),
            ("link_bypass_end_events", bypass_end_events),
            ("link_truncated_frames", truncated_frames),
            ("link_overflow_frames", overflow_frames),
            ("link_down_events", down_events),
            ("link_receive_errors", receive_errors),
            ("link_queued_descriptors", queued_descriptors),
            ("link_completed_descriptors", completed_descriptors),
            ("link_offered_cells", offered_cells),
            ("link_accepted_cells", accepted_cells),
            ("link_received_cells", received_cells),
        ]
    }

    /// Both together, for a link of two parts.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            received_frames: self.received_frames + other.received_frames,
            received_bytes: self.received_bytes + other.received_bytes,
            transmitted_frames: self.transmitted_frames + other.transmitted_frames,
            transmitted_bytes: self.transmitted_bytes + other.transmitted_bytes,
            lent_frames: self.lent_frames + other.lent_frames,
            full_frames: self.full_frames + other.full_frames,
            lost_frames: self.lost_frames + other.lost_frames,
            refused_frames: self.refused_frames + other.refused_frames,
            bypass_end_events: self.bypass_end_events + other.bypass_end_events,
            truncated_frames: self.truncated_frames + other.truncated_frames,
            overflow_frames: self.overflow_frames + other.overflow_frames,
            down_events: self.down_events + other.down_events,
            receive_errors: self.receive_errors + other.receive_errors,
            queued_descriptors: self.queued_descriptors + other.queued_descriptors,
            completed_descriptors: self.completed_descriptors + other.completed_descriptors,
            offered_cells: self.offered_cells + other.offered_cells,
            accepted_cells: self.accepted_cells + other.accepted_cells,
            received_cells: self.received_cells + other.received_cells,
        }
    }

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received_frames += 1;
        self.received_bytes += bytes as u64;
    }

    pub(crate) fn count_transmitted(&mut self, bytes: usize) {
        self.transmitted_frames += 1;
        self.transmitted_bytes += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::LinkCounters;

    #[test]
    fn pairs_carry_the_values_of_their_fields() {
        let mut counters = LinkCounters::default();
        counters.count_received(60);
        counters.count_transmitted(1_514);
        counters.down_events = 7;
        let twice = counters.plus(counters).as_pairs();
        let pairs = counters.as_pairs();
        for ((name, one), (_, both)) in pairs.into_iter().zip(twice) {
            assert_eq!(both, 2 * one, "{name}");
        }
        assert!(pairs.contains(&("link_received_frames", 1)));
        assert!(pairs.contains(&("link_received_bytes", 60)));
        assert!(pairs.contains(&("link_transmitted_bytes", 1_514)));
        assert!(pairs.contains(&("link_down_events", 7)));
        assert!(pairs.iter().all(|(name, _)| name.starts_with("link_")));
    }
}
