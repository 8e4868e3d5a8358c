//! One reply, as a client follows it that sees the beginning of each frame and counts the rest.
//!
//! What comes in order is handed in as [`Piece`]s: how many bytes, and as many of them as were
//! seen. Over TLS see [`super::tls`].
//!
//! It refuses what it cannot count: a status other than 200, a head without `Content-Length`, a
//! head that goes on beyond what is seen of its frame, bytes behind the end. Bounded by
//! [`HEAD_BYTES_MAX`] for a head in several frames; otherwise nothing is kept.

use super::Fault;

/// Longest head of a reply, bytes.
pub const HEAD_BYTES_MAX: usize = 4096;

/// Most header fields of a reply.
const FIELDS_MAX: usize = 32;

/// Consecutive bytes of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// How many.
    pub(crate) bytes: u32,
    /// The first of them: all if the connection is sampled.
    pub(crate) seen: &'a [u8],
}

impl<'a> Piece<'a> {
    /// What follows the first `count` bytes.
    pub(crate) fn after(self, count: u32) -> Self {
        let skip = usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            bytes: self.bytes.saturating_sub(count),
            seen: self.seen.get(skip..).unwrap_or_default(),
        }
    }
}

/// Where in its replies a connection is.
#[derive(Debug, Default)]
pub(crate) enum Reply {
    /// Nothing was asked that is not answered.
    #[default]
    None,
    /// Asked; so much of the head has come. Nothing is allocated for a head in one frame.
    Head(Vec<u8>),
    /// The head is complete.
    Body {
        /// Content-Length.
        length_bytes: u64,
        /// Bytes still to come.
        left_bytes: u64,
    },
}

/// A head that was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes of the head itself, the empty line included.
    pub(crate) head_bytes: usize,
    /// Content-Length.
    pub(crate) body_bytes: u64,
    /// Whether the server will close the connection.
    pub(crate) closes: bool,
}

impl Reply {
    /// Takes a head, or more of one: `None` if it goes on in the next frame, else what follows it.
    pub(crate) fn take_head<'a>(
        kept: &mut Vec<u8>,
        piece: Piece<'a>,
    ) -> Result<Option<(Head, Piece<'a>)>, Fault> {
        let before = kept.len();
        let found = if before == 0 {
            parse_head(piece.seen)?
        } else {
            let room = HEAD_BYTES_MAX.saturating_sub(before);
            kept.extend(piece.seen.iter().take(room));
            parse_head(kept)?
        };
        let Some(head) = found else {
            let is_whole = piece.seen.len() == usize::try_from(piece.bytes).unwrap_or(usize::MAX);
            if !is_whole || kept.len().max(piece.seen.len()) >= HEAD_BYTES_MAX {
                return Err(Fault::Head);
            }
            if before == 0 {
                kept.extend_from_slice(piece.seen);
            }
            return Ok(None);
        };
        let from_piece = u32::try_from(head.head_bytes - before).map_err(|_| Fault::Head)?;
        Ok(Some((head, piece.after(from_piece))))
    }
}

pub(crate) fn parse_head(bytes: &[u8]) -> Result<Option<Head>, Fault> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let Ok(httparse::Status::Complete(head_bytes)) = response.parse(bytes) else {
        // What is not HTTP is told from a head that is not complete by its first bytes.
        let start = b"HTTP/1.1 ";
        let is_http = bytes.iter().zip(start).all(|(a, b)| a == b);
        return if is_http { Ok(None) } else { Err(Fault::Head) };
    };
    let status = response.code.unwrap_or(0);
    if status != 200 {
        return Err(Fault::Status(status));
    }
    let field = |name: &str| {
        let mut all = response.headers.iter();
        let found = all.find(|it| it.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let length = field("content-length").and_then(|it| it.trim().parse().ok());
    Ok(Some(Head {
        head_bytes,
        body_bytes: length.ok_or(Fault::Head)?,
        closes: field("connection").is_some_and(|it| it.eq_ignore_ascii_case("close")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n";

    fn piece(seen: &[u8]) -> Piece<'_> {
        let bytes = u32::try_from(seen.len()).expect("small");
        Piece { bytes, seen }
    }

    #[test]
    fn a_head_ends_where_the_empty_line_does() {
        let text = [HEAD, b"body"].concat();
        let (head, rest) = Reply::take_head(&mut Vec::new(), piece(&text))
            .expect("right")
            .expect("complete");
        assert_eq!((head.head_bytes, head.body_bytes), (HEAD.len(), 7));
        assert_eq!((rest.bytes, rest.seen), (4, b"body".as_slice()));
        assert!(!head.closes);
    }

    #[test]
    fn a_head_may_be_split_anywhere() {
        let text = [HEAD, b"body"].concat();
        for cut in 1..HEAD.len() {
            let (first, second) = text.split_at(cut);
            let mut kept = Vec::new();
            assert_eq!(
                Reply::take_head(&mut kept, piece(first)).map(|it| it.is_some()),
                Ok(false),
                "{cut}"
            );
            let (head, rest) = Reply::take_head(&mut kept, piece(second))
                .expect("right")
                .expect("complete");
            assert_eq!((head.head_bytes, rest.bytes), (HEAD.len(), 4), "{cut}");
        }
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let error = |text: &[u8]| Reply::take_head(&mut Vec::new(), piece(text)).map(|_| ());
        assert_eq!(error(b"HTTP/1.1 404 N\r\n\r\n"), Err(Fault::Status(404)));
        assert_eq!(error(b"HTTP/1.1 200 OK\r\n\r\n"), Err(Fault::Head));
        assert_eq!(error(b"SSH-2.0"), Err(Fault::Head));
        let unseen = Piece {
            bytes: 1448,
            seen: &HEAD[..20],
        };
        assert!(Reply::take_head(&mut Vec::new(), unseen).is_err());
        let long = [
            b"HTTP/1.1 200 OK\r\nA: ".as_slice(),
            &[b'a'; HEAD_BYTES_MAX],
        ]
        .concat();
        assert_eq!(error(&long), Err(Fault::Head));
    }

    #[test]
    fn a_server_that_closes_says_so() {
        let text = b"HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n";
        let found = Reply::take_head(&mut Vec::new(), piece(text)).expect("right");
        assert!(found.expect("complete").0.closes);
    }
}
