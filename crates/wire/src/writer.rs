//! A cursor that lays header fields down one after the other, in network order.
//!
//! It writes only into buffers that this crate has sized itself, so running over the end is a bug of
//! ours and panics. Received lengths are checked before they get here.

/// Writes forward from the start of a buffer.
pub(crate) struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { rest: buffer }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let rest = core::mem::take(&mut self.rest);
        let (place, rest) = rest
            .split_at_mut_checked(bytes.len())
            .expect("invariant: header buffers are sized for the longest header");
        place.copy_from_slice(bytes);
        self.rest = rest;
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    /// Bytes not written yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }
}
