//! A client whose receive buffer holds about one segment: its window is a part of a segment for the whole
//! download, and the file comes at a rate like that from the kernel's TCP, whose figures are printed beside.
//!
//! Reads that end where blocks of the disk do must not leave it windows of a few bytes (RFC 9293 s3.8.6.2).
//! Bounded by [`TIME_MAX`] for each download.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::{AddressFamily, SocketType, connect, shutdown, socket, sockopt};

use super::files::{self, Library};
use super::nat;
use super::setup::{Family, LinkKind, Setup};
use testbed::namespace::Namespace;
use testbed::suite::{Outcome, Suite};

/// Receive buffers that are asked for, bytes; the kernel doubles them, and takes no less than some 2,300.
const BUFFERS_BYTES: [usize; 3] = [1, 2_048, 4_096];
/// What is fetched, bytes.
const FILE_BYTES: u64 = 300_000;
/// At a window's few bytes each 5 s, or one each round trip's timer, the file takes minutes.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Each buffer, from both.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, library: &Library) {
    suite.run("packet file into a small receive buffer", || {
        fetch_into_each(atlas, library)
    });
}

fn fetch_into_each(atlas: &Path, library: &Library) -> Result<Outcome> {
    let setup = Setup::usual(LinkKind::Packet, atlas, 1)?;
    let server = setup.start(library.root(), None, None)?;
    let (listener, reference) = nat::listen(setup.server())?;
    let bytes = usize::try_from(FILE_BYTES)?;
    let outcome = thread::scope(|scope| {
        scope.spawn(|| nat::answer_all(&listener, bytes));
        let outcome = BUFFERS_BYTES.into_iter().try_for_each(|buffer_bytes| {
            let of_linux = fetch(setup.client(), reference, buffer_bytes)?;
            let of_atlas = fetch(setup.client(), setup.address(Family::V4)?, buffer_bytes)?;
            println!(
                "buffer {buffer_bytes}: {FILE_BYTES} bytes from Atlas in {} ms, from Linux in {} ms",
                of_atlas.as_millis(),
                of_linux.as_millis()
            );
            anyhow::Ok(())
        });
        shutdown(&listener, rustix::net::Shutdown::Both)?;
        outcome
    });
    outcome?;
    server.stop()?;
    Ok(Outcome::Passed)
}

fn fetch(client: &Namespace, address: SocketAddr, buffer_bytes: usize) -> Result<Duration> {
    client.enter(|| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        // Before the handshake, which tells the window.
        sockopt::set_socket_recv_buffer_size(&socket, buffer_bytes)?;
        let start = Instant::now();
        connect(&socket, &address).context("connecting")?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TIME_MAX))?;
        let path = files::name(FILE_BYTES);
        stream.write_all(
            format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let (mut bytes, mut piece) = (0, [0; 4_096]);
        loop {
            let count = stream.read(&mut piece)?;
            if count == 0 {
                break;
            }
            bytes += count as u64;
            if start.elapsed() > TIME_MAX {
                bail!("{bytes} bytes in {} s", TIME_MAX.as_secs());
            }
        }
        ensure!(bytes > FILE_BYTES, "{bytes} bytes came");
        Ok(start.elapsed())
    })
}
