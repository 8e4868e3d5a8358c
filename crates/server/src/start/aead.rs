//! Which library's AEADs seal fastest on this processor (`docs/develop/decisions/0013-aead-by-machine.md`).
//!
//! It is measured at start. It refuses to conclude from the processor's features: what each library
//! makes of them changes with its version. Bound: `TIME_MAX`, or `ROUNDS_MIN` records for each
//! library where these take longer.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use record::{AeadLibrary, Algorithm, ContentType, Sealer, TrafficKey, Version};

/// Bytes of content in the record that is sealed: those of nearly all records that are sent.
const CONTENT_BYTES: usize = 15_360;

/// The libraries take turns for this long: some 600 turns of each with VAES, fewer without. In half
/// as long, one of 1,000 measurements on a busy virtual machine chose the slower library, else none
/// of 4,000.
const TIME_MAX: Duration = Duration::from_millis(2);

/// Turns of each library at least, also when other programs or a slow processor use up the time. The
/// shortest turn counts, so one undisturbed turn of each is enough.
const ROUNDS_MIN: u32 = 16;

/// ring seals if it takes at most this share of aws-lc's time, percent. It does not wipe keys, so the
/// difference must be worth it; and noise does not choose between libraries that are equally fast.
const RING_TIME_PERCENT_MAX: u128 = 90;

/// The shortest time each library took to seal a record with AES-128-GCM, in the order of
/// [`AeadLibrary::ALL`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement([Duration; AeadLibrary::ALL.len()]);

impl Measurement {
    /// Measures, for about 2 ms.
    #[must_use]
    pub(crate) fn take() -> Self {
        // It protects nothing.
        let key = TrafficKey::new(Version::Tls13, Algorithm::Aes128Gcm, &[0; 16], [0; 12])
            .expect("invariant: a key of 16 bytes");
        let sealers = AeadLibrary::ALL.map(|library| Sealer::with_library(library, &key));
        let overhead_bytes = sealers[0].framing().overhead_bytes() as usize;
        let mut record = vec![0; CONTENT_BYTES + overhead_bytes];
        let mut least = [Duration::MAX; AeadLibrary::ALL.len()];
        let begun = Instant::now();
        let mut round = 0;
        // In turn, so that both meet the same clock rate and the same neighbours.
        while round < ROUNDS_MIN || begun.elapsed() < TIME_MAX {
            for (sealer, least) in sealers.iter().zip(&mut least) {
                let begun = Instant::now();
                let content_type = ContentType::ApplicationData;
                black_box(sealer.seal(round.into(), content_type, &mut record));
                *least = (*least).min(begun.elapsed());
            }
            round += 1;
        }
        Self(least)
    }

    /// The library that is to seal: ring if it is faster by a margin, else aws-lc.
    #[must_use]
    pub(crate) const fn choice(&self) -> AeadLibrary {
        let [aws_lc, ring] = self.0;
        if ring.as_nanos() * 100 <= aws_lc.as_nanos() * RING_TIME_PERCENT_MAX {
            AeadLibrary::Ring
        } else {
            AeadLibrary::AwsLc
        }
    }
}

/// `CHOICE (SPEED; OTHER SPEED)`, in 10^9 bytes of content a second, as the log has it.
impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = |time: Duration| CONTENT_BYTES as f64 / time.as_nanos().max(1) as f64;
        let [aws_lc, ring] = self.0.map(speed);
        match self.choice() {
            AeadLibrary::AwsLc => write!(f, "aws-lc ({aws_lc:.1} GB/s; ring {ring:.1} GB/s)"),
            AeadLibrary::Ring => write!(f, "ring ({ring:.1} GB/s; aws-lc {aws_lc:.1} GB/s)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(aws_lc_nanos: u64, ring_nanos: u64) -> Measurement {
        Measurement([aws_lc_nanos, ring_nanos].map(Duration::from_nanos))
    }

    #[test]
    fn ring_is_chosen_if_it_is_faster_by_a_margin() {
        for (ring_nanos, library) in [
            (500, AeadLibrary::Ring),
            (900, AeadLibrary::Ring),
            (901, AeadLibrary::AwsLc),
            (1000, AeadLibrary::AwsLc),
            (2000, AeadLibrary::AwsLc),
        ] {
            assert_eq!(measured(1000, ring_nanos).choice(), library, "{ring_nanos}");
        }
    }

    #[test]
    fn the_choice_is_written_with_both_speeds() {
        let faster_ring = measured(3650, 1950).to_string();
        assert_eq!(faster_ring, "ring (7.9 GB/s; aws-lc 4.2 GB/s)");
        let faster_aws_lc = measured(1100, 1700).to_string();
        assert_eq!(faster_aws_lc, "aws-lc (14.0 GB/s; ring 9.0 GB/s)");
    }

    #[test]
    fn both_libraries_are_measured() {
        for time in Measurement::take().0 {
            assert!((Duration::from_nanos(1)..Duration::MAX).contains(&time));
        }
    }
}
