//! `atlas doctor`: what this machine offers, and the command that mends what is missing. `atlas nvme bind`
//! and `unbind`: an NVMe device for a driver in user space, and back ([`nvme`]).
//!
//! What can be tried is tried: system calls that a filter may refuse, the device of taps, the right to read what is to
//! be served. For the rest it reads `/proc`, `/sys` and the limits of this process, asks interfaces by ethtool, and
//! opens NVMe namespaces for a moment to see whether another program has them. It refuses to change anything.
//! Bounded by the devices there are: of none it could be told that it is not in use if only some were looked at.

mod caches;
mod findings;
mod host;
mod interfaces;
mod numa;
pub(crate) mod nvme;
mod serving;
pub(crate) mod tree;

use std::io::{self, Write as _};

pub(crate) use findings::{Finding, Verdict};
use tree::Tree;

use serving::Plan;

use crate::failure::Failure;
use crate::settings::cli::DoctorArgs;

/// Prints what was found. Whoever is to serve PATH looks at it, so rights are dropped for good at the end.
///
/// # Errors
/// Something is missing without which no server starts here.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let tree = Tree::of_this_machine();
    let plan = Plan::read(args);
    let mut sections = vec![
        (
            "Host",
            [
                host::findings(&tree, &plan),
                caches::findings(&tree, plan.slots_bytes()),
                numa::findings(&tree),
            ]
            .concat(),
        ),
        ("Interfaces", interfaces::findings(&tree)),
        ("NVMe", nvme::findings(&tree)),
    ];
    if plan.is_named {
        sections.push(("Serving", serving::findings(args, &plan)));
    }
    let all = sections.iter().flat_map(|(_, findings)| findings);
    let missing = all
        .filter(|finding| finding.verdict == Verdict::Missing)
        .count();
    let text = if args.json {
        findings::render_json(&sections, missing)
    } else {
        findings::render(&sections)
    };
    // If stdout is closed, the exit code still tells.
    let _ = io::stdout().write_all(text.as_bytes());
    match missing {
        0 => Ok(()),
        count => Err(Failure::refused(
            format!("no server starts here: {count} of the findings above"),
            "see what mends them",
        )),
    }
}
