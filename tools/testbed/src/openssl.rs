//! `openssl s_client` as a client that can be made to do one TLS thing at a time.
//!
//! What it prints is collected by threads, so that a caller waits for words and not for time.
//! Bounded by: a limit on every wait.

use std::io::{Read, Write as _};
use std::net::SocketAddr;
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::interrupt;
use crate::namespace::Namespace;
use crate::process::Process;

/// Longest wait for anything it is to print, or for its end.
const LIMIT: Duration = Duration::from_secs(30);

/// A connection held by `openssl s_client`, ended when dropped.
#[derive(Debug)]
pub struct TlsClient {
    process: Process,
    stdin: Option<ChildStdin>,
    /// Handshake, session and, below them, what the server sent.
    stdout: Printed,
    /// Errors, and the names of commands as they are carried out.
    stderr: Printed,
}

/// How it ended.
#[derive(Debug)]
pub struct TlsEnd {
    /// Everything it wrote to stdout, what the server sent included.
    pub stdout: Vec<u8>,
    /// Everything it wrote to stderr.
    pub stderr: String,
}

impl TlsEnd {
    /// Whether it said this, on either pipe.
    pub fn says(&self, words: &str) -> bool {
        contains(&self.stdout, words.as_bytes()) || self.stderr.contains(words)
    }

    /// Fails unless it said this, on either pipe.
    pub fn expect(&self, words: &str) -> Result<()> {
        ensure!(
            self.says(words),
            "openssl does not say {words:?}: {}",
            self.stderr.trim()
        );
        Ok(())
    }
}

impl TlsClient {
    /// Starts it in `namespace` with further arguments.
    pub fn start<S: AsRef<str>>(
        namespace: &Namespace,
        address: SocketAddr,
        arguments: &[S],
    ) -> Result<Self> {
        let mut command = namespace.command("openssl");
        command.args(["s_client", "-connect", &address.to_string()]);
        command.args(arguments.iter().map(AsRef::as_ref));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn("openssl", &mut command)?;
        let child = process.child();
        Ok(Self {
            stdin: child.stdin.take(),
            stdout: Printed::of(child.stdout.take().context("stdout is piped")?),
            stderr: Printed::of(child.stderr.take().context("stderr is piped")?),
            process,
        })
    }

    /// Waits for the end of the handshake.
    pub fn await_handshake(&self) -> Result<()> {
        self.stdout
            .wait(b"Verify return code")
            .with_context(|| self.stderr.text())
    }

    /// Waits until the server has sent these bytes.
    pub fn await_bytes(&self, bytes: &[u8]) -> Result<()> {
        self.stdout.wait(bytes)
    }

    /// One line of its command language, such as `K`; waits until it says that it is doing it.
    pub fn command(&mut self, letter: &str, answer: &str) -> Result<()> {
        self.stderr.forget();
        self.send(format!("{letter}\n").as_bytes())?;
        self.stderr.wait(answer.as_bytes())
    }

    /// Sends bytes to the server. The first must be no letter of the command language.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its stdin is closed")?;
        stdin.write_all(bytes).context("writing to openssl")?;
        stdin.flush().context("writing to openssl")
    }

    /// Waits until the server has closed the connection, or the handshake has failed.
    pub fn finish(mut self) -> Result<TlsEnd> {
        // Its exit status says little, and not the same in all versions; its words do.
        self.process.wait(LIMIT)?;
        Ok(TlsEnd {
            stdout: self.stdout.finish(),
            stderr: String::from_utf8_lossy(&self.stderr.finish()).into_owned(),
        })
    }
}

/// What comes out of a pipe, collected.
#[derive(Debug)]
struct Printed {
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// Words are looked for from here on.
    mark: usize,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Printed {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::<Shared>::default();
        let ours = Arc::clone(&shared);
        let reader = std::thread::spawn(move || {
            let mut piece = vec![0; 64 * 1024];
            loop {
                let count = pipe.read(&mut piece).unwrap_or(0);
                let mut state = ours.lock();
                state.bytes.extend_from_slice(&piece[..count]);
                state.ended = count == 0;
                ours.grown.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        Self { shared, reader }
    }

    /// Words said so far no longer count for [`Self::wait`].
    fn forget(&self) {
        let mut state = self.shared.lock();
        state.mark = state.bytes.len();
    }

    fn wait(&self, words: &[u8]) -> Result<()> {
        /// The longest sleep between two looks at the interrupt flag.
        const SLICE: Duration = Duration::from_millis(100);
        let deadline = Instant::now() + LIMIT;
        let mut state = self.shared.lock();
        while !contains(&state.bytes[state.mark..], words) {
            interrupt::check()?;
            if state.ended || Instant::now() > deadline {
                bail!("openssl does not say {:?}", String::from_utf8_lossy(words));
            }
            let waited = self.shared.grown.wait_timeout(state, SLICE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shared.lock().bytes)
            .trim()
            .to_owned()
    }

    fn finish(self) -> Vec<u8> {
        let _ = self.reader.join();
        std::mem::take(&mut self.shared.lock().bytes)
    }
}

fn contains(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|window| window == words)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn words_are_found_once_they_are_said_and_not_after_they_are_forgotten() {
        let printed = Printed::of(Cursor::new(b"CONNECTED\nVerify return code: 0\n".to_vec()));
        printed.wait(b"return code").expect("said");
        printed.forget();
        assert!(printed.wait(b"return code").is_err(), "ended without");
        assert_eq!(printed.finish().len(), 32);
    }
}
