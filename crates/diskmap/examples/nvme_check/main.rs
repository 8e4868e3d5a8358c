//! Reads and writes a namespace of an NVMe controller by each way there is, and compares every byte.
//!
//! ```text
//! nvme_check fill FILE SEED              writes a block device through the kernel
//! nvme_check compare FILE LOW HIGH       reads it through the kernel: two halves, a seed each
//! nvme_check vfio ADDRESS LOW HIGH       the driver over VFIO: all of it has seed LOW, and
//!                                        the upper half then gets seed HIGH
//! nvme_check astray ADDRESS LOW HIGH     the same controller is told addresses that are not
//!                                        mapped, which the IOMMU must stop
//! nvme_check passthru FILE LOW HIGH      as vfio, by io_uring passthrough on a generic device
//!                                        such as /dev/ng0n1, with a second process beside it
//! nvme_check abandon ADDRESS LOW HIGH    drops a queue pair with commands in flight; another goes on
//! nvme_check load ADDRESS                reads until it is killed
//! nvme_check hold ADDRESS                has it open over VFIO until its input ends
//! nvme_check promises vfio ADDRESS       what every disk promises (tests/conformance)
//! nvme_check promises passthru FILE
//! ```
//!
//! **All that is stored is overwritten.** `cargo xtask lab --disk nvme` runs it in a guest.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example tells what it does"
)]

mod astray;
mod content;
mod kernel;
mod over_passthru;
mod over_vfio;
#[path = "../../tests/conformance/promises.rs"]
mod promises;
mod worker;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use content::Content;

/// What goes wrong ends the program.
type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Outcome {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["fill", file, seed] => {
            let seed = seed.parse()?;
            kernel::fill(Path::new(file), seed)
        }
        ["compare", file, low, high] => {
            let seeds = (low.parse()?, high.parse()?);
            kernel::compare(Path::new(file), seeds)
        }
        ["vfio", address, low, high] => {
            over_vfio::check(address.parse()?, (low.parse()?, high.parse()?))
        }
        ["astray", address, low, high] => {
            astray::check(address.parse()?, (low.parse()?, high.parse()?))
        }
        ["passthru", file, low, high] => over_passthru::check(file, (low.parse()?, high.parse()?)),
        ["abandon", address, low, high] => {
            over_vfio::abandon(address.parse()?, (low.parse()?, high.parse()?))
        }
        ["load", address] => over_vfio::load(address.parse()?),
        ["hold", address] => over_vfio::hold(address.parse()?),
        ["beside", file, low] => over_passthru::beside(file, low.parse()?),
        ["promises", "vfio", address] => {
            let address = address.parse()?;
            check_promises(&|| over_vfio::subject(address))
        }
        ["promises", "passthru", file] => check_promises(&|| over_passthru::subject(file, false)),
        ["promises", "polled", file] => check_promises(&|| over_passthru::subject(file, true)),
        _ => Err("give a mode and its arguments: see the example's source".into()),
    }
}

/// Checks every promise, each with a disk of its own; one that is broken panics.
fn check_promises(subject: &dyn Fn() -> Outcome<promises::Subject>) -> Outcome {
    let mut name = "";
    for (what, promise) in promises::PROMISES {
        let mut subject = subject()?;
        // A panic is told with what came before it.
        eprintln!("{}: {what}", subject.name);
        subject.check(promise);
        name = subject.name;
    }
    println!("check: {name} keeps {} promises", promises::PROMISES.len());
    Ok(())
}

/// The content of a disk of `size_bytes`: a seed for each half.
fn content((low, high): (u64, u64), size_bytes: u64) -> Content {
    Content {
        low,
        high,
        middle: size_bytes / 2,
    }
}
