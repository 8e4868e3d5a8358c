//! Tickets by which sessions are resumed (RFC 5077, RFC 8446 s4.6.1), sealed under keys that several servers share.
//!
//! The operator writes the same file for all servers behind a name, and for a server that is started again: a client
//! that comes back to another of them needs no full handshake. The first key seals, every key opens; to change
//! them, a new one goes in front and the last one goes, at least once a day. Whoever has the keys can read sessions of
//! TLS 1.2 that were resumed, and nothing else of those of TLS 1.3, which agree on new keys (psk_dhe_ke).
//!
//! It refuses tickets of other keys, and everything that was changed. Bounds: [`KEYS_MAX`] keys, of [`KEY_BYTES`];
//! nonces are random, so that a key may seal 2^32 tickets (NIST SP 800-38D s8.3).

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::digest::{SHA256, digest};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use super::NamedPath;
use crate::failure::Failure;
use crate::reload::files::OperatorFiles;

/// Most keys in a file.
pub(crate) const KEYS_MAX: usize = 4;
/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Bytes of what names a key in a ticket.
const NAME_BYTES: usize = 16;
/// How long clients keep tickets, seconds; as rustls's own.
const LIFETIME_SECONDS: u32 = 12 * 60 * 60;

/// See the module.
#[derive(Debug)]
pub(super) struct SharedTickets {
    /// The first one seals.
    keys: Vec<Key>,
}

struct Key {
    name: [u8; NAME_BYTES],
    sealing: RandomizedNonceKey,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl SharedTickets {
    /// Reads the keys.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is no key. The line is not shown: it is a secret.
    pub(super) fn load(file: &NamedPath, files: &OperatorFiles) -> Result<Self, Failure> {
        let text = files.read_file(&file.path).map_err(|error| {
            Failure::refused(
                format!("{file}: {error}"),
                "name a file that the server may read",
            )
        })?;
        let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = (1..).zip(lines).filter(|(_, line)| !line.is_empty());
        let keys = lines.map(|(number, line)| {
            Key::from_hex(line).ok_or_else(|| {
                Failure::refused(
                    format!("{file}: line {number} is no key"),
                    "write 64 hexadecimal digits, as openssl rand -hex 32 makes them",
                )
            })
        });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if !(1..=KEYS_MAX).contains(&keys.len()) {
            return Err(Failure::refused(
                format!("{file}: {} keys", keys.len()),
                format!("write 1 to {KEYS_MAX}, a line each"),
            ));
        }
        Ok(Self { keys })
    }
}

impl Key {
    fn from_hex(digits: &[u8]) -> Option<Self> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        // Of the key, so that all servers give it the same name.
        let hash = digest(&SHA256, &*bytes);
        Some(Self {
            name: hash.as_ref().get(..NAME_BYTES)?.try_into().ok()?,
            sealing: RandomizedNonceKey::new(&AES_256_GCM, &*bytes).ok()?,
        })
    }

    /// Name, nonce, sealed bytes and tag.
    fn seal(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = plain.to_vec();
        let aad = Aad::from(self.name);
        let nonce = self
            .sealing
            .seal_in_place_append_tag(aad, &mut sealed)
            .ok()?;
        Some([&self.name, nonce.as_ref().as_slice(), &sealed].concat())
    }

    fn open(&self, nonce: [u8; NONCE_LEN], sealed: &[u8]) -> Option<Vec<u8>> {
        let mut plain = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self
            .sealing
            .open_in_place(nonce, Aad::from(self.name), &mut plain);
        let length = opened.ok()?.len();
        plain.truncate(length);
        Some(plain)
    }
}

impl ProducesTickets for SharedTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_SECONDS
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.first()?.seal(plain)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let key = self.keys.iter().find(|key| key.name == *name)?;
        key.open(*nonce, sealed)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::settings::Origin;

    const OLD: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const NEW: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

    fn load(directory: &Path, text: &str) -> Result<SharedTickets, String> {
        let path = directory.join("tickets");
        std::fs::write(&path, text).unwrap();
        let origin = Origin::Flag("ticket_keys");
        let file = NamedPath { origin, path };
        let loaded = SharedTickets::load(&file, &OperatorFiles::direct());
        loaded.map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_ticket_is_opened_by_every_server_that_has_its_key() {
        let directory = tempfile::TempDir::new().unwrap();
        let load = |text: &str| load(directory.path(), text).unwrap();
        let (old, both, new) = (load(OLD), load(&format!("{NEW}\n{OLD}\n")), load(NEW));
        let ticket = old.encrypt(b"a session").unwrap();
        assert_ne!(
            ticket,
            old.encrypt(b"a session").unwrap(),
            "its nonce is another"
        );
        assert_eq!(both.decrypt(&ticket).as_deref(), Some(&b"a session"[..]));
        assert_eq!(new.decrypt(&ticket), None);
        let renewed = both.encrypt(b"").unwrap();
        assert_eq!(new.decrypt(&renewed).as_deref(), Some(&b""[..]));
        assert_eq!(old.decrypt(&renewed), None);
    }

    #[test]
    fn a_changed_or_short_ticket_is_none() {
        let directory = tempfile::TempDir::new().unwrap();
        let tickets = load(directory.path(), OLD).unwrap();
        let ticket = tickets.encrypt(b"a session").unwrap();
        for place in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[place] ^= 1;
            assert_eq!(tickets.decrypt(&changed), None, "byte {place}");
            assert_eq!(tickets.decrypt(&ticket[..place]), None, "{place} bytes");
        }
    }

    #[test]
    fn a_file_has_one_to_four_keys_and_no_message_shows_one() {
        let directory = tempfile::TempDir::new().unwrap();
        let load = |text: &str| load(directory.path(), text);
        assert!(load(&format!("\n{OLD}\n").repeat(KEYS_MAX)).is_ok());
        for (text, message) in [
            (String::new(), "0 keys"),
            (format!("{OLD}\n").repeat(KEYS_MAX + 1), "5 keys"),
            (format!("{OLD}\n{NEW}0\n"), "line 2 is no key"),
            (format!("+{}", &OLD[1..]), "line 1 is no key"),
        ] {
            let refused = load(&text).unwrap_err();
            assert!(
                refused.contains(message) && !refused.contains(&OLD[..20]),
                "{refused}"
            );
        }
    }
}
