//! The calls that programs make. Each returns at once; a call that would block returns
//! [`Errno::AGAIN`], and whoever made it lets time pass and calls again.
//!
//! It refuses active opens. What an option of Linux has no meaning for here is ignored, and named in
//! [`Host::set_option`].

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::errno::Errno;
use super::stream::Stream;
use super::{CONNECTIONS_MAX, Host};

/// The first descriptor: beyond those that real calls of the same process return.
const DESCRIPTOR_FIRST: i32 = 500;

/// What a descriptor stands for.
#[derive(Debug)]
pub(super) struct Descriptor {
    kind: Kind,
    /// `O_NONBLOCK`.
    is_nonblocking: bool,
}

#[derive(Debug)]
enum Kind {
    /// Made, perhaps bound.
    Unconnected {
        port: Option<u16>,
        segment_bytes_max: u16,
    },
    /// Accepts connections.
    Listening {
        port: u16,
        segment_bytes_max: u16,
        /// Connections not accepted yet, oldest first.
        waiting: VecDeque<usize>,
    },
    /// A connection.
    Connected { stream: usize },
}

/// The second argument of `shutdown`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HowToShut {
    /// `SHUT_RD`.
    Read,
    /// `SHUT_WR`.
    Write,
    /// `SHUT_RDWR`.
    Both,
}

/// Options of a socket whose value is 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Option32 {
    /// `TCP_MAXSEG`: the largest segment announced and sent; of a connection, that in use.
    SegmentBytesMax,
    /// `SO_ERROR`.
    Error,
    /// The congestion window in whole segments, which Linux has in `TCP_INFO`.
    CongestionWindowSegments,
    /// An option that has no meaning here.
    Ignored,
}

/// What `poll` says of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// A read, or an accept, would not block.
    pub is_readable: bool,
    /// A write would not block.
    pub is_writable: bool,
    /// Both directions are over.
    pub is_hung_up: bool,
    /// An error is pending.
    pub has_error: bool,
}

impl Host {
    /// A new socket.
    pub fn socket(&mut self) -> i32 {
        self.insert(Kind::Unconnected {
            port: None,
            segment_bytes_max: u16::MAX,
        })
    }

    fn insert(&mut self, kind: Kind) -> i32 {
        let index = self.descriptors.len();
        self.descriptors.push(Some(Descriptor {
            kind,
            is_nonblocking: false,
        }));
        let index = i32::try_from(index).expect("invariant: a script makes few sockets");
        DESCRIPTOR_FIRST + index
    }

    fn descriptor(&mut self, number: i32) -> Result<&mut Descriptor, Errno> {
        let index = place(number)?;
        let descriptor = self.descriptors.get_mut(index);
        descriptor
            .and_then(Option::as_mut)
            .ok_or(Errno::BAD_DESCRIPTOR)
    }

    fn stream_index(&mut self, number: i32) -> Result<usize, Errno> {
        match &self.descriptor(number)?.kind {
            Kind::Connected { stream } => Ok(*stream),
            _ => Err(Errno::NOT_CONNECTED),
        }
    }

    fn stream(&mut self, number: i32) -> Result<&mut Stream, Errno> {
        let index = self.stream_index(number)?;
        self.streams[index].as_mut().ok_or(Errno::NOT_CONNECTED)
    }

    /// Binds a socket to a port of every address.
    ///
    /// # Errors
    /// The socket is bound, listens or is connected.
    pub fn bind(&mut self, number: i32, wanted: u16) -> Result<(), Errno> {
        match &mut self.descriptor(number)?.kind {
            Kind::Unconnected { port, .. } if port.is_none() => {
                *port = Some(wanted);
                Ok(())
            }
            _ => Err(Errno::INVALID),
        }
    }

    /// Accepts connections from now on.
    ///
    /// # Errors
    /// The socket is not bound, or connected.
    pub fn listen(&mut self, number: i32) -> Result<(), Errno> {
        let descriptor = self.descriptor(number)?;
        match &descriptor.kind {
            Kind::Unconnected {
                port: Some(port),
                segment_bytes_max,
            } => {
                descriptor.kind = Kind::Listening {
                    port: *port,
                    segment_bytes_max: *segment_bytes_max,
                    waiting: VecDeque::new(),
                };
                Ok(())
            }
            Kind::Listening { .. } => Ok(()),
            _ => Err(Errno::INVALID),
        }
    }

    /// Takes the oldest connection that waits: its descriptor and its peer.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if none waits; another if the socket does not listen.
    pub fn accept(&mut self, number: i32) -> Result<(i32, SocketAddr), Errno> {
        let Kind::Listening { waiting, .. } = &mut self.descriptor(number)?.kind else {
            return Err(Errno::INVALID);
        };
        let stream = waiting.pop_front().ok_or(Errno::AGAIN)?;
        let peer = self.streams[stream]
            .as_ref()
            .map(Stream::peer)
            .ok_or(Errno::NOT_CONNECTED)?;
        Ok((self.insert(Kind::Connected { stream }), peer))
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The connection is over, or this direction of it.
    pub fn write(&mut self, number: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let (now, index) = (self.now, self.stream_index(number)?);
        let written = self.stream(number)?.write(now, bytes)?;
        self.transmit(index);
        Ok(written)
    }

    /// Reads at most `bytes_max`; no byte: the peer has finished.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if nothing has arrived; another if the connection is over.
    pub fn read(&mut self, number: i32, bytes_max: usize) -> Result<Vec<u8>, Errno> {
        let index = self.stream_index(number)?;
        let bytes = self.stream(number)?.read(bytes_max)?;
        self.transmit(index);
        Ok(bytes)
    }

    /// Bytes that a read would return (`SIOCINQ`).
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn readable_bytes(&mut self, number: i32) -> Result<usize, Errno> {
        Ok(self.stream(number)?.received.len())
    }

    /// Ends one direction, or both.
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn shutdown(&mut self, number: i32, how: HowToShut) -> Result<(), Errno> {
        let index = self.stream_index(number)?;
        let stream = self.stream(number)?;
        stream.is_read_shut |= how != HowToShut::Write;
        if how != HowToShut::Read {
            stream.finish();
        }
        self.transmit(index);
        Ok(())
    }

    /// Closes a descriptor. A connection ends with a FIN, or with a reset if bytes were received
    /// that nobody read (RFC 2525 s2.17). Connections that were not accepted are reset.
    ///
    /// # Errors
    /// There is no such descriptor.
    pub fn close(&mut self, number: i32) -> Result<(), Errno> {
        self.descriptor(number)?;
        let descriptor = self.descriptors[place(number)?].take();
        match descriptor.map(|descriptor| descriptor.kind) {
            Some(Kind::Connected { stream }) => self.close_stream(stream),
            Some(Kind::Listening { waiting, .. }) => {
                for stream in waiting {
                    if let Some(stream) = &mut self.streams[stream] {
                        stream.is_orphan = true;
                    }
                    self.abort(stream);
                }
            }
            Some(Kind::Unconnected { .. }) | None => {}
        }
        Ok(())
    }

    fn close_stream(&mut self, index: usize) {
        let Some(stream) = &mut self.streams[index] else {
            return;
        };
        stream.is_orphan = true;
        if stream.received.is_empty() {
            stream.finish();
            self.transmit(index);
        } else {
            self.abort(index);
        }
        self.forget_if_over(index);
    }

    /// Sets or clears `O_NONBLOCK`.
    ///
    /// # Errors
    /// There is no such descriptor.
    pub fn set_nonblocking(&mut self, number: i32, is_nonblocking: bool) -> Result<(), Errno> {
        self.descriptor(number)?.is_nonblocking = is_nonblocking;
        Ok(())
    }

    /// Whether calls with this descriptor block; of an unknown one they do not.
    pub fn is_blocking(&mut self, number: i32) -> bool {
        self.descriptor(number)
            .is_ok_and(|descriptor| !descriptor.is_nonblocking)
    }

    /// Sets an option. `SO_REUSEADDR`, buffer sizes and `TCP_NODELAY` are ignored: ports are free,
    /// buffers have no limit, and Nagle's algorithm is not used.
    ///
    /// # Errors
    /// The option cannot be set, or not of this socket.
    pub fn set_option(&mut self, number: i32, option: Option32, value: i32) -> Result<(), Errno> {
        match (option, &mut self.descriptor(number)?.kind) {
            (Option32::Ignored, _) => Ok(()),
            (
                Option32::SegmentBytesMax,
                Kind::Unconnected {
                    segment_bytes_max, ..
                }
                | Kind::Listening {
                    segment_bytes_max, ..
                },
            ) => {
                *segment_bytes_max = u16::try_from(value).map_err(|_| Errno::INVALID)?;
                Ok(())
            }
            _ => Err(Errno::NO_OPTION),
        }
    }

    /// An option's value.
    ///
    /// # Errors
    /// The socket has no such option.
    pub fn option(&mut self, number: i32, option: Option32) -> Result<i32, Errno> {
        let segment_bytes = match &self.descriptor(number)?.kind {
            Kind::Unconnected {
                segment_bytes_max, ..
            }
            | Kind::Listening {
                segment_bytes_max, ..
            } => Some(*segment_bytes_max),
            Kind::Connected { .. } => None,
        };
        match (option, segment_bytes) {
            (Option32::SegmentBytesMax, Some(most)) => Ok(i32::from(most)),
            (Option32::SegmentBytesMax, None) => {
                let tcp = self.stream(number)?.tcp.as_ref();
                tcp.map(|tcp| i32::from(tcp.segment_bytes()))
                    .ok_or(Errno::NOT_CONNECTED)
            }
            (Option32::CongestionWindowSegments, None) => {
                let tcp = self.stream(number)?.tcp.as_ref();
                let tcp = tcp.ok_or(Errno::NOT_CONNECTED)?;
                let segments = tcp.congestion_window() / u64::from(tcp.segment_bytes());
                Ok(i32::try_from(segments).unwrap_or(i32::MAX))
            }
            (Option32::Error, None) => {
                let error = self.stream(number)?.error.take();
                Ok(error.map_or(0, |errno| errno.0))
            }
            (Option32::Error, Some(_)) => Ok(0),
            _ => Err(Errno::NO_OPTION),
        }
    }

    /// What `poll` says of a descriptor.
    ///
    /// # Errors
    /// There is no such descriptor.
    pub fn readiness(&mut self, number: i32) -> Result<Readiness, Errno> {
        let stream = match &self.descriptor(number)?.kind {
            Kind::Connected { stream } => *stream,
            Kind::Listening { waiting, .. } => {
                return Ok(Readiness {
                    is_readable: !waiting.is_empty(),
                    ..Readiness::default()
                });
            }
            Kind::Unconnected { .. } => {
                return Ok(Readiness {
                    is_writable: true,
                    is_hung_up: true,
                    ..Readiness::default()
                });
            }
        };
        Ok(self.streams[stream]
            .as_ref()
            .map_or_else(Readiness::default, Stream::readiness))
    }

    /// The least `TCP_MAXSEG` of a port that is listened on; `None`: nobody listens.
    pub(super) fn listening_segment_bytes(&self, wanted: u16) -> Option<u16> {
        self.descriptors
            .iter()
            .flatten()
            .find_map(|it| match &it.kind {
                Kind::Listening {
                    port,
                    segment_bytes_max,
                    ..
                } if *port == wanted => Some(*segment_bytes_max),
                _ => None,
            })
    }

    /// A connection is there to be accepted; `false`: nobody listens any more.
    pub(super) fn offer_to_program(&mut self, wanted: u16, stream: usize) -> bool {
        let listening = self
            .descriptors
            .iter_mut()
            .flatten()
            .find_map(|it| match &mut it.kind {
                Kind::Listening { port, waiting, .. } if *port == wanted => Some(waiting),
                _ => None,
            });
        let Some(waiting) = listening else {
            return false;
        };
        assert!(
            waiting.len() < CONNECTIONS_MAX,
            "a script opens few connections"
        );
        waiting.push_back(stream);
        true
    }
}

fn place(number: i32) -> Result<usize, Errno> {
    let index = number.checked_sub(DESCRIPTOR_FIRST);
    let index = index.and_then(|index| usize::try_from(index).ok());
    index.ok_or(Errno::BAD_DESCRIPTOR)
}
