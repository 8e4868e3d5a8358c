//! `atlas`: parses the command line, serves, and turns the outcome into an exit code.

use std::process::ExitCode;

use clap::Parser as _;
use server::cli::{Cli, Command, NvmeCommand};
use server::doctor;
use server::process::{check, exit_code, serve};
use server::settings::Settings;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => {
            let action = if args.check { check } else { serve };
            Settings::resolve(args.common).and_then(|settings| action(&settings))
        }
        Command::Doctor(args) => doctor::run(&args),
        Command::Store { command } => server::raw::run(&command),
        Command::Nvme { command } => match command {
            NvmeCommand::Bind { device } => doctor::nvme::bind(&device),
            NvmeCommand::Unbind { device } => doctor::nvme::unbind(&device),
        },
        Command::ReadCertificates(args) => server::tls::reader::run(&args),
    };
    exit_code("atlas", outcome)
}
