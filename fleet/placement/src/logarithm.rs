//! The natural logarithm by additions, multiplications and divisions alone.
//!
//! IEEE 754 rounds these the same on every machine, which no library promises of its `ln`: two edges that disagreed in
//! the last bit would disagree on who holds a title.

use std::f64::consts::{LN_2, SQRT_2};

/// Terms of the series of the inverse hyperbolic tangent: for |s| at most 0.172 the next one is below 1e-17.
const TERMS: u32 = 11;

/// The natural logarithm of a normal number between 0 and 1.
///
/// # Panics
/// If it is not above 0 and at most 1, or is subnormal.
pub(crate) fn ln(x: f64) -> f64 {
    assert!(
        x.is_normal() && x > 0.0 && x <= 1.0,
        "{x} is no share of a hash's range"
    );
    let bits = x.to_bits();
    // x = mantissa * 2^exponent, with the mantissa from 1 to 2.
    let mut exponent = i32::try_from(bits >> 52).expect("invariant: 11 bits") - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), by Horner's rule.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for term in (0..TERMS).rev() {
        sum = sum * square + 1.0 / f64::from(2 * term + 1);
    }
    f64::from(exponent) * LN_2 + 2.0 * s * sum
}

#[cfg(test)]
mod tests {
    use super::ln;

    #[test]
    fn it_is_the_logarithm() {
        let mut x: f64 = 1.0;
        while x > 1e-17 {
            let (ours, theirs) = (ln(x), x.ln());
            assert!(
                (ours - theirs).abs() <= 4e-16 * theirs.abs().max(1.0),
                "{x}: {ours} {theirs}"
            );
            x *= 0.997;
        }
        assert_eq!(ln(1.0).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    #[should_panic(expected = "no share")]
    fn zero_has_none() {
        ln(0.0);
    }
}
