//! Medians, and how far they can be trusted, of a few repeated measurements.
//!
//! The interval of a median is made of order statistics: of `n` independent values the median of what
//! they are drawn from lies outside the `k`-th least and the `k`-th greatest with a probability that
//! the binomial distribution gives, whatever they are drawn from. It refuses to call an interval one
//! of 95 % that is not: below six values the least and the greatest are all there is, and the coverage
//! says so. Bounded by: the values given.

/// The coverage that an interval is to have.
pub(crate) const COVERAGE_WANTED: f64 = 0.95;

/// The middle of some values and an interval for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    /// The middle value, or the mean of the middle two.
    pub(crate) middle: f64,
    /// The interval's lower end.
    pub(crate) low: f64,
    /// The interval's upper end.
    pub(crate) high: f64,
    /// The probability that the interval holds the median of what the values are drawn from.
    pub(crate) coverage: f64,
    /// How many values.
    pub(crate) count: usize,
}

impl Median {
    /// The median of some values; `None` without any.
    pub(crate) fn new(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let at = |index: usize| values.get(index).copied();
        let middle = f64::midpoint(at(count.checked_sub(1)? / 2)?, at(count / 2)?);
        let skip = (1..count / 2)
            .take_while(|skip| coverage(count, *skip) >= COVERAGE_WANTED)
            .last()
            .unwrap_or(0);
        Some(Self {
            middle,
            low: at(skip)?,
            high: at(count - 1 - skip)?,
            coverage: coverage(count, skip),
            count,
        })
    }
}

/// The middle value alone; 0 without any.
pub(crate) fn median(values: &[f64]) -> f64 {
    Median::new(values.iter().copied()).map_or(0.0, |it| it.middle)
}

/// The probability that the median lies between the least and the greatest of `count` values, `skip`
/// of them left out at each end: it does not if at most `skip` fall on one side of it.
fn coverage(count: usize, skip: usize) -> f64 {
    let mut ways = 1.0;
    let mut outside = 0.0;
    for index in 0..=skip {
        outside += ways;
        #[expect(clippy::cast_precision_loss, reason = "tens of values")]
        {
            ways *= (count - index) as f64 / (index + 1) as f64;
        }
    }
    let all = 2_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    (1.0 - 2.0 * outside / all).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_a_value_or_the_mean_of_two() {
        assert_eq!(Median::new([]), None);
        let middle = |values: &[f64]| Median::new(values.iter().copied()).unwrap().middle;
        assert!((middle(&[3.0]) - 3.0).abs() < 1e-12);
        assert!((middle(&[9.0, 1.0]) - 5.0).abs() < 1e-12);
        assert!((middle(&[9.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn six_values_give_an_interval_of_95_percent_and_five_do_not() {
        let of = |count: u32| Median::new((0..count).map(f64::from)).unwrap();
        // Order statistics of the sign test: 1 - 2^(1 - n) from the least to the greatest.
        assert!((of(5).coverage - 0.9375).abs() < 1e-12);
        assert!((of(6).coverage - 0.96875).abs() < 1e-12);
        // From nine on the outermost can be left out: 1 - 2 (1 + 9) / 2^9.
        assert_eq!((of(8).low, of(8).high), (0.0, 7.0));
        assert_eq!((of(9).low, of(9).high), (1.0, 7.0));
        assert!((of(9).coverage - 0.960_937_5).abs() < 1e-12);
        assert!(of(1).coverage.abs() < 1e-12);
    }
}
