//! The server of Linux's TCP: answers every request with an endless object of zeros.
//!
//! A server of ours and not nginx, because it chooses its connections' congestion control itself, as
//! root may whatever the host allows; beyond that the kernel does everything. It reads no request
//! further than its end. Bounded by: the connections its clients make, a thread each; it ends when it is
//! dropped.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use testbed::namespace::Namespace;

/// The reply's head; its body ends with the connection.
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";

/// Bytes written at once.
const PIECE_BYTES: usize = 1 << 17;

/// How often a blocked write looks whether it is to end.
const SLICE: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug)]
pub(crate) struct LinuxSender {
    is_over: Arc<AtomicBool>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    /// Ends `accept` when dropped.
    accept_end: Option<AcceptEnd>,
}

/// A descriptor of the listening socket, shut down when dropped: `accept` then fails.
#[derive(Debug)]
struct AcceptEnd(TcpListener);

impl Drop for AcceptEnd {
    fn drop(&mut self) {
        // On a socket that listens it ends the waiting `accept`; that it fails changes nothing.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

impl LinuxSender {
    /// Listens in `namespace` with this congestion control.
    pub(crate) fn start(namespace: &Namespace, address: SocketAddr, control: &str) -> Result<Self> {
        let listener = namespace.enter(|| {
            TcpListener::bind(address).with_context(|| format!("listening at {address}"))
        })?;
        set_tcp_congestion(&listener, control)
            .with_context(|| format!("choosing the congestion control {control}"))?;
        let chosen = tcp_congestion(&listener)?;
        ensure!(
            chosen == control,
            "the kernel chose {chosen}, not {control}"
        );
        let accept_end = AcceptEnd(listener.try_clone()?);
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut threads = Vec::new();
            for stream in listener.incoming() {
                let (Ok(stream), false) = (stream, flag.load(Ordering::Relaxed)) else {
                    break;
                };
                let flag = Arc::clone(&flag);
                threads.push(std::thread::spawn(move || serve(stream, &flag)));
            }
            for thread in threads {
                // A client that went away is no failure of the run.
                let _ = thread.join();
            }
        });
        Ok(Self {
            is_over,
            address,
            thread: Some(thread),
            accept_end: Some(accept_end),
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for LinuxSender {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.accept_end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers one request, until the client has gone or it is over.
fn serve(mut stream: TcpStream, is_over: &AtomicBool) -> std::io::Result<()> {
    stream.set_write_timeout(Some(SLICE))?;
    stream.set_read_timeout(Some(SLICE))?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && !is_over.load(Ordering::Relaxed) {
        let mut byte = [0; 1];
        match stream.read(&mut byte) {
            Ok(0) => return Ok(()),
            Ok(_) => request.extend_from_slice(&byte),
            Err(error) if is_no_end(&error) => {}
            Err(error) => return Err(error),
        }
    }
    stream.write_all(HEAD)?;
    let piece = vec![0; PIECE_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        match stream.write(&piece) {
            Ok(_) => {}
            Err(error) if is_no_end(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_no_end(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
