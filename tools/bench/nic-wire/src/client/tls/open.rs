//! A sampled stream: every record is opened.
//!
//! It refuses what [`take_content`] refuses, and records that are not authentic. Bounded by one
//! record and one frame.

use super::keys::OVERHEAD_BYTES;
use super::{Fault, HEADER_BYTES, Keys, parse_header, take_content};

/// The records of a stream that comes whole.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// From a record's header on.
    kept: Vec<u8>,
    /// How much of it was opened.
    at: usize,
}

impl Opened {
    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Takes bytes that come next.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
    }

    /// The content of the next record that holds data, if it is there.
    pub(crate) fn next(&mut self, keys: &mut Keys) -> Result<Option<Vec<u8>>, Fault> {
        while let Some((header, body)) = self
            .kept
            .get(self.at..)
            .and_then(<[u8]>::split_first_chunk::<HEADER_BYTES>)
        {
            let (_, bytes) = parse_header(*header, OVERHEAD_BYTES)?;
            let Some(body) = body.get(..bytes) else {
                break;
            };
            let mut body = body.to_vec();
            let (kind, content) = keys.open(keys.read_number, *header, &mut body)?;
            keys.read_number += 1;
            self.at += HEADER_BYTES + bytes;
            if let Some(content) = take_content(kind, content)? {
                return Ok(Some(content.to_vec()));
            }
        }
        self.kept.drain(..self.at);
        self.at = 0;
        if self.kept.is_empty() {
            self.kept = Vec::new();
        }
        Ok(None)
    }
}
