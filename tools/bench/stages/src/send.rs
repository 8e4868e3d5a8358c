//! The other end of `receive`: plain kernel TCP, one hot buffer written for ever to whoever
//! connects. What it costs is not reported; it is to be fast enough and nothing else.
//!
//! Bounded by: descriptors. It never ends by itself; connections that end are forgotten.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{Write as _, stdout};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Error, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::args::SendArgs;

/// Bytes of one send: large, and hot in the processor's cache.
const SEND_BYTES: usize = 256 << 10;

/// Events taken at a time.
const EVENTS: usize = 64;

/// The listener's name among the events: no descriptor has it.
const LISTENER: u64 = u64::MAX;

/// Says `ready ADDRESS` on standard output and serves; only an error ends it.
pub(crate) fn serve(args: &SendArgs) -> Error {
    let Err(error) = Sender::new(args).and_then(|mut sender| {
        let address = sender.listener.local_addr()?;
        writeln!(stdout(), "ready {address}").context("saying where it listens")?;
        sender.run()
    });
    error
}

struct Sender {
    epoll: std::os::fd::OwnedFd,
    listener: TcpListener,
    connections: HashMap<u64, TcpStream>,
    buffer: Vec<u8>,
}

impl Sender {
    fn new(args: &SendArgs) -> Result<Self> {
        let listener = TcpListener::bind(args.address)
            .with_context(|| format!("listening at {}", args.address))?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("epoll")?;
        epoll::add(
            &epoll,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN,
        )?;
        Ok(Self {
            epoll,
            listener,
            connections: HashMap::new(),
            buffer: vec![0; SEND_BYTES],
        })
    }

    fn run(&mut self) -> Result<Infallible> {
        let mut room = [MaybeUninit::uninit(); EVENTS];
        loop {
            let (events, _) = match epoll::wait(&self.epoll, &mut room, None) {
                Ok(events) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("epoll"),
            };
            for event in events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    name => self.send(name),
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        // Told again of those that are still waiting.
        let Ok((stream, _)) = self.listener.accept() else {
            return Ok(());
        };
        stream.set_nonblocking(true)?;
        let name = u64::try_from(stream.as_raw_fd())?;
        epoll::add(
            &self.epoll,
            &stream,
            EventData::new_u64(name),
            EventFlags::OUT,
        )?;
        self.connections.insert(name, stream);
        Ok(())
    }

    fn send(&mut self, name: u64) {
        let Some(stream) = self.connections.get(&name) else {
            return;
        };
        match send(stream, &self.buffer, SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => drop(self.connections.remove(&name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn whoever_connects_is_written_to_and_may_leave() {
        let address = "127.0.0.1:0".parse().unwrap();
        let mut sender = Sender::new(&SendArgs { address }).unwrap();
        let address = sender.listener.local_addr().unwrap();
        // Ends with the process.
        std::thread::spawn(move || sender.run());
        for _ in 0..2 {
            let mut bytes = vec![1; 2 * SEND_BYTES];
            let mut stream = TcpStream::connect(address).unwrap();
            stream.read_exact(&mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
