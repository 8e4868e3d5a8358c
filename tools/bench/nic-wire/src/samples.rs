//! What the bodies of sampled replies are to be: seeded content, by the number that stands last in a path.
//!
//! It refuses to guess: a byte is compared or the reply is not called verified. Bounded: nothing is kept.

use testbed::content::{Content, OBJECT_SEED};

/// Whether these bytes stand at this offset of the object at a path.
pub(crate) fn is_content(path: &str, offset: u64, bytes: &[u8]) -> bool {
    last_number(path).is_some_and(|last| {
        let content = Content::new(OBJECT_SEED.wrapping_add(last), u64::MAX);
        content.check(offset, bytes).is_ok()
    })
}

/// The number whose digits stand last in a text.
fn last_number(text: &str) -> Option<u64> {
    let text = text.trim_end_matches(|it: char| !it.is_ascii_digit());
    let digits = text.rsplit(|it: char| !it.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_content_goes_by_the_last_number_of_a_path() {
        assert_eq!(last_number("/d1/o0027.bin"), Some(27));
        assert_eq!((last_number("/a"), last_number("/7")), (None, Some(7)));
        let mut bytes = [0; 100];
        Content::new(OBJECT_SEED + 27, u64::MAX).fill(40, &mut bytes);
        assert!(is_content("/d1/o0027.bin", 40, &bytes));
        assert!(!is_content("/d1/o0028.bin", 40, &bytes));
        assert!(!is_content("/a", 40, &bytes));
    }
}
