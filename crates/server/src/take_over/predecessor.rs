//! A successor's view of the process that it takes over from: what it said, and the sockets that it shared.
//!
//! It refuses to go on if anything differs that cannot change, before anything is opened. Bounds: those of
//! [`super`].

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, io};

use link::XdpShape;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::packets::ToPredecessor;
use super::{
    Control, GENERATIONS_MAX, Hello, Message, ReceiveError, SWITCH_TIME_MAX, VARIABLE, VERSION,
    make_room, pair, station,
};
use crate::failure::Failure;
use crate::settings::{LinkChoice, Settings};
use crate::start::shared_ports;

/// The process that has the link, and what it shares.
#[derive(Debug)]
pub(crate) struct Predecessor {
    control: Control,
    hello: Hello,
    queues: Vec<OwnedFd>,
    locks: Vec<(String, UnixDatagram)>,
    metrics: Option<TcpListener>,
}

fn refuse(problem: impl std::fmt::Display) -> Failure {
    Failure::refused(
        format!("taking over: {problem}"),
        "restart the server to change that",
    )
}

impl Predecessor {
    /// The one whose socket is our standard input, if this process is a successor.
    ///
    /// # Errors
    /// It speaks another version, or does not speak.
    pub(crate) fn from_environment() -> Result<Option<Self>, Failure> {
        if env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let socket = io::stdin().as_fd().try_clone_to_owned();
        let control = Control::new(socket.map_err(refuse)?);
        let (message, descriptors) = wait(&control, SWITCH_TIME_MAX).map_err(refuse)?;
        let Message::Hello(hello) = message else {
            return Err(refuse("the first message is no greeting"));
        };
        if hello.version != VERSION {
            let text = format!("the server that runs speaks version {}", hello.version);
            return Err(refuse(format!("{text}, and this one {VERSION}")));
        }
        if hello.generation > GENERATIONS_MAX {
            return Err(Failure::not_now(
                format!(
                    "taking over: {} processes still finish replies",
                    hello.generation
                ),
                "wait until some of them have ended, or end them",
            ));
        }
        let metrics = usize::from(hello.metrics.is_some());
        if descriptors.len() != hello.queues + hello.locks.len() + metrics || hello.workers == 0 {
            return Err(refuse("it shares other sockets than it says"));
        }
        let mut descriptors = VecDeque::from(descriptors);
        let queues = descriptors.drain(..hello.queues).collect();
        let names = hello.locks.iter().cloned();
        let sockets = descriptors.drain(..hello.locks.len());
        let locks = names.zip(sockets.map(UnixDatagram::from)).collect();
        Ok(Some(Self {
            control,
            queues,
            locks,
            metrics: descriptors.pop_front().map(TcpListener::from),
            hello: *hello,
        }))
    }

    /// How many processes finish what they have once this one has taken over.
    pub(crate) const fn generation(&self) -> u32 {
        self.hello.generation + 1
    }

    /// The link of the settings: what the predecessor chose, if that was to be chosen.
    ///
    /// # Errors
    /// Something differs that its connections need.
    pub(crate) fn check(&self, settings: &Settings) -> Result<LinkChoice, Failure> {
        let link = match &settings.link {
            LinkChoice::Auto(name) => {
                let chosen = [
                    LinkChoice::Packet(name.clone()),
                    LinkChoice::XdpPacket(name.clone()),
                    LinkChoice::Xdp(name.clone()),
                ];
                let chosen = chosen
                    .into_iter()
                    .find(|it| it.to_string() == self.hello.link);
                chosen.unwrap_or_else(|| settings.link.clone())
            }
            named => named.clone(),
        };
        if link.to_string() != self.hello.link {
            let was = &self.hello.link;
            return Err(refuse(format!(
                "--link {link}: the server that runs is at {was}"
            )));
        }
        // With the link that was chosen.
        let chosen = Settings {
            link: link.clone(),
            ..settings.clone()
        };
        let (ours, theirs) = (station(&chosen), &self.hello.station);
        let others = ours.iter().filter(|line| !theirs.contains(line));
        let gone = theirs.iter().filter(|line| !ours.contains(line));
        if let Some(line) = others.chain(gone).next() {
            return Err(refuse(format!(
                "another {line} than that of the server that runs"
            )));
        }
        let ports = shared_ports(settings);
        let mut left = self.hello.shared_ports.iter();
        if let Some(port) = left.find(|port| !ports.contains(port)) {
            return Err(refuse(format!(
                "port {port} of the host's addresses has clients of the server that runs"
            )));
        }
        let workers = settings.workers_count();
        if matches!(link, LinkChoice::Tap(_)) && workers != self.hello.queues {
            let (was, link) = (self.hello.queues, &link);
            return Err(refuse(format!(
                "--workers {workers}: {link} has {was} queues"
            )));
        }
        Ok(link)
    }

    /// The queues that it reads from.
    pub(crate) fn take_queues(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.queues)
    }

    /// Of what shape they are, if they are AF_XDP sockets.
    pub(crate) fn xdp_shapes(&self) -> Vec<XdpShape> {
        self.hello
            .xdp
            .iter()
            .map(|it| XdpShape::from(*it))
            .collect()
    }

    /// The lock of this name, if it has that.
    pub(crate) fn take_lock(&mut self, name: &str) -> Option<UnixDatagram> {
        let place = self.locks.iter().position(|(known, _)| known == name)?;
        Some(self.locks.swap_remove(place).1)
    }

    /// What it listens on for this address.
    pub(crate) fn take_metrics(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let is_same = self.hello.metrics == Some(address);
        if is_same { self.metrics.take() } else { None }
    }

    /// Tells why this process will not take over.
    pub(crate) fn tell_failure(&self, failure: &Failure) {
        let reasons = failure.reasons();
        let text: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        let mut text = text.join("; ");
        // Longer ones are on stderr.
        let mut most = 2_000.min(text.len());
        while !text.is_char_boundary(most) {
            most -= 1;
        }
        text.truncate(most);
        let _ = self.control.send(&Message::Failed(text), &[]);
    }

    /// Says that this process can receive at once, and waits until the other answers no SYN any more. What packets
    /// cross by: to each of its workers, and from it.
    ///
    /// # Errors
    /// The other process does not go on.
    pub(crate) fn switch(&self) -> Result<(ToPredecessor, OwnedFd), Failure> {
        let failed = |error: io::Error| Failure::Broken(format!("taking over: {error}"));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.hello.workers {
            let (writer, reader) = pair().map_err(failed)?;
            make_room(&writer);
            ours.push(writer);
            theirs.push(reader);
        }
        let (from, writer) = pair().map_err(failed)?;
        make_room(&writer);
        theirs.push(writer);
        let shared: Vec<BorrowedFd<'_>> = theirs.iter().map(|socket| socket.as_fd()).collect();
        self.control
            .send(&Message::Ready, &shared)
            .map_err(failed)?;
        let deadline = Instant::now() + SWITCH_TIME_MAX;
        match wait(
            &self.control,
            deadline.saturating_duration_since(Instant::now()),
        ) {
            Ok((Message::Given, _)) => Ok((Arc::new(ours), from)),
            Ok((message, _)) => Err(refuse(format!("{message:?} is not what comes now"))),
            Err(error) => Err(Failure::NotNow(format!("taking over: {error}"))),
        }
    }

    /// Tells it something; `false`: it has ended.
    pub(crate) fn tell(&self, message: &Message) -> bool {
        self.control.send(message, &[]).is_ok()
    }

    /// Tells it that this process has the link again, if it knows that.
    pub(crate) fn tell_return(&self) {
        if self.hello.knows_return {
            // Its end is told by the socket.
            let _ = self.tell(&Message::Taken);
        }
    }

    /// Readable when it has ended: it says nothing else.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Whether it has ended. What it says is not for us.
    pub(crate) fn has_ended(&self) -> bool {
        loop {
            match self.control.receive() {
                Ok(_) => {}
                Err(ReceiveError::Nothing) => return false,
                Err(_) => return true,
            }
        }
    }
}

fn wait(control: &Control, time: Duration) -> Result<(Message, Vec<OwnedFd>), ReceiveError> {
    let timeout = Timespec::try_from(time).ok();
    let mut polled = [PollFd::new(control, PollFlags::IN)];
    let io = |errno: rustix::io::Errno| ReceiveError::Io(errno.into());
    rustix::io::retry_on_intr(|| poll(&mut polled, timeout.as_ref())).map_err(io)?;
    control.receive()
}
