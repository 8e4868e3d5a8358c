//! The clients: who they are, what they must agree to, what they say at the end.

pub mod program;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Deserialize;
use testbed::namespace::Namespace;

use crate::observed::Options;

/// A TCP of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// gVisor's netstack, in a Go program.
    Gvisor,
    /// lwIP as Debian builds it, in a C program.
    Lwip,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Gvisor, Self::Lwip];

    /// Its name on the command line and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gvisor => "gVisor",
            Self::Lwip => "lwIP",
        }
    }

    /// What it offers, so what must be agreed. Debian's lwIP is built without SACK and timestamps.
    #[must_use]
    pub const fn options(self) -> Options {
        let is_full = matches!(self, Self::Gvisor);
        Options {
            sack: is_full,
            timestamps: is_full,
            window_scale: true,
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|it| it.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            format!("one of {}", names.join(", "))
        })
    }
}

/// What a client says at its end. What its stack does not count is 0.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Connections that fetched everything and were closed by both sides.
    pub connections: u64,
    /// Replies whose every byte was right.
    pub replies: u64,
    /// Their body bytes.
    pub bytes: u64,
    /// Segments of the server with a wrong checksum.
    pub checksum_errors: u64,
    /// Segments of the server that are malformed.
    pub invalid_segments: u64,
    /// Packets of the server that are malformed.
    pub malformed_packets: u64,
}

/// A client that can be run.
#[derive(Clone, Debug)]
pub struct Client {
    /// Which one.
    pub kind: Kind,
    program: PathBuf,
}

/// Why a client cannot be had here; or that it is broken, which is an error.
pub type Found = Result<std::result::Result<Client, String>>;

impl Client {
    /// Finds a client; builds its program unless it `is_built`.
    ///
    /// # Errors
    /// Its program does not build although all that it needs is there.
    pub fn find(kind: Kind, is_built: bool) -> Found {
        let program = match kind {
            _ if is_built => Ok(program::path(kind)),
            Kind::Gvisor => program::build_gvisor()?,
            Kind::Lwip => program::build_lwip()?,
        };
        Ok(program.map(|program| Self { kind, program }))
    }

    /// Fetches everything, and stays until `is_over`: frames come and go through `frames`. It runs in this
    /// namespace, which has no interface.
    ///
    /// # Errors
    /// The first thing that is not as it is to be.
    pub fn run(
        &self,
        namespace: &Namespace,
        frames: OwnedFd,
        is_over: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<Report> {
        let report = program::run(&self.program, namespace, frames, is_over);
        report.with_context(|| self.kind.name())
    }
}

/// The longest sleep between two looks at the interrupt flag, and between two questions whether it is
/// over.
const SLICE: Duration = Duration::from_millis(100);

/// Waits until a descriptor has something to read, or has ended; whether it has.
fn await_input(descriptor: &impl AsFd, most: Duration) -> Result<bool> {
    let most = Timespec::try_from(most).context("a short duration")?;
    let mut waiting = [PollFd::new(descriptor, PollFlags::IN)];
    match poll(&mut waiting, Some(&most)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("waiting for input"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_others_refused() {
        assert_eq!("gvisor".parse(), Ok(Kind::Gvisor));
        assert_eq!("lwIP".parse(), Ok(Kind::Lwip));
        assert!("linux".parse::<Kind>().is_err());
    }

    #[test]
    fn what_a_program_says_is_read_and_what_it_leaves_out_is_0() {
        let text = r#"{"connections":8,"replies":24,"bytes":9}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        assert_eq!(
            (report.connections, report.replies, report.bytes),
            (8, 24, 9)
        );
        assert_eq!(report.checksum_errors, 0);
    }
}
