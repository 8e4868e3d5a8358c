//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::filler::{self, End, Mode};
use crate::settings::{Overrides, Settings};

/// Keeps what Atlas serves equal to what this edge should hold of an object store.
///
/// It lists ORIGIN, fetches what is not in TARGET in its version, and removes what ORIGIN
/// does not have any more. A copy appears under its name only when it is whole, compared,
/// and on the disk. It may be ended at any moment, and goes on where it was.
///
/// A first try:
///
///   atlas-fill s3://library/films /srv/video --once --dry-run
///
/// For good, with a settings file (docs/run/fill.md has all its keys):
///
///   atlas-fill --config /etc/atlas/fill.toml
#[derive(Parser, Debug)]
#[command(
    name = "atlas-fill",
    version,
    verbatim_doc_comment,
    after_long_help = "\
Credentials: those of a file of lines KEY=VALUE (`credentials` in the settings file), for
keys that it does not have those of the environment (AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_KEY and so on),
or else those of the instance's metadata. They are never written anywhere.

It tells what it does by a bar on stderr if that is a terminal, or else by JSON lines on
stdout.

Exit codes:
  0         with --once: all that is wanted is there; with --dry-run and --check: it is told;
            else: ended by SIGINT or SIGTERM
  1         with --once: something did not come, or was not removed; its line says why
  2         it could not begin: stderr says why, and names the remedy
  130, 143  with --once: SIGINT or SIGTERM ended it before all was there"
)]
pub struct Arguments {
    /// Where the library is: s3://BUCKET/PREFIX, gs://, az://, https://, http:// or file:///PATH
    origin: Option<String>,

    /// The directory of the copies, empty at first and no one else's; or a raw store
    target: Option<PathBuf>,

    /// Settings file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// What is wanted, as JSON lines or TOML: names with priority and expiry [default: all that the origin has]
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// End when all is there
    ///
    /// For cron and systemd timers. Without it, it goes on: it lists the origin again and again,
    /// and fetches what viewers missed.
    #[arg(long)]
    once: bool,

    /// Tell what would be fetched and removed, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Take a directory that has files already
    ///
    /// What is in it and not at the origin is removed then, within the bound of removals_percent_max.
    #[arg(long)]
    adopt: bool,

    /// Most bytes a second, such as 1200Mbit/s or 100MB/s
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,

    /// Where to serve /metrics and /health
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,

    /// Read the settings, tell what is wrong with them, and end
    #[arg(long)]
    check: bool,
}

/// Runs the program.
#[must_use]
pub fn run(arguments: Arguments) -> ExitCode {
    match try_run(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            #[expect(clippy::print_stderr, reason = "why it cannot begin")]
            {
                eprintln!("atlas-fill: {problem}");
            }
            ExitCode::from(2)
        }
    }
}

fn try_run(arguments: Arguments) -> Result<u8, String> {
    let overrides = Overrides {
        origin: arguments.origin,
        target: arguments.target,
        manifest: arguments.manifest,
        rate: arguments.rate,
        metrics: arguments.metrics,
    };
    let settings = Settings::load(arguments.config.as_deref(), overrides)?;
    if arguments.check {
        return Ok(0);
    }
    let mode = Mode {
        once: arguments.once,
        dry_run: arguments.dry_run,
        adopt: arguments.adopt,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("threads: {error}"))?;
    let end = runtime.block_on(filler::run(settings, mode))?;
    Ok(match end {
        End::Incomplete => 1,
        End::Interrupted if mode.once => 130,
        End::Terminated if mode.once => 143,
        End::Done | End::Interrupted | End::Terminated => 0,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_its_help_names_what_it_takes() {
        Arguments::command().debug_assert();
        let help = Arguments::command().render_long_help().to_string();
        for text in [
            "s3://BUCKET/PREFIX",
            "--dry-run",
            "Exit codes:",
            "AWS_ACCESS_KEY_ID",
        ] {
            assert!(help.contains(text), "{text}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let arguments = Arguments::parse_from(["atlas-fill", "s3://b"]);
        let problem = try_run(arguments).unwrap_err();
        assert!(problem.starts_with("target: not given"), "{problem}");
    }
}
