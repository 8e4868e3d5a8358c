//! Why Atlas gets less than Linux on a path, as far as it is known.
//!
//! It refuses to guess: a cell without an entry is reported as not explained. Bounded by: the entries
//! here.

use super::plan::Cell;

/// Bytes of a frame with a full segment.
const FRAME_BYTES: u64 = 1514;

/// A buffer with room for fewer frames loses a part of each quantum of 16 KiB.
const QUANTUM_FRAMES: u64 = 12;

/// Why, in a sentence; `None`: not known. What is said of smaller bursts was tried
/// (docs/decisions/0020-paths.md).
pub(crate) fn cause(cell: Cell) -> Option<String> {
    let frames = cell.buffer_bytes() / FRAME_BYTES;
    if frames < QUANTUM_FRAMES {
        return Some(format!(
            "the buffer holds {frames} packets, a pacing quantum 12 (16 KiB): a part of each is lost; \
             Linux sends two for each ACK"
        ));
    }
    let is_tried = match cell.rtt_millis {
        10 => cell.loss_ppm <= 1_000,
        40 => cell.loss_ppm == 0,
        _ => false,
    };
    is_tried.then(|| {
        "a pacing quantum (16 KiB) waits and leaves at once; with bursts of an eighth of the window \
         goodput was a fifth to a quarter higher"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_tried_is_explained() {
        let cell = |rtt_millis, loss_ppm, buffer_tenths| Cell {
            rtt_millis,
            loss_ppm,
            buffer_tenths,
        };
        let small = cause(cell(10, 50_000, 1)).unwrap();
        assert!(small.contains("4 packets"), "{small}");
        assert!(cause(cell(10, 1_000, 10)).is_some());
        assert_eq!(cause(cell(10, 10_000, 10)), None);
        assert!(cause(cell(40, 0, 1)).is_some());
        assert_eq!(cause(cell(40, 1_000, 1)), None);
        assert_eq!(cause(cell(200, 0, 1)), None);
    }
}
