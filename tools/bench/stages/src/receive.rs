//! Receiving alone: what a client's core has to do for each byte a kernel TCP connection brings.
//!
//! Connections of `send` are swept over as `atlas-bench load` sweeps over its own, with the same
//! pause, and all that came is thrown away in the kernel (`MSG_TRUNC`). Included: the system calls, freeing
//! the segments, the window updates. Left out: heads, records and their counting, which are
//! `atlas-bench load`'s; and the softirq work of the kernel's TCP where the bench steers it elsewhere.

use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::args::ReceiveArgs;
use crate::timing::Step;

/// From one sweep to the next, the default of `atlas-bench load`.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);

/// The most a single read may take: more than a socket ever holds.
const DISCARD_BYTES: usize = 16 << 20;

pub(crate) struct Receiver {
    connections: Vec<TcpStream>,
    /// Never written: the kernel throws the bytes away. Never touched, so it takes no memory.
    discard: Vec<u8>,
    sweep_at: Instant,
}

impl Receiver {
    pub(crate) fn new(args: &ReceiveArgs) -> Result<Self> {
        let connect = |_| {
            let stream = TcpStream::connect(args.address).with_context(|| {
                let address = args.address;
                format!("connecting to {address}: does `atlas-bench stages send` listen there?")
            })?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        Ok(Self {
            connections: (0..args.connections).map(connect).collect::<Result<_>>()?,
            discard: vec![0; DISCARD_BYTES],
            sweep_at: Instant::now(),
        })
    }
}

impl Step for Receiver {
    fn step(&mut self) -> Result<u64> {
        sleep(self.sweep_at.saturating_duration_since(Instant::now()));
        self.sweep_at = Instant::now() + SWEEP_PAUSE;
        let mut bytes = 0;
        for stream in &self.connections {
            match recv(stream, self.discard.as_mut_slice(), RecvFlags::TRUNC) {
                Ok((_, 0)) => bail!("the sender has ended"),
                Ok((_, received)) => bytes += received as u64,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error).context("receiving"),
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_is_sent_is_counted_and_an_end_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let args = ReceiveArgs {
            address: listener.local_addr().unwrap(),
            connections: 2,
        };
        let mut receiver = Receiver::new(&args).unwrap();
        let (mut first, _) = listener.accept().unwrap();
        let (_second, _) = listener.accept().unwrap();
        first.write_all(&[1; 1000]).unwrap();
        let mut bytes = 0;
        while bytes < 1000 {
            bytes += receiver.step().unwrap();
        }
        assert_eq!(bytes, 1000);
        drop(first);
        let ended = loop {
            if let Err(error) = receiver.step() {
                break error;
            }
        };
        assert!(ended.to_string().contains("ended"), "{ended}");
    }
}
