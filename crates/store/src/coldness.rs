//! Whether a name is worth a look into the kernel's caches before a thread is asked.
//!
//! The look costs the worker 0.75 us where it finds nothing; a name that a thread opens costs 5 us more
//! than one that the worker finds (`examples/look_up_cost.rs`). So the look pays unless more than seven
//! of eight names are cold, as they are when a large library is requested name by name. This knows by
//! the last looks.
//!
//! It refuses to know names or directories. Pure; two numbers.

/// After this many looks in a row that found nothing, a name is probably cold. If seven of eight
/// are cold, where looking costs as much as it saves, a given run is as likely as 0.875^16 = 0.12.
const MISSES_MAX: u32 = 16;
/// Then one name in so many is looked for, so that names that are cached again are noticed.
const PROBE_INTERVAL: u32 = 16;

/// What the last looks found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Coldness {
    /// Looks in a row that found nothing, up to [`MISSES_MAX`].
    misses: u32,
    /// Names left out since the last look.
    left_out: u32,
}

impl Coldness {
    /// Whether to look for the next name.
    pub(crate) fn wants_look(&mut self) -> bool {
        if self.misses < MISSES_MAX || self.left_out + 1 == PROBE_INTERVAL {
            self.left_out = 0;
            return true;
        }
        self.left_out += 1;
        false
    }

    /// The kernel knew a name; also if it knew that there is no such file.
    pub(crate) fn note_hit(&mut self) {
        self.misses = 0;
    }

    /// The kernel would have had to ask the file system.
    pub(crate) fn note_miss(&mut self) {
        self.misses = (self.misses + 1).min(MISSES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for `names` names of which the kernel knows those that `is_cached` says; returns how many
    /// were looked for.
    fn looks(coldness: &mut Coldness, names: u32, is_cached: impl Fn(u32) -> bool) -> u32 {
        let mut looks = 0;
        for name in 0..names {
            if coldness.wants_look() {
                looks += 1;
                if is_cached(name) {
                    coldness.note_hit();
                } else {
                    coldness.note_miss();
                }
            }
        }
        looks
    }

    #[test]
    fn cold_names_are_left_out_after_a_run_of_misses() {
        let mut coldness = Coldness::default();
        assert_eq!(looks(&mut coldness, MISSES_MAX, |_| false), MISSES_MAX);
        assert_eq!(looks(&mut coldness, PROBE_INTERVAL - 1, |_| false), 0);
        assert_eq!(looks(&mut coldness, 1, |_| false), 1, "a probe");
        assert_eq!(looks(&mut coldness, 100 * PROBE_INTERVAL, |_| false), 100);
    }

    #[test]
    fn one_hit_and_every_name_is_looked_for_again() {
        let mut coldness = Coldness::default();
        looks(&mut coldness, MISSES_MAX, |_| false);
        assert_eq!(looks(&mut coldness, PROBE_INTERVAL, |_| true), 1);
        assert_eq!(looks(&mut coldness, 50, |_| true), 50);
    }

    #[test]
    fn a_hit_before_the_run_is_complete_ends_it() {
        let mut coldness = Coldness::default();
        for _ in 0..10 {
            assert_eq!(looks(&mut coldness, MISSES_MAX - 1, |_| false), 15);
            assert_eq!(looks(&mut coldness, 1, |_| true), 1);
        }
    }
}
