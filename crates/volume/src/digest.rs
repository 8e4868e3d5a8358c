//! Checksums: SHA-256, of which 128 bits are kept.
//!
//! Each run of an object ([`RUN_BYTES`]) has a checksum of its own, so that a wrong byte is found where
//! it is. An object's tag is the SHA-256 of its runs' checksums: its content is hashed once, and two
//! objects with the same content have the same tag in every store.

use aws_lc_rs::digest::{Context, SHA256, digest};

use crate::RUN_BYTES;

/// Bytes of a checksum.
pub(crate) const DIGEST_BYTES: usize = 16;

/// Checksum of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RunDigest(pub [u8; DIGEST_BYTES]);

/// Stands for an object's content: two contents have different tags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ContentTag(pub [u8; DIGEST_BYTES]);

impl core::fmt::Display for ContentTag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// SHA-256, all of it.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

fn shortened(full: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut out = [0; DIGEST_BYTES];
    out.copy_from_slice(&full[..DIGEST_BYTES]);
    out
}

/// The checksum of a run.
#[must_use]
pub fn digest_run(bytes: &[u8]) -> RunDigest {
    RunDigest(shortened(&sha256(bytes)))
}

/// The tag of an object with these runs.
pub(crate) fn tag_of(runs: &[RunDigest]) -> ContentTag {
    let mut context = Context::new(&SHA256);
    runs.iter().for_each(|run| context.update(&run.0));
    ContentTag(shortened(context.finish().as_ref()))
}

/// Checksums and tag of an object that is passed in pieces of any size.
pub struct ContentDigest {
    runs: Vec<RunDigest>,
    run: Context,
    run_bytes: usize,
}

impl core::fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let runs = self.runs.len();
        f.debug_struct("ContentDigest")
            .field("runs", &runs)
            .finish()
    }
}

impl Default for ContentDigest {
    fn default() -> Self {
        Self::new()
    }
}

impl ContentDigest {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            runs: Vec::new(),
            run: Context::new(&SHA256),
            run_bytes: 0,
        }
    }

    /// The next bytes of the object.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = RUN_BYTES as usize - self.run_bytes;
            let (piece, rest) = bytes.split_at(bytes.len().min(room));
            self.run.update(piece);
            self.run_bytes += piece.len();
            bytes = rest;
            if self.run_bytes == RUN_BYTES as usize {
                self.end_run();
            }
        }
    }

    fn end_run(&mut self) {
        let run = core::mem::replace(&mut self.run, Context::new(&SHA256));
        self.runs.push(RunDigest(shortened(run.finish().as_ref())));
        self.run_bytes = 0;
    }

    /// All checksums, and the tag.
    #[must_use]
    pub fn finish(mut self) -> (Vec<RunDigest>, ContentTag) {
        if self.run_bytes > 0 {
            self.end_run();
        }
        let tag = tag_of(&self.runs);
        (self.runs, tag)
    }
}
