//! `atlas doctor`: what this machine offers, and the command that mends what is missing. `atlas nvme bind`
//! and `unbind`: an NVMe device for a driver in user space, and back ([`nvme`]).
//!
//! It reads `/proc`, `/sys` and the limits of this process, asks interfaces by ethtool, and opens NVMe
//! namespaces for a moment to see whether another program has them. It refuses to change anything.
//! Bounded by the devices there are: of none it could be told that it is not in use if only some were looked at.

mod findings;
mod host;
mod interfaces;
mod numa;
pub mod nvme;
pub(crate) mod tree;

use std::io::{self, Write as _};

pub use findings::{Finding, Verdict};
use tree::Tree;

use crate::failure::Failure;

/// Prints what was found.
///
/// # Errors
/// Something is missing without which no server starts here.
pub fn run() -> Result<(), Failure> {
    let tree = Tree::of_this_machine();
    let sections = [
        (
            "Host",
            [host::findings(&tree), numa::findings(&tree)].concat(),
        ),
        ("Interfaces", interfaces::findings(&tree)),
        ("NVMe", nvme::findings(&tree)),
    ];
    let text = findings::render(&sections);
    // If stdout is closed, the exit code still tells.
    let _ = io::stdout().write_all(text.as_bytes());
    let all = sections.iter().flat_map(|(_, findings)| findings);
    let missing = all
        .filter(|finding| finding.verdict == Verdict::Missing)
        .count();
    match missing {
        0 => Ok(()),
        count => Err(Failure::refused(
            format!("no server starts here: {count} of the findings above"),
            "see what mends them",
        )),
    }
}
