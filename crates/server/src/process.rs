//! The process `atlas`: its command line, the log around what it does, and the exit code that the outcome becomes.
//!
//! It refuses to decide anything else. Bounded by: nothing, it keeps none.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use tracing::Level;

use crate::doctor;
use crate::failure::{EXIT_OK, Failure};
use crate::observe::log;
use crate::settings::cli::{Cli, Command, NvmeCommand};
use crate::settings::{self, CommonArgs, FileConfig, FileText, Settings};
use crate::take_over::{launcher, request};
use crate::{reload, running, start, store_command, top, try_command};

/// Does what the command line says; the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let mut source = None;
    let outcome = match Cli::parse().command {
        Command::Serve(args) => {
            let action = if args.check { check } else { serve };
            let file = FileConfig::of_args(&args.common);
            source = Some(Arc::clone(&file.source));
            Settings::merge(args.common, file).and_then(|settings| action(&settings))
        }
        Command::Try(args) => try_command::settings(&args).and_then(|settings| serve(&settings)),
        Command::Check(args) if args.keys => {
            list_keys();
            Ok(())
        }
        Command::Check(args) => {
            let has_path = args.path.is_some();
            let common = CommonArgs {
                path: args.path.unwrap_or_default(),
                config: args.file,
                ..CommonArgs::default()
            };
            let file = FileConfig::of_args(&common);
            source = Some(Arc::clone(&file.source));
            Settings::merge(common, file).and_then(|settings| check_file(&settings, has_path))
        }
        Command::Doctor(args) => doctor::run(&args),
        Command::Store { command } => store_command::run(&command),
        Command::Nvme { command } => match command {
            NvmeCommand::Bind { device } => doctor::nvme::bind(&device),
            NvmeCommand::Unbind { device } => doctor::nvme::unbind(&device),
        },
        Command::Top(args) => top::run(&args),
        Command::Reload(args) => request::run(&args),
        Command::ReadFiles(args) => reload::reader::run(&args),
        Command::Launch(args) => launcher::run(&args),
    };
    exit_code(outcome, source.as_deref())
}

/// Serves until a signal or a fault ends it.
fn serve(settings: &Settings) -> Result<(), Failure> {
    log::init(settings.log, settings.log_format);
    log::install_panic_hook();
    let outcome = start::serve(settings);
    log::close();
    outcome
}

/// Looks whether it could serve, and touches nothing.
fn check(settings: &Settings) -> Result<(), Failure> {
    log::init(settings.log, settings.log_format);
    start::check(settings)
}

/// Looks at the files that the configuration names; with PATH, at all that a start looks at.
fn check_file(settings: &Settings, has_path: bool) -> Result<(), Failure> {
    log::init(settings.log, settings.log_format);
    let found = reload::check(settings)?;
    if has_path {
        start::check(settings)?;
        let _ = write!(std::io::stdout(), "{}", running::changes(settings));
        return Ok(());
    }
    let file = settings
        .source
        .args
        .config
        .as_deref()
        .unwrap_or_else(|| "".as_ref());
    // If stdout is closed, the exit code still tells.
    let _ = writeln!(std::io::stdout(), "ok: {}: {found}", file.display());
    let _ = write!(std::io::stdout(), "{}", running::changes(settings));
    Ok(())
}

fn list_keys() {
    let keys = settings::keys(|key| reload::RELOADED.contains(&key));
    let _ = writeln!(
        std::io::stdout(),
        "KEY, WHAT A CHANGE NEEDS, DEFAULT, RANGE (TYPE)"
    );
    let _ = write!(std::io::stdout(), "{keys}");
}

/// The exit code after `outcome`; a failure is printed on stderr, with the lines of the configuration file that it
/// is about.
fn exit_code(outcome: Result<(), Failure>, source: Option<&FileText>) -> ExitCode {
    let Err(failure) = outcome else {
        return ExitCode::from(EXIT_OK);
    };
    // Not through the log: the reason must be printed at every log level.
    let priority = log::priority(Level::ERROR);
    for reason in failure.reasons() {
        let text = reason.to_string();
        let excerpt = source.and_then(|source| source.excerpt(&text));
        let lines = text.lines().chain(excerpt.iter().flat_map(|it| it.lines()));
        for (index, line) in lines.enumerate() {
            let prefix = if index == 0 { "atlas: " } else { "" };
            let _ = writeln!(std::io::stderr(), "{priority}{prefix}{line}");
        }
    }
    ExitCode::from(failure.exit_code())
}
