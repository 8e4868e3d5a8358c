//! A client's side of TLS: rustls over whatever the connection carries.
//!
//! It offers one version and one suite, which the scenario chooses. It refuses to decide whether an
//! alert or an invalid record is a violation: the caller does. Bounded by what rustls buffers,
//! which the caller takes out after each piece.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Error, HandshakeKind, SupportedCipherSuite,
};

use super::Violation;
use super::plan::SecurePlan;
use crate::credentials::{FixedTime, SERVER_NAME, client_provider, roots};

/// Most sessions a client keeps for resumption.
const SESSIONS: usize = 8;
/// The suites of TLS 1.2, and of TLS 1.3, that clients offer.
pub(crate) static TLS12_SUITES: [&SupportedCipherSuite; 3] = [
    &cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    &cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    &cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];
pub(crate) static TLS13_SUITES: [&SupportedCipherSuite; 3] = [
    &cipher_suite::TLS13_AES_128_GCM_SHA256,
    &cipher_suite::TLS13_AES_256_GCM_SHA384,
    &cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];
/// Plaintext is taken out of rustls in pieces of this.
const PIECE_BYTES: usize = 16_384;

/// TLS on one connection.
#[derive(Debug)]
pub(crate) struct Secure {
    tls: ClientConnection,
    has_received_close_notify: bool,
}

/// Why nothing more can be received.
#[derive(Debug)]
pub(crate) enum ReceiveError {
    /// A check of the plaintext failed.
    Violation(Violation),
    /// The server's fatal alert.
    Alert(AlertDescription),
    /// Bytes that are not valid TLS.
    InvalidTls(Error),
}

/// The configuration of all connections of a client, with its sessions. `seed`: of all that is
/// random in its handshakes, but for the keys.
pub(crate) fn client_config(plan: &SecurePlan, seed: u64) -> Arc<ClientConfig> {
    let provider = client_provider(*plan.suite, plan.is_sent_back, seed);
    let mut config = ClientConfig::builder_with_details(Arc::new(provider), Arc::new(FixedTime))
        .with_protocol_versions(&[plan.suite.version()])
        .expect("invariant: a suite of that version")
        .with_root_certificates(roots())
        .with_no_client_auth();
    config.resumption = if plan.resumes {
        Resumption::in_memory_sessions(SESSIONS)
    } else {
        Resumption::disabled()
    };
    config.max_fragment_size = plan.record_bytes_max;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

impl Secure {
    /// A new connection; its ClientHello waits in [`Secure::take_output`].
    pub(crate) fn new(config: &Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from(SERVER_NAME).expect("invariant: a name");
        let tls = ClientConnection::new(Arc::clone(config), name);
        Self {
            tls: tls.expect("invariant: a valid configuration"),
            has_received_close_notify: false,
        }
    }

    /// Takes received bytes and passes the plaintext on.
    pub(crate) fn handle_bytes(
        &mut self,
        mut bytes: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Violation>,
    ) -> Result<(), ReceiveError> {
        let mut piece = [0; PIECE_BYTES];
        while !bytes.is_empty() {
            if self.has_received_close_notify {
                // RFC 8446 s6.1: the sender will not send any more messages.
                let more = format!("{} bytes behind close_notify", bytes.len());
                return Err(ReceiveError::Violation(more));
            }
            let taken = self.tls.read_tls(&mut bytes);
            let taken = taken.expect("invariant: plaintext is taken out each time");
            assert!(taken > 0, "rustls takes bytes until the close_notify");
            // With debug assertions, rustls panics if a record behind our own close_notify cannot
            // be decrypted: that fails the run, too.
            let state = self.tls.process_new_packets();
            // Records before a bad one were good.
            while let Ok(count @ 1..) = self.tls.reader().read(&mut piece) {
                sink(&piece[..count]).map_err(ReceiveError::Violation)?;
            }
            match state {
                Ok(state) => self.has_received_close_notify = state.peer_has_closed(),
                Err(Error::AlertReceived(alert)) => return Err(ReceiveError::Alert(alert)),
                Err(error) => return Err(ReceiveError::InvalidTls(error)),
            }
        }
        Ok(())
    }

    /// Encrypts `text`.
    pub(crate) fn write(&mut self, text: &[u8]) {
        self.tls
            .writer()
            .write_all(text)
            .expect("invariant: output is taken out each time");
    }

    /// Sends a KeyUpdate that requests one of the server (RFC 8446 s4.6.3).
    pub(super) fn refresh(&mut self) {
        self.tls
            .refresh_traffic_keys()
            .expect("invariant: TLS 1.3, and its handshake is over");
    }

    /// Sends a `close_notify`.
    pub(super) fn send_close_notify(&mut self) {
        self.tls.send_close_notify();
    }

    /// Appends what is to be sent.
    pub(crate) fn take_output(&mut self, output: &mut Vec<u8>) {
        while self.tls.wants_write() {
            self.tls
                .write_tls(output)
                .expect("invariant: a vector takes everything");
        }
    }

    /// Whether requests can be sent.
    pub(crate) fn is_ready(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// Whether the server sent a `close_notify`.
    pub(super) const fn has_received_close_notify(&self) -> bool {
        self.has_received_close_notify
    }

    /// Full, resumed, or with a HelloRetryRequest, when it is known.
    pub(super) fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.tls.handshake_kind()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A public key of X25519 (RFC 7748 s5).
    const KEY_SHARE_BYTES: usize = 32;

    fn hello(suites: &[&'static SupportedCipherSuite; 3], seed: u64) -> Vec<u8> {
        let plan = SecurePlan {
            suite: suites[0],
            resumes: false,
            is_sent_back: false,
            record_bytes_max: None,
        };
        let mut bytes = Vec::new();
        Secure::new(&client_config(&plan, seed)).take_output(&mut bytes);
        bytes
    }

    #[test]
    fn of_a_client_hello_the_key_share_alone_is_not_seeded() {
        for seed in 0..100 {
            assert_eq!(hello(&TLS12_SUITES, seed), hello(&TLS12_SUITES, seed));
            let (first, second) = (hello(&TLS13_SUITES, seed), hello(&TLS13_SUITES, seed));
            assert_eq!(first.len(), second.len());
            let differs = |(one, other): (&u8, &u8)| one != other;
            let from = first.iter().zip(&second).position(differs);
            let to = first.iter().zip(&second).rposition(differs);
            let (from, to) = from.zip(to).expect("two keys");
            assert!(to - from < KEY_SHARE_BYTES, "seed {seed}: {from}..={to}");
        }
    }

    #[test]
    fn extensions_come_in_many_orders() {
        let mut hellos: Vec<_> = (0..20).map(|seed| hello(&TLS12_SUITES, seed)).collect();
        // Behind version, random, session id, suites and compression.
        for hello in &mut hellos {
            hello.drain(..80);
        }
        hellos.sort_unstable();
        hellos.dedup();
        assert!(hellos.len() > 15, "{} orders", hellos.len());
    }
}
