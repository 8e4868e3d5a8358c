//! `atlas-emulate`, for benches only: see [`server::emulate`]. Built with the feature `emulate` alone.

use std::process::ExitCode;

use clap::Parser as _;
use server::emulate::EmulateArgs;
use server::process::{exit_code, serve};
use server::settings::Settings;

fn main() -> ExitCode {
    let settings = Settings::resolve_emulated(EmulateArgs::parse());
    exit_code(
        "atlas-emulate",
        settings.and_then(|settings| serve(&settings)),
    )
}
