//! Certificates and their keys: choosing one for a client, and what is wrong with them.
//!
//! It refuses to read files. Bounds: [`CERTIFICATES_MAX`] pairs, and [`FOLDER_CERTIFICATES_MAX`] more of a folder. One is
//! found by an index of their names.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::cost::full_hello_us;
use super::validity::{CertificateInfo, Follower, follower_of};

thread_local! {
    /// See [`take_chosen_us`].
    static CHOSEN_US: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Most certificates named one by one; each may be for many names. The one for a client is the first of those for its
/// name.
pub const CERTIFICATES_MAX: usize = 16;
/// Most certificates of a folder, behind those.
pub const FOLDER_CERTIFICATES_MAX: usize = 1024;

/// The server's certificates; the first one is the default, for clients whose server name matches none.
#[derive(Debug)]
pub struct Certificates {
    pairs: Vec<Pair>,
    /// By name in lower case, `*.` before those of wildcards: indexes of pairs, in order.
    by_name: HashMap<String, Vec<usize>>,
}

/// A certificate with its key, and properties of both, determined when they were loaded.
#[derive(Debug)]
struct Pair {
    certified: Arc<CertifiedKey>,
    /// Of each certificate of the chain that could be parsed, the server's own first.
    chain: Vec<CertificateInfo>,
    /// What a full handshake with it costs, microseconds.
    hello_us: u64,
    /// Where its certificate came from.
    file: String,
}

impl Pair {
    fn new(certified: CertifiedKey, file: String) -> Self {
        Self {
            chain: certified
                .cert
                .iter()
                .filter_map(CertificateInfo::of)
                .collect(),
            hello_us: full_hello_us(&*certified.key),
            certified: Arc::new(certified),
            file,
        }
    }

    fn is_for(&self, name: &str) -> bool {
        self.chain.first().is_some_and(|own| own.is_for(name))
    }
}

impl Certificates {
    /// These pairs, in this order, each with what warnings call it.
    #[must_use]
    pub fn new(pairs: Vec<(CertifiedKey, String)>) -> Self {
        let pair = |(certified, name)| Pair::new(certified, name);
        let pairs: Vec<Pair> = pairs.into_iter().map(pair).collect();
        let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, pair) in pairs.iter().enumerate() {
            for name in pair.chain.first().iter().flat_map(|own| own.names()) {
                let indexes = by_name.entry(name.to_ascii_lowercase()).or_default();
                indexes.push(index);
            }
        }
        Self { pairs, by_name }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pairs.len()
    }

    /// A warning for each certificate that is expired, not valid yet, or expires soon, at
    /// `unix_seconds`.
    #[must_use]
    pub fn warnings(&self, unix_seconds: i64) -> Vec<String> {
        let of_pair = |pair: &Pair| -> Vec<String> {
            let warn = |info: &CertificateInfo| info.warning(&pair.file, unix_seconds);
            pair.chain.iter().filter_map(warn).collect()
        };
        self.pairs.iter().flat_map(of_pair).collect()
    }

    /// A warning for each chain that clients cannot follow from the server's own certificate, or
    /// perhaps cannot.
    #[must_use]
    pub fn chain_warnings(&self) -> Vec<String> {
        let of_pair = |pair: &Pair| {
            let certificates: Vec<_> = pair.certified.cert.iter().map(AsRef::as_ref).collect();
            chain_warning(&certificates).map(|words| format!("{}: {words}", pair.file))
        };
        self.pairs.iter().filter_map(of_pair).collect()
    }

    /// Unix time at which the first of them ends, chains included, seconds.
    #[must_use]
    pub fn earliest_end(&self) -> Option<i64> {
        let all = self.pairs.iter().flat_map(|pair| &pair.chain);
        all.map(|info| info.not_after).min()
    }

    /// The first pair for `name` whose key has a signature scheme of the client's, else the first of
    /// any name that has one, else the first pair: then the handshake fails, and rustls sends a more
    /// precise alert than "no certificate".
    #[must_use]
    pub fn choose(
        &self,
        name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<&Arc<CertifiedKey>> {
        self.pair_for(name, schemes).map(|pair| &pair.certified)
    }

    /// Indexes of pairs that may be for this name, in order.
    fn indexes_for(&self, name: &str) -> impl Iterator<Item = usize> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let wildcard = name.split_once('.').map(|(_, rest)| format!("*.{rest}"));
        let keys = [Some(name), wildcard].into_iter().flatten();
        let found = keys.filter_map(|key| self.by_name.get(&key));
        let mut indexes: Vec<usize> = found.flatten().copied().collect();
        indexes.sort_unstable();
        indexes.into_iter()
    }

    fn pair_for(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Pair> {
        let fits = |pair: &&Pair| pair.certified.key.choose_scheme(schemes).is_some();
        let named = name.and_then(|name| {
            let pairs = self
                .indexes_for(name)
                .filter_map(|index| self.pairs.get(index));
            pairs.filter(fits).find(|pair| pair.is_for(name))
        });
        named
            .or_else(|| self.pairs.iter().find(fits))
            .or_else(|| self.pairs.first())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let pair = self.pair_for(hello.server_name(), hello.signature_schemes())?;
        CHOSEN_US.set(Some(pair.hello_us));
        Some(Arc::clone(&pair.certified))
    }
}

/// If a certificate was chosen on this thread since the last call: what a full handshake with it
/// costs, microseconds. rustls chooses in the middle of a call and does not tell its caller.
pub(super) fn take_chosen_us() -> Option<u64> {
    CHOSEN_US.take()
}

/// What is wrong with a chain, if anything, in words for an operator.
fn chain_warning(chain: &[&[u8]]) -> Option<String> {
    const REMEDY: &str = "the file must have the server's own certificate, then its issuer's, then \
                          that one's issuer's (certbot calls such a file fullchain.pem)";
    let behind = |place: usize| chain.get(place + 1).copied();
    for (place, certificate) in chain.iter().enumerate() {
        match follower_of(certificate, behind(place)) {
            Follower::Issuer | Follower::NotNeeded => {}
            Follower::Other { issuer } => {
                return Some(format!(
                    "behind certificate {} of the chain its issuer's is missing ({issuer}), another \
                     one stands there: many clients refuse the chain; {REMEDY}",
                    place + 1
                ));
            }
            // The last issuer is a root, which every client must have anyway.
            Follower::Nothing { .. } if place > 0 => {}
            Follower::Nothing { issuer } => {
                return Some(format!(
                    "the chain has the server's own certificate only: clients refuse it unless its \
                     issuer ({issuer}) is a root they trust; {REMEDY}"
                ));
            }
        }
    }
    None
}
