//! A run of records in one piece of memory, sealed in place.
//!
//! The disk puts the contents back to back. They are sealed from the last to the first, each where the
//! disk put it, and moved to its place in the stream right afterwards, while it is in the first-level
//! cache. Moved first, every byte would be waited for without anything to compute meanwhile: that cost
//! a tenth of all that a GB costs over TLS.

use crate::{ContentType, Framing, Sealer, Tag};

/// Most records of a run.
pub const RUN_RECORDS_MAX: u32 = 16;

/// The tags of a run, in order, and [`None`] for the records that it has not.
pub type RunTags = [Option<Tag>; RUN_RECORDS_MAX as usize];

/// Seals a run of records of application data in place, of which the first has `number`. Before, the
/// contents stand one behind another in `run`, behind the room for the first header; afterwards `run`
/// holds the bytes of the stream. Every record has `content_bytes` of content, but the last has what is
/// left.
///
/// # Panics
/// If there are more than [`RUN_RECORDS_MAX`] records, or the last would be shorter than its framing.
pub fn seal_run(sealer: &Sealer, number: u64, content_bytes: u32, run: &mut [u8]) -> RunTags {
    let framing = sealer.framing();
    let header_bytes = framing.header_bytes as usize;
    let content_bytes = content_bytes as usize;
    let record_bytes = content_bytes + framing.overhead_bytes() as usize;
    let count = run.len().div_ceil(record_bytes);
    let mut tags = RunTags::default();
    // From the end: the record behind has left the place where this one's trailer goes.
    for (index, tag) in (0..count).zip(&mut tags).rev() {
        let record_end = run.len().min((index + 1) * record_bytes);
        let to = index * record_bytes + header_bytes;
        let rest_bytes = record_end.checked_sub(to);
        let rest_bytes = rest_bytes.expect("a record has room for its header");
        let from = header_bytes + index * content_bytes;
        let rest = &mut run[from..from + rest_bytes];
        let mut header = [0; Framing::HEADER_BYTES_MAX];
        let header = &mut header[..header_bytes];
        let kind = ContentType::ApplicationData;
        *tag = Some(sealer.seal_rest(number + index as u64, kind, header, rest));
        run.copy_within(from..from + rest_bytes, to);
        run[to - header_bytes..to].copy_from_slice(header);
    }
    assert!(count <= tags.len(), "{count} records in a run");
    tags
}
