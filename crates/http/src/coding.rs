//! Content codings of objects that are stored in them (RFC 9110 s8.4.1), and which of them a client takes.
//!
//! It refuses to code anything itself. A member of `Accept-Encoding` that is none is passed over. Bound: the field.

/// A content coding that browsers know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// Brotli (RFC 7932).
    Brotli,
    /// Zstandard (RFC 8878).
    Zstandard,
    /// Gzip (RFC 1952).
    Gzip,
}

/// How many there are.
pub const CODINGS_MAX: usize = 3;

/// Codings in an order of preference.
pub type Codings = [Option<Coding>; CODINGS_MAX];

/// Weights are in thousandths.
const WEIGHT_MAX: u16 = 1000;

impl Coding {
    /// All of them.
    pub const ALL: [Self; CODINGS_MAX] = [Self::Brotli, Self::Zstandard, Self::Gzip];

    /// Its name in fields.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// What the name of an object in it ends with, behind that of the object.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstandard => ".zst",
            Self::Gzip => ".gz",
        }
    }
}

/// Those of `offered` that a client takes at least as gladly as none, by `Accept-Encoding` (RFC 9110 s12.5.3): first
/// those with the greatest weight, of several the first offered.
#[must_use]
pub(crate) fn preferred(accepted: Option<&[u8]>, offered: &[Coding]) -> Codings {
    let mut preferred = Codings::default();
    let Some(accepted) = accepted else {
        return preferred;
    };
    // "*" stands for every coding that is not named.
    let star = weight_of(accepted, "*");
    let weight = |coding: Coding| weight_of(accepted, coding.name()).or(star).unwrap_or(0);
    // Not named, it is acceptable, and better than nothing only.
    let least = weight_of(accepted, "identity").unwrap_or(0).max(1);
    for place in 0..CODINGS_MAX {
        let is_left =
            |coding: &Coding| !preferred.contains(&Some(*coding)) && weight(*coding) >= least;
        let left = offered.iter().copied().filter(is_left);
        // Of equals, `max_by_key` takes the last.
        let Some(next) = left.rev().max_by_key(|coding| weight(*coding)) else {
            break;
        };
        if let Some(free) = preferred.get_mut(place) {
            *free = Some(next);
        }
    }
    preferred
}

/// The weight of a coding in a list, thousandths; `None`: it is not named.
fn weight_of(list: &[u8], name: &str) -> Option<u16> {
    let mut members = list.split(|&byte| byte == b',');
    members.find_map(|member| {
        let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let coding = parts.next()?;
        // RFC 9110 s8.4.1.3.
        let coding = if coding.eq_ignore_ascii_case(b"x-gzip") {
            b"gzip"
        } else {
            coding
        };
        if !coding.eq_ignore_ascii_case(name.as_bytes()) {
            return None;
        }
        match parts.next() {
            None => Some(WEIGHT_MAX),
            Some(parameter) => Some(thousandths(parameter)?),
        }
    })
}

/// `q=` and a weight (RFC 9110 s12.4.2).
fn thousandths(parameter: &[u8]) -> Option<u16> {
    let (name, digits) = parameter.split_at_checked(2)?;
    let (&whole, rest) = digits.split_first()?;
    if !name.eq_ignore_ascii_case(b"q=") || !matches!(whole, b'0' | b'1') {
        return None;
    }
    let fraction = match rest {
        [] => &[],
        [b'.', fraction @ ..] if fraction.len() <= 3 => fraction,
        _ => return None,
    };
    let mut weight = u16::from(whole - b'0') * WEIGHT_MAX;
    for (&digit, unit) in fraction.iter().zip([100, 10, 1]) {
        if !digit.is_ascii_digit() {
            return None;
        }
        weight += u16::from(digit - b'0') * unit;
    }
    (weight <= WEIGHT_MAX).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(accepted: &str) -> String {
        let preferred = preferred(Some(accepted.as_bytes()), &Coding::ALL);
        let names = preferred.iter().flatten().map(|coding| coding.name());
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_greatest_weight_is_first_and_of_equals_what_was_offered_first() {
        for (accepted, preferred) in [
            ("", ""),
            ("identity", ""),
            ("gzip", "gzip"),
            ("gzip, deflate, br, zstd", "br zstd gzip"),
            ("GZIP , X-BR", "gzip"),
            ("x-gzip", "gzip"),
            ("br;q=0.5, gzip;q=0.501", "gzip br"),
            ("br;q=0, gzip; q=1.000", "gzip"),
            ("*", "br zstd gzip"),
            ("*;q=0", ""),
            ("*;q=0.1, gzip", "gzip br zstd"),
            ("*, br;q=0", "zstd gzip"),
            ("br;q=0.5, identity;q=0.6", ""),
            ("br;q=0.5, identity;q=0.5", "br"),
            ("br, identity;q=0", "br"),
        ] {
            assert_eq!(names(accepted), preferred, "{accepted}");
        }
        assert_eq!(super::preferred(None, &Coding::ALL), Codings::default());
        let gzip = super::preferred(Some(b"br, gzip"), &[Coding::Gzip]);
        assert_eq!(gzip, [Some(Coding::Gzip), None, None]);
    }

    #[test]
    fn a_weight_that_is_none_is_no_member() {
        for wrong in [
            "gzip;q=1.001",
            "gzip;q=2",
            "gzip;q=0.1234",
            "gzip;q=.5",
            "gzip;q=-0",
            "gzip;q=",
            "gzip;x=1",
            "gzip;",
            "gzip;q=0.a",
        ] {
            assert_eq!(names(wrong), "", "{wrong}");
        }
    }
}
