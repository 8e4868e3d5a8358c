//! A plain blocking HTTP/1.1 client that can send anything and says exactly what came back.
//!
//! Independent of the server's own code, so a shared misunderstanding cannot hide. It knows
//! `Content-Length` and end of stream; it refuses chunked replies, which no server here sends. Over TLS it is
//! that of rustls. Bounded by: heads of 64 KiB, a deadline on every socket call.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::content::Content;
use crate::namespace::Namespace;

/// The largest reply head accepted, bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Longest wait for a handshake: a few of its retransmissions.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Longest silence from a server before a read fails. Above a few retransmission timeouts.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// One connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    /// Read from the socket, not yet consumed.
    ahead: Vec<u8>,
}

/// What a connection is made of.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Shakes hands over a connection to `server`, which has a certificate for its address.
    pub fn tls(stream: TcpStream, server: SocketAddr, Trust(config): &Trust) -> Result<Self> {
        let name = ServerName::from(server.ip());
        let connection = ClientConnection::new(Arc::clone(config), name)?;
        let mut stream = StreamOwned::new(connection, stream);
        let handshake = stream.conn.complete_io(&mut stream.sock);
        handshake.context("the TLS handshake")?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// The TCP connection.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Whom clients over TLS trust. No session is resumed.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// A certificate as it is sent.
    pub fn der(pem: &str) -> Result<Vec<u8>> {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes());
        Ok(certificate.context("reading a certificate")?.to_vec())
    }

    /// An authority's certificate, PEM.
    pub fn new(pem: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(Self::der(pem)?.into())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }
}

/// A reply's status and header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The code of the status line.
    pub status: u16,
    /// Names in lower case, in order.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    }

    /// Bytes of the body that follows, `None`: until the end of the stream.
    fn body_bytes(&self, method: &str) -> Result<Option<u64>> {
        if method == "HEAD" || self.status == 304 || self.status / 100 == 1 || self.status == 204 {
            return Ok(Some(0));
        }
        ensure!(self.field("transfer-encoding").is_none(), "a chunked reply");
        self.field("content-length")
            .map(|value| {
                value
                    .parse()
                    .with_context(|| format!("Content-Length: {value}"))
            })
            .transpose()
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|digits| digits.parse().ok())
            .with_context(|| format!("not a status line: {first:?}"))?;
        let fields = lines
            .filter(|line| !line.is_empty())
            .map(|line| {
                let (name, value) = line
                    .split_once(':')
                    .with_context(|| format!("not a field: {line:?}"))?;
                Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
            })
            .collect::<Result<_>>()?;
        Ok(Self { status, fields })
    }
}

impl Client {
    /// Connects from inside `namespace`.
    pub fn connect(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        let stream = namespace.enter(|| {
            TcpStream::connect_timeout(&address, CONNECT_LIMIT)
                .with_context(|| format!("connecting to {address}"))
        })?;
        Self::over(stream)
    }

    /// Connects from where this process is.
    pub fn connect_from_here(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)
            .with_context(|| format!("connecting to {address}"))?;
        Self::over(stream)
    }

    /// Connects from where this process is; neither the handshake nor a silence may last longer than `limit`.
    pub fn connect_within(address: SocketAddr, limit: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)
            .with_context(|| format!("connecting to {address}"))?;
        let client = Self::over(stream)?;
        let socket = client.stream.socket();
        socket.set_read_timeout(Some(limit))?;
        socket.set_write_timeout(Some(limit))?;
        Ok(client)
    }

    /// Connects from inside `namespace` with a receive buffer of so many bytes, which the kernel doubles for its own
    /// needs; over TLS, if it is said whom to trust.
    pub fn connect_with(
        namespace: &Namespace,
        address: SocketAddr,
        receive_buffer_bytes: usize,
        trust: Option<&Trust>,
    ) -> Result<Self> {
        let stream = namespace.enter(|| {
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::INET,
                SocketAddr::V6(_) => AddressFamily::INET6,
            };
            let socket = socket(family, SocketType::STREAM, None)?;
            sockopt::set_socket_recv_buffer_size(&socket, receive_buffer_bytes)?;
            let stream = TcpStream::from(socket);
            // Bounds the handshake as well.
            stream.set_write_timeout(Some(CONNECT_LIMIT))?;
            connect(&stream, &address).with_context(|| format!("connecting to {address}"))?;
            Ok(stream)
        })?;
        let mut client = Self::over(stream)?;
        if let Some(trust) = trust {
            let socket = client.stream.socket().try_clone()?;
            client.stream = Stream::tls(socket, address, trust)?;
        }
        Ok(client)
    }

    /// The server's certificate as it was sent, DER; `None` without TLS.
    pub fn certificate(&self) -> Option<&[u8]> {
        match &self.stream {
            Stream::Plain(_) => None,
            Stream::Tls(stream) => Some(stream.conn.peer_certificates()?.first()?),
        }
    }

    fn over(stream: TcpStream) -> Result<Self> {
        stream.set_read_timeout(Some(SILENCE_LIMIT))?;
        stream.set_write_timeout(Some(SILENCE_LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: Stream::Plain(stream),
            ahead: Vec::new(),
        })
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("sending")
    }

    /// Sends a request for `path` with further header lines, each ending in CR LF.
    pub fn ask(&mut self, method: &str, path: &str, lines: &str) -> Result<()> {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: atlas\r\n{lines}\r\n").as_bytes())
    }

    /// Reads a reply's head.
    pub fn read_head(&mut self) -> Result<Head> {
        loop {
            if let Some(end) = self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.ahead.split_off(end + 4);
                let head = std::mem::replace(&mut self.ahead, rest);
                return Head::parse(std::str::from_utf8(&head).context("a head is ASCII")?);
            }
            ensure!(self.ahead.len() < HEAD_BYTES_MAX, "a head above 64 KiB");
            let mut piece = [0; 4096];
            let count = self.stream.read(&mut piece).context("reading a head")?;
            ensure!(
                count > 0,
                "the server closed before a reply ({} B)",
                self.ahead.len()
            );
            self.ahead.extend_from_slice(&piece[..count]);
        }
    }

    /// One request and its whole reply.
    pub fn exchange(&mut self, method: &str, path: &str, lines: &str) -> Result<(Head, Vec<u8>)> {
        self.ask(method, path, lines)?;
        let head = self.read_head()?;
        let body = self.read_body(&head, method)?;
        Ok((head, body))
    }

    /// Reads the body of a small reply.
    pub fn read_body(&mut self, head: &Head, method: &str) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        match head.body_bytes(method)? {
            Some(bytes) => {
                self.read_pieces(bytes, |piece| {
                    body.extend_from_slice(piece);
                    Ok(())
                })?;
            }
            None => {
                body.append(&mut self.ahead);
                self.stream
                    .read_to_end(&mut body)
                    .context("reading until the end")?;
            }
        }
        Ok(body)
    }

    /// Reads `count` bytes of a body that stand at `offset` of `content`, comparing each.
    pub fn read_checked(&mut self, content: Content, offset: u64, count: u64) -> Result<()> {
        let mut at = offset;
        self.read_pieces(count, |piece| {
            content.check(at, piece)?;
            at += piece.len() as u64;
            Ok(())
        })
    }

    /// Reads whatever comes until the server closes or resets the connection.
    pub fn read_to_end(&mut self) -> Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.ahead);
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(bytes),
            Err(error) => Err(error).context("waiting for the end"),
        }
    }

    /// Reads `count` bytes of a body, and hands on each piece as it comes.
    pub fn read_pieces(
        &mut self,
        count: u64,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut left = count;
        let mut piece = vec![0; 64 * 1024];
        while left > 0 {
            if self.ahead.is_empty() {
                let want = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
                let bytes = self
                    .stream
                    .read(&mut piece[..want])
                    .context("reading a body")?;
                if bytes == 0 {
                    bail!("the server closed with {left} of {count} bytes missing");
                }
                take(&piece[..bytes])?;
                left -= bytes as u64;
            } else {
                let bytes = usize::try_from(left)
                    .map_or(self.ahead.len(), |left| left.min(self.ahead.len()));
                let rest = self.ahead.split_off(bytes);
                take(&std::mem::replace(&mut self.ahead, rest))?;
                left -= bytes as u64;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_parsed_and_bodies_measured() {
        let head = Head::parse("HTTP/1.1 206 Partial Content\r\nContent-Length: 12\r\nA:b\r\n\r\n")
            .expect("a head");
        assert_eq!((head.status, head.field("a")), (206, Some("b")));
        assert_eq!(head.body_bytes("GET").expect("a length"), Some(12));
        assert_eq!(head.body_bytes("HEAD").expect("a length"), Some(0));
        assert!(Head::parse("HTTP/1.0 200 OK\r\n\r\n").is_err());
        assert!(Head::parse("HTTP/1.1 200 OK\r\nno colon\r\n\r\n").is_err());
    }
}
