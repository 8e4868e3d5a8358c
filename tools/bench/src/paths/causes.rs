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

/// From this buffer on a slow start without HyStart fills it if nothing is lost before, up to this rate of loss: in two of three
/// rounds at 40 ms Linux's Reno lost 860 and 1,795 frames there, and Atlas's none; in the third neither, and both had the same.
const RENO_BUFFER_TENTHS: u64 = 100;
const RENO_LOSS_PPM: u32 = 1_000;

/// Why, in a sentence; `None`: not known.
pub(crate) fn cause(cell: Cell, control: &str) -> Option<String> {
    match control {
        "bbr" => cause_of_bbr(cell),
        "reno"
            if cell.buffer_tenths >= RENO_BUFFER_TENTHS
                && (1..=RENO_LOSS_PPM).contains(&cell.loss_ppm) =>
        {
            Some(
                "Linux's Reno has no HyStart: its slow start fills the buffer and begins with a larger window; \
                 Atlas's ends when the delay grows (RFC 9406)"
                    .to_owned(),
            )
        }
        _ => None,
    }
}

fn cause_of_bbr(cell: Cell) -> Option<String> {
    let is_small = cell.buffer_tenths <= BBR_BUFFER_TENTHS;
    let what = if is_small && cell.loss_ppm <= BBR_LOSS_PPM {
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
        for (loss_ppm, buffer_tenths, is_known) in [
            (1, 100, true),
            (1_000, 100, true),
            (1_000, 99, false),
            (1_001, 100, false),
            (0, 100, false),
        ] {
            let why = cause(cell(40, loss_ppm, buffer_tenths), "reno");
            assert_eq!(why.is_some(), is_known, "{loss_ppm} {buffer_tenths}");
        }
    }
}
