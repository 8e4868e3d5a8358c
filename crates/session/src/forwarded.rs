//! A connection that a proxy forwards: what precedes its first byte is taken off, and says whom it is for.
//!
//! It refuses what is no PROXY protocol. Bound: [`PREFACE_BYTES_MAX`], and what one segment has.

use core::net::IpAddr;

use sites::preface::{Preface, PrefaceProblem};

#[cfg(doc)]
use sites::preface::PREFACE_BYTES_MAX;

/// See the module.
#[derive(Debug)]
pub(crate) struct Forwarded {
    /// What arrived of it; `None`: it was whole.
    begun: Option<Vec<u8>>,
    /// Who connected to the proxy.
    source: Option<IpAddr>,
}

impl Forwarded {
    /// Nothing has arrived.
    pub(crate) const fn new() -> Self {
        Self {
            begun: Some(Vec::new()),
            source: None,
        }
    }

    /// Who connected to the proxy; `None`: it has not said, or asks for itself.
    pub(crate) const fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// Takes what is the proxy's off received bytes, and returns the client's.
    pub(crate) fn take<'a>(&mut self, text: &'a [u8]) -> Result<&'a [u8], PrefaceProblem> {
        let Some(begun) = &mut self.begun else {
            return Ok(text);
        };
        begun.extend_from_slice(text);
        match Preface::parse(begun) {
            Preface::Incomplete => Ok(&[]),
            Preface::Complete { source, bytes } => {
                let behind = begun.len().saturating_sub(bytes);
                self.source = source;
                self.begun = None;
                // It was not whole before this text.
                Ok(text.get(text.len() - behind..).unwrap_or_default())
            }
            Preface::Refused(problem) => Err(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Forwarded;

    #[test]
    fn what_follows_a_preface_is_the_clients_however_it_is_cut() {
        let whole = b"PROXY TCP4 192.0.2.7 10.0.0.2 1 2\r\nGET /";
        for piece in 1..=whole.len() {
            let (mut forwarded, mut taken) = (Forwarded::new(), Vec::new());
            for text in whole.chunks(piece) {
                taken.extend_from_slice(forwarded.take(text).unwrap());
            }
            assert_eq!(taken, b"GET /", "{piece}");
            assert_eq!(forwarded.source(), Some([192, 0, 2, 7].into()));
        }
        let mut forwarded = Forwarded::new();
        assert_eq!(forwarded.take(b"GE"), Err(super::PrefaceProblem::Signature));
        assert_eq!(forwarded.source(), None);
    }
}
