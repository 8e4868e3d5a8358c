//! Loss on the way from the server, by a seeded generator.
//!
//! Loss takes single packets out of large frames, as a router would after a NIC has cut them; what
//! is left between two losses arrives as one frame, as GRO makes it. It refuses to touch segments
//! without text. No clock. Bounded: a few words.

use testbed::random::Random;

/// Decides what is lost.
#[derive(Debug)]
pub struct Impairments {
    loss_per_million: u32,
    random: Random,
}

impl Impairments {
    /// This chance of each packet.
    #[must_use]
    pub const fn new(loss_per_million: u32, seed: u64) -> Self {
        Self {
            loss_per_million,
            random: Random::new(seed),
        }
    }

    /// Hands the runs of packets of a frame on that are not lost, as offset and length in its text;
    /// returns how many packets were lost.
    pub fn survivors(
        &mut self,
        text_bytes: u32,
        packet_bytes: u32,
        mut deliver: impl FnMut(u32, u32),
    ) -> u64 {
        if self.loss_per_million == 0 || text_bytes == 0 {
            deliver(0, text_bytes);
            return 0;
        }
        let mut lost = 0;
        let mut start = 0;
        let mut at = 0;
        while at < text_bytes {
            let end = at.saturating_add(packet_bytes).min(text_bytes);
            if self.random.happens(self.loss_per_million) {
                lost += 1;
                if at > start {
                    deliver(start, at - start);
                }
                start = end;
            }
            at = end;
        }
        if text_bytes > start {
            deliver(start, text_bytes - start);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_lost_arrives_once_and_in_order() {
        let mut impairments = Impairments::new(100_000, 3);
        let (mut arrived, mut lost) = (0, 0);
        for _ in 0..1000 {
            let mut reached = 0;
            let count = impairments.survivors(14_480, 1448, |offset, bytes| {
                assert!(offset >= reached && bytes.is_multiple_of(1448) && bytes > 0);
                reached = offset + bytes;
                arrived += u64::from(bytes);
            });
            lost += count;
        }
        assert_eq!(arrived + lost * 1448, 14_480_000);
        assert!((900..1100).contains(&lost), "{lost}");
    }

    #[test]
    fn without_loss_a_frame_stays_whole() {
        let mut runs = Vec::new();
        let mut deliver = |impairments: &mut Impairments, bytes, packet| {
            impairments.survivors(bytes, packet, |offset, bytes| runs.push((offset, bytes)))
        };
        let mut none = Impairments::new(0, 1);
        assert_eq!(deliver(&mut none, 14_480, 1448), 0);
        let mut all = Impairments::new(1_000_000, 1);
        assert_eq!(deliver(&mut all, 14_480, 1448), 10);
        assert_eq!(
            deliver(&mut all, 14_480, u32::MAX),
            1,
            "not cut: one packet"
        );
        assert_eq!(deliver(&mut all, 0, 1448), 0, "an ACK is not touched");
        assert_eq!(runs, [(0, 14_480), (0, 0)]);
    }
}
