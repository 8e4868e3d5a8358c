//! Why Atlas gets less than Linux on a path, as far as it is known.
//!
//! It refuses to guess: a cell without an entry is reported as not explained. Bounded by: the entries
//! here.

use super::plan::Cell;

/// Bytes of a frame with a full segment.
const FRAME_BYTES: u64 = 1514;

/// Least burst after a loss, packets (`tcp::pacing`): of a buffer that has room for two of them at most a
/// part of each is lost.
const BURST_PACKETS: u64 = 4;

/// From this rate of loss on BBR version 3 sends less (draft-ietf-ccwg-bbr: more than 2 % in a round
/// trip, which 1 % on average now and then is), in a million.
const BBR_LOSS_PPM: u32 = 10_000;

/// Why, in a sentence; `None`: not known.
pub(crate) fn cause(cell: Cell, control: &str) -> Option<String> {
    let packets = cell.buffer_bytes() / FRAME_BYTES;
    if control == "bbr" && cell.loss_ppm >= BBR_LOSS_PPM {
        return Some(
            "Linux's BBR is version 1, which answers no loss; version 3 sends less after a round trip \
             in which more than 2 % are lost"
                .to_owned(),
        );
    }
    (packets <= 2 * BURST_PACKETS).then(|| {
        format!(
            "the buffer holds {packets} packets, a burst {BURST_PACKETS} at least: often a part of one \
             is lost; Linux sends two packets for each ACK"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_explained() {
        let cell = |rtt_millis, loss_ppm, buffer_tenths| Cell {
            rtt_millis,
            loss_ppm,
            buffer_tenths,
        };
        let small = cause(cell(10, 50_000, 1), "cubic").unwrap();
        assert!(small.contains("4 packets"), "{small}");
        assert_eq!(cause(cell(40, 0, 1), "cubic"), None);
        assert_eq!(cause(cell(10, 10_000, 10), "reno"), None);
        let loss = cause(cell(10, 10_000, 1), "bbr").unwrap();
        assert!(loss.contains("version 1"), "{loss}");
        assert_eq!(cause(cell(40, 9_999, 1), "bbr"), None);
    }
}
