//! curl as a client: what it fetches is compared byte by byte as it arrives.
//!
//! Nothing is fetched ahead of the reader but what pipes and windows hold, so a caller that does
//! not read makes a slow client. Bounded by: a limit on curl's own time.

use std::io::Read as _;
use std::process::{ChildStdout, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::content::Content;
use crate::namespace::Namespace;
use crate::process::{Process, await_readable};

/// Seconds curl may take for all it is asked for.
const SECONDS_MAX: u64 = 60;

/// A curl that is fetching, ended when dropped.
#[derive(Debug)]
pub struct Curl {
    process: Process,
    stdout: ChildStdout,
    /// Reads stderr meanwhile: with `--verbose` it is more than a pipe holds.
    stderr: Option<JoinHandle<String>>,
    /// What was asked for, for messages.
    arguments: String,
}

/// What curl said when it ended well or not.
#[derive(Debug)]
pub struct CurlEnd {
    /// 0: all went well; else see the manual, "EXIT CODES".
    pub code: i32,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Curl {
    /// Starts curl in `namespace` with options and URLs; it fails on statuses of 400 and above.
    pub fn start<S: AsRef<str>>(namespace: &Namespace, arguments: &[S]) -> Result<Self> {
        let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        let mut command = namespace.command("curl");
        // -g: the brackets of an IPv6 address are no pattern.
        command.args(["-g", "--silent", "--show-error", "--fail", "--max-time"]);
        command.arg(SECONDS_MAX.to_string()).args(&arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn("curl", &mut command)?;
        let stdout = process
            .child()
            .stdout
            .take()
            .context("curl's stdout is piped")?;
        let stderr = process.child().stderr.take();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(mut pipe) = stderr {
                let _ = pipe.read_to_string(&mut text);
            }
            text
        });
        Ok(Self {
            process,
            stdout,
            stderr: Some(stderr),
            arguments: arguments.join(" "),
        })
    }

    /// Reads `count` bytes that stand at `offset` of `content`, comparing each.
    pub fn read_checked(&mut self, content: Content, offset: u64, count: u64) -> Result<()> {
        let mut piece = vec![0; 1 << 20];
        let (mut at, end) = (offset, offset + count);
        while at < end {
            await_readable(&self.stdout)?;
            let want = usize::try_from(end - at).map_or(piece.len(), |left| left.min(piece.len()));
            let bytes = self
                .stdout
                .read(&mut piece[..want])
                .context("reading from curl")?;
            if bytes == 0 {
                let complaint = self.end()?.stderr;
                bail!(
                    "{}: {} bytes missing: {complaint}",
                    self.arguments,
                    end - at
                );
            }
            content
                .check(at, &piece[..bytes])
                .with_context(|| self.arguments.clone())?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// The rest must be the end: returns what curl wrote to stderr, if it is content.
    pub fn finish(mut self) -> Result<String> {
        let mut rest = Vec::new();
        await_readable(&self.stdout)?;
        self.stdout
            .read_to_end(&mut rest)
            .context("reading from curl")?;
        ensure!(
            rest.is_empty(),
            "{}: {} bytes too many",
            self.arguments,
            rest.len()
        );
        let end = self.end()?;
        ensure!(
            end.code == 0,
            "{}: {} (code {})",
            self.arguments,
            end.stderr,
            end.code
        );
        Ok(end.stderr)
    }

    /// How it ends, when it is not known to be well; what it fetched is thrown away.
    pub fn fail(mut self) -> Result<CurlEnd> {
        let mut rest = Vec::new();
        self.stdout
            .read_to_end(&mut rest)
            .context("reading from curl")?;
        self.end()
    }

    /// Ends it in the middle of what it does, as if its machine had lost power.
    pub fn kill(mut self) -> Result<()> {
        self.process.signal(rustix::process::Signal::KILL)?;
        self.process.wait(Duration::from_secs(SECONDS_MAX))?;
        Ok(())
    }

    fn end(&mut self) -> Result<CurlEnd> {
        let stderr = self
            .stderr
            .take()
            .map_or_else(String::new, |reader| reader.join().unwrap_or_default());
        let status = self.process.wait(Duration::from_secs(SECONDS_MAX))?;
        let code = status.code().context("curl was killed")?;
        Ok(CurlEnd {
            code,
            stderr: stderr.trim().to_owned(),
        })
    }
}
