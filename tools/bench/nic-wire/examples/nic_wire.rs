//! The NIC-like link as a command: see `--help`. Refuses what [`nic_wire::run`] refuses; bounded as it.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use nic_wire::WireArgs;

#[derive(Parser, Debug)]
#[command(name = "nic_wire")]
struct Command {
    #[command(flatten)]
    args: WireArgs,
}

fn main() -> ExitCode {
    match nic_wire::run(&Command::parse().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "nic_wire: {error:#}");
            ExitCode::FAILURE
        }
    }
}
