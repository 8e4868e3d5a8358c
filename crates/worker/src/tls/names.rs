//! Server names that are no names of DNS: such a client is served as one that names no server.
//!
//! Some clients put `[2001:db8::1]`, `host:443` or `1.2.3` into server_name (RFC 6066 s3). rustls ends
//! their handshakes, and has no setting for it. So it sees the extension under a type that it does not
//! know, and takes the default certificate. But client and server must hash the ClientHello as it was
//! sent: the hash functions that rustls is given put the type back ([`suites`]).
//!
//! It refuses to touch a name that rustls takes, and an extension that is malformed. If rustls hashed
//! the message in other pieces than today, the hashes would differ, and these handshakes fail as
//! they did; no others are changed. Bound: one name for each thread, during a call of rustls.

use std::cell::RefCell;

use record::HEADER_BYTES;
use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::pki_types::ServerName;
use rustls::{SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite};

/// Extension `server_name(0)`.
const SERVER_NAME: u16 = 0;
/// NameType `host_name(0)`.
const HOST_NAME: u8 = 0;
/// Types for private use (RFC 8447 s7), of which rustls knows none.
const SPARE_TYPES: std::ops::RangeInclusive<u16> = 0xff80..=0xffff;
/// Bytes of an extension's type.
const TYPE_BYTES: usize = 2;

thread_local! {
    /// See [`HiddenName::during`].
    static HIDDEN: RefCell<Option<HiddenName>> = const { RefCell::new(None) };
}

/// A name that rustls is not to see.
#[derive(Debug)]
pub(super) struct HiddenName {
    /// The ClientHello up to the end of the extension's type, with the type that rustls sees. It holds
    /// the client's random, so no other message begins so.
    start: Vec<u8>,
}

impl HiddenName {
    /// Of a whole ClientHello; `None`: it has no name, or one that rustls takes or shall refuse.
    pub(super) fn of(message: &[u8]) -> Option<Self> {
        let (place, value) = record::find_extension(message, SERVER_NAME)?;
        let (list_bytes, list) = value.split_first_chunk()?;
        let (kind, list) = list.split_first()?;
        let (name_bytes, name) = list.split_first_chunk()?;
        let is_one_name = usize::from(u16::from_be_bytes(*list_bytes)) == value.len() - 2
            && *kind == HOST_NAME
            && usize::from(u16::from_be_bytes(*name_bytes)) == name.len()
            && !name.is_empty();
        if !is_one_name || ServerName::try_from(name).is_ok() {
            return None;
        }
        let is_spare = |kind: &u16| record::find_extension(message, *kind).is_none();
        let kind = SPARE_TYPES.rev().find(is_spare)?;
        let start = [message.get(..place)?, &kind.to_be_bytes()].concat();
        Some(Self { start })
    }

    /// Hides the name in the message, which is the content of these records.
    pub(super) fn hide_in(&self, records: &mut [u8]) {
        let (mut rest, mut passed) = (records, 0);
        while let Some((header, behind)) = rest.split_at_mut_checked(HEADER_BYTES) {
            let length = usize::from(u16::from_be_bytes([header[3], header[4]])).min(behind.len());
            let (content, next) = behind.split_at_mut(length);
            let hidden = self.start.get(passed..).unwrap_or_default();
            for (byte, hidden) in content.iter_mut().zip(hidden) {
                *byte = *hidden;
            }
            passed += length;
            rest = next;
        }
    }

    /// Makes a call of rustls, in which the message is hashed as the client sent it.
    pub(super) fn during<T>(self, call: impl FnOnce() -> T) -> T {
        HIDDEN.set(Some(self));
        let result = call();
        HIDDEN.set(None);
        result
    }
}

/// Where the type is in `data`, if that begins with the message whose name is hidden.
fn hidden_place(data: &[u8]) -> Option<usize> {
    HIDDEN.with_borrow(|hidden| {
        let start = &hidden.as_ref()?.start;
        data.starts_with(start).then(|| start.len() - TYPE_BYTES)
    })
}

/// A hash function that puts the type back.
struct RestoringHash(&'static dyn Hash);

struct RestoringContext(Box<dyn Context>);

impl Hash for RestoringHash {
    fn start(&self) -> Box<dyn Context> {
        Box::new(RestoringContext(self.0.start()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        let mut context = self.start();
        context.update(data);
        context.finish()
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0.algorithm()
    }
}

impl Context for RestoringContext {
    fn fork_finish(&self) -> Output {
        self.0.fork_finish()
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self(self.0.fork()))
    }

    fn finish(self: Box<Self>) -> Output {
        self.0.finish()
    }

    fn update(&mut self, data: &[u8]) {
        let Some((before, behind)) =
            hidden_place(data).and_then(|place| data.split_at_checked(place))
        else {
            self.0.update(data);
            return;
        };
        self.0.update(before);
        self.0.update(&SERVER_NAME.to_be_bytes());
        self.0.update(behind.get(TYPE_BYTES..).unwrap_or_default());
    }
}

/// Those suites with hash functions that put the type back. rustls keeps suites for ever, so this is
/// called once.
pub(super) fn suites(suites: &[SupportedCipherSuite]) -> Vec<SupportedCipherSuite> {
    let restoring =
        |suite: &SupportedCipherSuite| with_hash(*suite, &|hash| Box::new(RestoringHash(hash)));
    suites.iter().map(restoring).collect()
}

fn with_hash(
    suite: SupportedCipherSuite,
    wrap: &dyn Fn(&'static dyn Hash) -> Box<dyn Hash>,
) -> SupportedCipherSuite {
    let common = |common: &CipherSuiteCommon| CipherSuiteCommon {
        suite: common.suite,
        hash_provider: Box::leak(wrap(common.hash_provider)),
        confidentiality_limit: common.confidentiality_limit,
    };
    match suite {
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: common(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: suite.aead_alg,
            })))
        }
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: common(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: suite.quic,
            })))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rustls::SupportedCipherSuite;
    use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};

    use super::{HiddenName, with_hash};

    /// The name of every client's hello here.
    pub(crate) const SENT: &[u8] = crate::tls::tests::NAME.as_bytes();
    /// What it is on the way to the server; as long, and no name of DNS.
    pub(crate) const ARRIVING: &[u8] = b"[deo.exampl:]";

    /// Suites of a client whose hello is changed on the way, and who hashes it as it arrives.
    pub(crate) fn suites_of_changed_hello(
        suites: &[SupportedCipherSuite],
    ) -> Vec<SupportedCipherSuite> {
        let changed =
            |suite: &SupportedCipherSuite| with_hash(*suite, &|hash| Box::new(ChangedHash(hash)));
        suites.iter().map(changed).collect()
    }

    /// What arrives of it.
    pub(crate) fn change_name(bytes: &mut [u8]) {
        let place = bytes.windows(SENT.len()).position(|place| place == SENT);
        if let Some(place) = place {
            bytes[place..place + SENT.len()].copy_from_slice(ARRIVING);
        }
    }

    struct ChangedHash(&'static dyn Hash);
    struct ChangedContext(Box<dyn Context>);

    impl Hash for ChangedHash {
        fn start(&self) -> Box<dyn Context> {
            Box::new(ChangedContext(self.0.start()))
        }

        fn hash(&self, data: &[u8]) -> Output {
            self.0.hash(data)
        }

        fn output_len(&self) -> usize {
            self.0.output_len()
        }

        fn algorithm(&self) -> HashAlgorithm {
            self.0.algorithm()
        }
    }

    impl Context for ChangedContext {
        fn fork_finish(&self) -> Output {
            self.0.fork_finish()
        }

        fn fork(&self) -> Box<dyn Context> {
            Box::new(Self(self.0.fork()))
        }

        fn finish(self: Box<Self>) -> Output {
            self.0.finish()
        }

        fn update(&mut self, data: &[u8]) {
            let mut data = data.to_vec();
            // A hello, or the hash of the first one with a second behind it (RFC 8446 s4.4.1).
            if matches!(data.first(), Some(1 | 254)) {
                change_name(&mut data);
            }
            self.0.update(&data);
        }
    }

    /// A ClientHello with those extensions.
    fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let length = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
        let mut block = Vec::new();
        for (kind, value) in extensions {
            block.extend(kind.to_be_bytes());
            block.extend(length(value.len()));
            block.extend(*value);
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(length(block.len()));
        body.extend(block);
        let [high, low] = length(body.len());
        [vec![1, 0, high, low], body].concat()
    }

    fn name(name: &[u8]) -> Vec<u8> {
        let length = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
        [&length(name.len() + 3)[..], &[0], &length(name.len()), name].concat()
    }

    #[test]
    fn names_that_are_none_are_hidden_and_no_others() {
        for bad in [
            "[fd78::2]",
            "host:443",
            "1.2.3",
            "b\u{fc}cher.example",
            "a b",
            "-",
            ".",
        ] {
            let message = hello(&[(0xffff, b"x"), (0, &name(bad.as_bytes())), (5, b"y")]);
            let hidden = HiddenName::of(&message).unwrap();
            for content_bytes in [message.len(), 50, 1] {
                let mut records = Vec::new();
                for content in message.chunks(content_bytes) {
                    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
                    records.extend([&[22, 3, 1], &length[..], content].concat());
                }
                hidden.hide_in(&mut records);
                let shown: Vec<u8> = records
                    .chunks(5 + content_bytes)
                    .flat_map(|record| &record[5..])
                    .copied()
                    .collect();
                let expected = hello(&[(0xffff, b"x"), (0xfffe, &name(bad.as_bytes())), (5, b"y")]);
                assert_eq!(shown, expected, "{bad}");
            }
        }
        for good in [
            "a.example",
            "a_b.example",
            "a.example.",
            "192.0.2.1",
            "fd78::2",
            "localhost",
        ] {
            assert!(
                HiddenName::of(&hello(&[(0, &name(good.as_bytes()))])).is_none(),
                "{good}"
            );
        }
        // What is malformed, or not one name of a host, is left to rustls.
        let two = [name(b"1.2.3"), name(b"1.2.3")].concat();
        let other = [&[0, 4, 1, 0, 1, b'.'][..], b""].concat();
        for malformed in [
            &b""[..],
            &[0],
            &[0, 0],
            &[0, 3, 0, 0, 0],
            &two,
            &other,
            &name(b".")[..5],
        ] {
            assert!(
                HiddenName::of(&hello(&[(0, malformed)])).is_none(),
                "{malformed:?}"
            );
        }
        assert!(HiddenName::of(&hello(&[])).is_none());
    }
}
