//! Each stage of the pipeline alone, in the product's own rooms: what no server built of them can
//! do better than, and what the bench's ceilings are made of.
//!
//! ```text
//! read     diskmap: a window of direct reads from many files into slots
//! seal     record: the records of a fetch, in place in a slot
//! write    link: the frames of a fetch, out of slots to nobody
//! session  the conductor: between frames received and frames sent, with thousands of clients
//! ```
//!
//! A stage takes steps of one batch for as long as it is told (`timing`), on the core it was
//! started on; nothing is shared between stages. Each file says what its stage includes and what
//! it leaves out. It refuses to judge: a report is bytes, seconds and busy seconds. Bounded by the
//! limits of `args`; all memory is taken before the clock runs.

mod args;
mod read;
mod seal;
mod session;
pub mod sets;
mod timing;
mod write;

use std::io::{Write as _, stdout};

use anyhow::{Context as _, Result};

pub use args::{Stage, StagesArgs};
pub use sets::SetsArgs;
pub use timing::Report;

use timing::{Step, Timing};

/// Payload bytes of a read, of the records sealed together and of a frame: what a full fetch of the
/// server is (docs/develop/decisions/0003-read-size.md).
const FETCH_BYTES: u32 = 61_440;

/// Runs a stage and prints its report.
///
/// # Errors
/// What cannot be opened, read or sent, and what to do.
pub fn run(args: &StagesArgs) -> Result<()> {
    let text = serde_json::to_string_pretty(&measure(args)?)? + "\n";
    stdout()
        .write_all(text.as_bytes())
        .context("printing the report")
}

fn measure(args: &StagesArgs) -> Result<Report> {
    let timing = Timing::new(args)?;
    let (name, mut step): (_, Box<dyn Step>) = match &args.stage {
        Stage::Read(args) => ("read", Box::new(read::Reader::new(args)?)),
        Stage::Seal(args) => ("seal", Box::new(seal::Seal::new(args)?)),
        Stage::Write(args) => ("write", Box::new(write::Writer::new(args)?)),
        Stage::Session(args) => ("session", Box::new(session::Session::new(args)?)),
    };
    timing.run(name, step.as_mut())
}
