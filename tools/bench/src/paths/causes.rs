//! Why Atlas gets less than Linux on a path, as far as it is known.
//!
//! It refuses to guess: a cell without an entry is reported as not explained. Bounded by: the entries
//! here.

use super::plan::Cell;

/// From this rate of loss on BBR version 3 sends less (draft-ietf-ccwg-bbr: more than 2 % in a round
/// trip, which 1 % on average now and then is), in a million.
const BBR_LOSS_PPM: u32 = 10_000;
/// A buffer of a tenth of the BDP loses as much by itself: Linux's BBR sends 4 to 7 % of its bytes again there. Up to
/// [`BBR_LOSS_PPM`] the headroom explains most of it (docs/develop/decisions/0018-bbr.md).
const BBR_BUFFER_TENTHS: u64 = 1;

/// Why, in a sentence; `None`: not known.
pub(crate) fn cause(cell: Cell, control: &str) -> Option<String> {
    let is_small = cell.buffer_tenths <= BBR_BUFFER_TENTHS;
    let what = if control != "bbr" {
        return None;
    } else if is_small && cell.loss_ppm <= BBR_LOSS_PPM {
        "leaves to others 15 % of what was in flight when a probe lost more than 2 % \
         (draft-ietf-ccwg-bbr, InflightWithHeadroom)"
    } else if cell.loss_ppm >= BBR_LOSS_PPM {
        "sends less after a round trip in which more than 2 % are lost (draft-ietf-ccwg-bbr, \
         Updating the Model Upon Packet Loss)"
    } else {
        return None;
    };
    Some(format!(
        "Linux's BBR is version 1, which answers no loss; version 3 {what}"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::plan::Impairment;
    use super::*;

    #[test]
    fn only_what_is_known_is_explained() {
        let cell = |rtt_millis, loss_ppm, buffer_tenths| Cell {
            rtt_millis,
            loss_ppm,
            buffer_tenths,
            impairment: Impairment::None,
        };
        assert_eq!(cause(cell(10, 50_000, 1), "cubic"), None);
        assert_eq!(cause(cell(10, 10_000, 10), "reno"), None);
        for (known, section) in [
            (cell(10, 10_000, 2), "Updating"),
            (cell(10, 10_001, 1), "Updating"),
            (cell(40, 0, 1), "Headroom"),
            (cell(40, 10_000, 1), "Headroom"),
        ] {
            let why = cause(known, "bbr").unwrap();
            assert!(why.contains(section), "{why}");
        }
        assert_eq!(cause(cell(40, 9_999, 2), "bbr"), None);
    }
}
