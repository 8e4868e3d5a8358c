//! Bytes received from a client, until they are parsed.
//!
//! Taking bytes from the front moves nothing. Only when at least as many bytes were taken as are
//! left, the rest is moved to the front. So each byte is moved at most once, however small the
//! pieces are in which bytes are taken.
//!
//! Bound: twice the most unparsed bytes, which the caller bounds by the receive window.

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct InputBuffer {
    bytes: Vec<u8>,
    /// Bytes at the front that were taken.
    taken: usize,
    /// Bytes ever moved to the front, for tests of the rule above.
    #[cfg(test)]
    pub(crate) moved_bytes: usize,
}

impl InputBuffer {
    /// The bytes not taken.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.taken..).unwrap_or_default()
    }

    /// The same, to open records in place.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.taken..).unwrap_or_default()
    }

    /// Bytes not taken.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends received bytes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.compact();
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the first `count` bytes, at most all.
    pub(crate) fn take(&mut self, count: usize) {
        self.taken += count.min(self.len());
        if self.is_empty() {
            self.bytes.clear();
            self.taken = 0;
        }
    }

    /// Drops all bytes and frees the memory.
    pub(crate) fn discard(&mut self) {
        self.bytes = Vec::new();
        self.taken = 0;
    }

    fn compact(&mut self) {
        if self.taken > 0 && self.taken >= self.len() {
            #[cfg(test)]
            {
                self.moved_bytes += self.len();
            }
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }
}

/// How much of the request head at the start of the input was parsed without finding its end.
///
/// A head that arrives in pieces is parsed from its start each time. So it is parsed again only when
/// a line has ended, because the head may be complete then, or when the input is twice as long as
/// the last time, so that an error within a line is found early. A head has little more than
/// [`http::HEADERS_MAX`] lines, which bounds how often it is parsed; a head without line ends is
/// parsed as often as its length can double.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeadProgress {
    /// Length of the input when it was last parsed.
    parsed: usize,
    /// Length of the input that was searched for line ends since.
    scanned: usize,
}

impl HeadProgress {
    /// Whether parsing `input` may have another result than the last time.
    pub(crate) fn is_due(&mut self, input: &[u8]) -> bool {
        let new = input.get(self.scanned..).unwrap_or_default();
        self.scanned = input.len();
        let has_grown = input.len() >= 2 * self.parsed || input.len() >= http::HEAD_BYTES_MAX;
        !input.is_empty() && (has_grown || new.contains(&b'\n'))
    }

    /// The input was parsed, and no request is complete.
    pub(crate) const fn on_incomplete(&mut self, input_bytes: usize) {
        self.parsed = input_bytes;
        self.scanned = input_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::{HeadProgress, InputBuffer};

    #[test]
    fn a_head_is_parsed_when_a_line_ends_or_its_length_doubled() {
        let mut head = HeadProgress::default();
        assert!(!head.is_due(b""), "nothing");
        assert!(head.is_due(b"GET"));
        head.on_incomplete(3);
        assert!(!head.is_due(b"GET /"), "neither");
        assert!(head.is_due(b"GET /a"), "doubled");
        head.on_incomplete(6);
        assert!(!head.is_due(b"GET /a HTT"));
        assert!(head.is_due(b"GET /a HTT\n"), "a line");
        head.on_incomplete(11);
        assert!(!head.is_due(b"GET /a HTT\nx"), "a line seen before");
        let mut long = vec![b'x'; http::HEAD_BYTES_MAX];
        head.on_incomplete(http::HEAD_BYTES_MAX - 2);
        long.pop();
        assert!(!head.is_due(&long));
        long.push(b'x');
        assert!(head.is_due(&long), "all that a head can be");
    }

    #[test]
    fn taken_bytes_are_gone_and_the_rest_stays_in_order() {
        let mut buffer = InputBuffer::default();
        buffer.extend(b"abc");
        buffer.take(1);
        buffer.extend(b"de");
        assert_eq!((buffer.as_slice(), buffer.len()), (&b"bcde"[..], 4));
        buffer.as_mut_slice()[0] = b'B';
        buffer.take(3);
        buffer.extend(b"f");
        assert_eq!(buffer.as_slice(), b"ef");
        buffer.take(usize::MAX);
        assert!(buffer.is_empty());
        buffer.extend(b"g");
        buffer.discard();
        assert_eq!(buffer.as_slice(), b"");
    }

    #[test]
    fn each_byte_is_moved_at_most_once() {
        // Single bytes are taken out of a buffer that is kept full.
        let mut buffer = InputBuffer::default();
        let mut arrived = 17_000;
        buffer.extend(&[7; 17_000]);
        for _ in 0..100_000 {
            buffer.take(1);
            buffer.extend(b"7");
            arrived += 1;
            assert!(buffer.bytes.len() <= 2 * 17_000 + 1);
        }
        assert!(buffer.moved_bytes > 0);
        assert!(buffer.moved_bytes <= arrived, "{}", buffer.moved_bytes);
    }
}
