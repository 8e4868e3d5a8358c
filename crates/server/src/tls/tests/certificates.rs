//! Reading certificates and keys, choosing among them, and making configurations of them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConnection, ServerConfig, ServerConnection, SignatureScheme};
use tempfile::TempDir;
use worker::tls::Certificates;

use super::{ECDSA_KEY, NAME, RSA_KEY, certificate_pem, certificate_until, client};
use crate::reload::files::{FILE_BYTES_MAX, OperatorFiles};
use crate::settings::{Https, Origin};
use crate::tls::pairs::load;
use crate::tls::{NamedPath, PairPaths, Source};

/// What a client takes that knows one kind of key.
const ECDSA_SCHEMES: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];

/// Of 1024 bits, for tests only.
const RSA_PSS_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIICdAIBADALBgkqhkiG9w0BAQoEggJgMIICXAIBAAKBgQDWic+WzvAXG6vMxhAs
GvT/tv7ucO+kGKRXlEuHN5fIfY346a4V3gwxquC2pbrgflxo85Uf3gdMpUeJQzL7
lKO20Y+yvdO5SxcZRqcsgCnbOLOirgLaKZdyXbLaUogg4TtW2Q2eBTJhQciAbm9R
feoyJcdMcx4aq/v8VjNC/5natQIDAQABAoGBALdQtEeZdT9Zjpf/2YvGUPg7pmOZ
rrrZr3uCJHNaxmAzIF/DVNQskuDRsQeAX0k5z76B/DdpoXUVeSXJfMPJg4S/YwIE
tZunDNZ4+mzMp1nEPoMf+36RiVVkKwPM12JHvIJiPzUx2Gf9VXuyq2xbLlBC7qpW
lsrd2uclQk4OHbRBAkEA9bcUENFLHQLhawYvZrVccjE056AQSXwSRB7Ksbcv5nWz
+cOzW6ofnmYGhacJpQWTiWfnuBzFCYaYeVYhz73G8QJBAN+EqYVOwTITqaObAEIL
eNRqLN3LNDQ7eOg+zp4N3FfeAaLcHI0GsQBbnmmAdkzXfiSRQPK3tVA32AYqUp3k
eAUCQBAfLwXbdZ41riyjf0Cx7Zrgd6Qq8Gah6WDm1E3MwyvP1TsyB/aftuthrlPe
nddiAkgltSJzYMo7No3fhOBoh0ECQETvMSj/5O2Ayuy+PRIhX56DMFsm9G63eM6H
sElmlPI0ceS8ZcHIsoYdu3lmORXxz+GPOqygo7adwm4EV36Cm9ECQHe6KxAUgBde
/ZOwy3a4E1JeEy+izX9SuNdoS+qcA+WuwyJORypvkVgiq/T346GEjlHZ7eSoS7Zt
k5BGpmmOpRw=
-----END PRIVATE KEY-----";

/// A directory with files in it.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// The pair as the flags would name it.
    pub(crate) fn pair(&self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> PairPaths {
        pair(
            self.write("cert.pem", certificate),
            self.write("key.pem", key),
        )
    }

    /// What is wrong with the pair, without the directory.
    fn refusal(&self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> String {
        let pair = self.pair(certificate, key);
        self.refusal_of(&pair)
    }

    fn refusal_of(&self, pair: &PairPaths) -> String {
        let refusal = load(std::slice::from_ref(pair), None, &OperatorFiles::direct()).unwrap_err();
        let directory = format!("{}/", self.0.path().display());
        refusal.to_string().replace(&directory, "")
    }
}

fn pair(certificate: PathBuf, key: PathBuf) -> PairPaths {
    PairPaths {
        certificate: NamedPath {
            origin: Origin::Flag("--cert"),
            path: certificate,
        },
        key: NamedPath {
            origin: Origin::Flag("--key"),
            path: key,
        },
    }
}

pub(crate) fn good_certificate() -> String {
    certificate_pem(&[NAME], &ECDSA_KEY)
}

pub(crate) fn good_key() -> String {
    ECDSA_KEY.serialize_pem()
}

#[test]
fn a_pair_is_read_also_from_one_file_and_with_a_chain() {
    let files = Files::new();
    let other = certificate_pem(&["other.example"], &RSA_KEY);
    let chain = format!("{}{other}", good_certificate());
    let all = format!("words before\n{}{chain}", good_key());
    for pair in [
        files.pair(good_certificate(), good_key()),
        files.pair(&chain, good_key()),
        files.pair(&all, &all),
        files.pair(&other, RSA_KEY.serialize_pem()),
    ] {
        assert_eq!(
            load(&[pair], None, &OperatorFiles::direct())
                .unwrap()
                .count(),
            1
        );
    }
}

#[test]
fn each_problem_of_a_certificate_has_its_remedy() {
    let files = Files::new();
    let missing = pair("/no/such.pem".into(), files.write("key.pem", good_key()));
    assert_eq!(
        files.refusal_of(&missing),
        "--cert /no/such.pem: No such file or directory (os error 2); \
         name a PEM file that this user can read"
    );
    assert_eq!(
        files.refusal("no PEM", good_key()),
        "--cert cert.pem: no certificate in it; \
         name a PEM file: it has -----BEGIN CERTIFICATE----- in it"
    );
    assert_eq!(
        files.refusal(good_key(), good_certificate()),
        "--cert cert.pem: a private key and no certificate; \
         certificate and key seem to be swapped"
    );
    let cut = good_certificate().replace("-----END CERTIFICATE-----", "");
    assert_eq!(
        files.refusal(cut, good_key()),
        "--cert cert.pem: a section without an end; name a whole PEM file, \
         in which each part has its BEGIN line and its END line"
    );
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let refusal = files.refusal(broken, good_key());
    assert!(
        refusal.starts_with("--cert cert.pem: not usable: "),
        "{refusal}"
    );
    assert!(refusal.contains("; the first certificate"), "{refusal}");
}

#[test]
fn each_problem_of_a_key_has_its_remedy() {
    let files = Files::new();
    let missing = pair(
        files.write("cert.pem", good_certificate()),
        "/no/such.pem".into(),
    );
    assert_eq!(
        files.refusal_of(&missing),
        "--key /no/such.pem: No such file or directory (os error 2); \
         name a PEM file that this user can read"
    );
    assert_eq!(
        files.refusal(good_certificate(), "no PEM"),
        "--key key.pem: no private key in it; \
         name a PEM file: it has -----BEGIN PRIVATE KEY----- in it"
    );
    assert_eq!(
        files.refusal(good_certificate(), good_certificate()),
        "--key key.pem: a certificate and no private key; certificate and key seem to be swapped"
    );
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
               DEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    for encrypted in [encrypted, old] {
        assert_eq!(
            files.refusal(good_certificate(), encrypted),
            "--key key.pem: the key is encrypted; \
             decrypt it: openssl pkey -in KEY -out NEW, and keep NEW from others' eyes"
        );
    }
    let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    assert_eq!(
        files.refusal(good_certificate(), nonsense),
        "--key key.pem: a key of a kind that is not supported; \
         use RSA (rsaEncryption) of 2048 bits or more, ECDSA (P-256, P-384, P-521) or Ed25519"
    );
    let cut = good_key().replace("-----END PRIVATE KEY-----", "");
    assert_eq!(
        files.refusal(good_certificate(), cut),
        "--key key.pem: a section without an end; name a whole PEM file, \
         in which each part has its BEGIN line and its END line"
    );
}

/// How many certificates are sent of a file with that in it.
fn chain_length(files: &Files, certificate: impl AsRef<[u8]>) -> usize {
    let pair = files.pair(certificate, good_key());
    let certificates = load(&[pair], None, &OperatorFiles::direct()).unwrap();
    certificates.choose(None, &[]).unwrap().cert.len()
}

#[test]
fn a_chain_joined_without_line_ends_or_with_byte_order_marks_is_whole() {
    let files = Files::new();
    let (own, other) = (good_certificate(), certificate_pem(&["b"], &RSA_KEY));
    for chain in [
        format!("{}{other}", own.trim_end()),
        format!("\u{feff}{own}{other}"),
        format!("{own}\u{feff}{other}"),
        format!("{}\u{feff}{other}", own.trim_end()),
    ] {
        assert_eq!(chain_length(&files, &chain), 2, "{chain}");
    }
    let key = format!("{}\u{feff}{}", own.trim_end(), good_key());
    for key in [format!("\u{feff}{}", good_key()), key] {
        let pair = files.pair(&own, key);
        assert!(load(&[pair], None, &OperatorFiles::direct()).is_ok());
    }
}

#[test]
fn a_certificate_of_a_chain_that_cannot_be_read_is_not_left_out() {
    let files = Files::new();
    let (own, other) = (good_certificate(), certificate_pem(&["b"], &RSA_KEY));
    for (broken, problem) in [
        (
            other.replace("-----BEGIN", "----BEGIN"),
            "without its beginning",
        ),
        (
            other.replace("-----BEGIN CERTIFICATE-----", "-----BEGIN CERTIFICATE---"),
            "broken",
        ),
        (other.replace("-----END", "----END"), "without an end"),
        (
            other.replacen('/', "?", 1).replacen('M', "?", 1),
            "not Base64",
        ),
    ] {
        let refusal = files.refusal(format!("{own}{broken}"), good_key());
        assert!(
            refusal.starts_with("--cert cert.pem: ") && refusal.contains(problem),
            "{refusal}"
        );
    }
}

#[test]
fn certificates_under_their_older_labels_are_read() {
    let files = Files::new();
    let own = good_certificate();
    assert_eq!(
        chain_length(&files, own.replace("CERTIFICATE", "X509 CERTIFICATE")),
        1
    );
    // OpenSSL's `x509 -trustout` puts another element behind.
    let der = rustls::pki_types::CertificateDer::from_pem_slice(own.as_bytes()).unwrap();
    let trusted = [&der, &[0x30, 3, 0x0c, 1, b'a'][..]].concat();
    let mut base64 = String::new();
    for group in trusted.chunks(3) {
        let bits = group
            .iter()
            .fold(0, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            let digit = bits >> (18 - 6 * place) & 63;
            let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            base64.push(char::from(digits[digit as usize]));
        }
    }
    let trusted = format!(
        "-----BEGIN TRUSTED CERTIFICATE-----\n{base64}\n-----END TRUSTED CERTIFICATE-----\n"
    );
    let pair = files.pair(trusted, good_key());
    let certificates = load(&[pair], None, &OperatorFiles::direct()).unwrap();
    assert_eq!(certificates.choose(None, &[]).unwrap().cert, [der]);
}

#[test]
fn a_file_of_another_kind_is_named() {
    let files = Files::new();
    let utf16: Vec<u8> = [0xff, 0xfe]
        .into_iter()
        .chain(good_key().bytes().flat_map(|byte| [byte, 0]))
        .collect();
    let pkcs7 = "-----BEGIN PKCS7-----\nAAAA\n-----END PKCS7-----\n";
    let openssh = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n";
    for (certificate, key, words) in [
        (
            utf16.as_slice(),
            good_key().into_bytes(),
            "--cert cert.pem: text in UTF-16; convert",
        ),
        (
            good_certificate().as_bytes(),
            utf16.clone(),
            "--key key.pem: text in UTF-16; convert",
        ),
        (
            &[0x30, 0x82, 1, 0],
            good_key().into_bytes(),
            "--cert cert.pem: DER, which is not PEM; convert",
        ),
        (
            pkcs7.as_bytes(),
            good_key().into_bytes(),
            "--cert cert.pem: a PKCS #7 container",
        ),
        (
            good_certificate().as_bytes(),
            openssh.into(),
            "--key key.pem: a key of a kind that is not",
        ),
    ] {
        let refusal = files.refusal(certificate, key);
        assert!(refusal.starts_with(words), "{refusal}");
    }
}

#[test]
fn a_key_for_rsa_pss_alone_is_named() {
    let files = Files::new();
    // Made by: openssl genpkey -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:1024
    let refusal = files.refusal(good_certificate(), RSA_PSS_KEY);
    assert!(
        refusal.starts_with("--key key.pem: an RSA key for RSA-PSS alone, which is not"),
        "{refusal}"
    );
}

/// A certificate for that name, of that issuer or its own.
fn named(
    name: &str,
    key: &KeyPair,
    issuer: Option<&Issuer<'_, KeyPair>>,
) -> (CertificateParams, String) {
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.use_authority_key_identifier_extension = true;
    let pem = match issuer {
        Some(issuer) => params.signed_by(key, issuer),
        None => params.self_signed(key),
    };
    let pem = pem.unwrap().pem();
    (params, pem)
}

#[test]
fn an_incomplete_chain_is_warned_of() {
    let files = Files::new();
    let keys = [(); 3].map(|()| KeyPair::generate().unwrap());
    let [root_key, middle_key, renewed_key] = keys;
    let (root, root_pem) = named("The Root", &root_key, None);
    let root = Issuer::new(root, root_key);
    let (middle, middle_pem) = named("The Middle\n", &middle_key, Some(&root));
    // The same name with another key.
    let (_, renewed_pem) = named("The Middle\n", &renewed_key, Some(&root));
    let middle = Issuer::new(middle, middle_key);
    let (_, own) = named("the server", &ECDSA_KEY, Some(&middle));
    let (_, self_signed) = named("the server", &ECDSA_KEY, None);
    let warnings = |chain: &[&String]| -> Vec<String> {
        let chain: Vec<&str> = chain.iter().map(|pem| pem.as_str()).collect();
        let pair = files.pair(chain.concat(), good_key());
        let certificates = load(&[pair], None, &OperatorFiles::direct()).unwrap();
        let directory = format!("{}/", files.0.path().display());
        let warnings = certificates.chain_warnings().into_iter();
        warnings
            .map(|warning| warning.replace(&directory, ""))
            .collect()
    };
    for whole in [
        vec![&own, &middle_pem],
        vec![&own, &middle_pem, &root_pem],
        vec![&self_signed],
        vec![&self_signed, &root_pem],
    ] {
        assert_eq!(warnings(&whole), [""; 0]);
    }
    let alone = warnings(&[&own]);
    assert!(
        alone.len() == 1
            && alone[0].starts_with(
                "--cert cert.pem: the chain has the server's own certificate only: clients refuse it \
                 unless its issuer (CN=The Middle\\n) is a root they trust; the file must have"
            ),
        "{alone:?}"
    );
    for (chain, place) in [
        (vec![&own, &root_pem, &middle_pem], 1),
        (vec![&own, &own], 1),
        (vec![&own, &renewed_pem], 1),
        (vec![&own, &middle_pem, &own], 2),
    ] {
        let warnings = warnings(&chain);
        let words = format!(
            "--cert cert.pem: behind certificate {place} of the chain its issuer's is missing ("
        );
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(&words),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let files = Files::new();
    let other = KeyPair::generate().unwrap().serialize_pem();
    for other in [other, RSA_KEY.serialize_pem()] {
        let refusal = files.refusal(good_certificate(), other);
        assert!(
            refusal.starts_with("--key key.pem: not the key of --cert cert.pem; give each"),
            "{refusal}"
        );
    }
}

#[test]
fn a_file_has_a_greatest_size() {
    let files = Files::new();
    let certificate = good_certificate();
    let fill = FILE_BYTES_MAX - certificate.len();
    let largest = certificate + &"\n".repeat(fill);
    let good = files.pair(&largest, good_key());
    assert!(load(&[good], None, &OperatorFiles::direct()).is_ok());
    let refusal = files.refusal(largest + "\n", good_key());
    assert_eq!(
        refusal,
        "--cert cert.pem: more than 4194304 bytes; name a PEM file"
    );
    let device = pair("/dev/zero".into(), "/dev/null".into());
    assert!(files.refusal_of(&device).contains("more than"));
}

#[test]
fn no_error_message_contains_key_bytes() {
    let files = Files::new();
    let key = good_key();
    let secret = key.lines().nth(1).unwrap();
    for broken in [
        key.replace("-----END PRIVATE KEY-----", ""),
        key.replace("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-"),
        key.replace(secret, &format!("{secret}*")),
        key.replace(secret, &secret[1..]),
    ] {
        let refusal = files.refusal(good_certificate(), broken);
        assert!(!refusal.contains(&secret[4..12]), "{refusal}");
    }
}

fn https(pairs: Vec<PairPaths>) -> Https {
    Https {
        port: 443,
        pairs,
        folder: None,
        ticket_keys: None,
        secrets_origin: None,
    }
}

fn source() -> Source {
    Source::new(&https(Vec::new())).unwrap()
}

/// Whether a session was resumed, and the certificate that the client got.
fn certificate_served(
    config: Arc<ServerConfig>,
    client: &Arc<rustls::ClientConfig>,
) -> (bool, Vec<u8>) {
    let name = ServerName::try_from(NAME).unwrap();
    let mut server = ServerConnection::new(config).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    // The second time for the tickets.
    for _ in 0..2 {
        while client.is_handshaking() || server.wants_write() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &*bytes).unwrap();
            server.process_new_packets().unwrap();
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &*bytes).unwrap();
            client.process_new_packets().unwrap();
        }
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &*bytes).unwrap();
        server.process_new_packets().unwrap();
    }
    let certificate = client.peer_certificates().unwrap()[0].to_vec();
    let is_resumed = client.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    (is_resumed, certificate)
}

#[test]
fn reloaded_certificates_keep_tickets_valid() {
    let files = Files::new();
    let https = https(vec![files.pair(good_certificate(), good_key())]);
    let source = source();
    let load = || source.load(&https, &OperatorFiles::direct());
    let trusting = client();
    let (is_resumed, first) = certificate_served(load().unwrap().config, &trusting);
    assert!(!is_resumed);
    files.pair(certificate_pem(&[NAME], &RSA_KEY), RSA_KEY.serialize_pem());
    let renewed = load().unwrap().config;
    assert!(certificate_served(Arc::clone(&renewed), &trusting).0);
    let (is_resumed, second) = certificate_served(renewed, &client());
    assert!(!is_resumed && first != second);
    // A file that is gone changes nothing about what was read before.
    fs::remove_file(files.0.path().join("key.pem")).unwrap();
    let refusal = load().unwrap_err().to_string();
    assert!(refusal.starts_with("--key "), "{refusal}");
}

#[test]
fn a_session_is_resumed_at_another_server_with_the_same_ticket_keys() {
    let files = Files::new();
    let pair = files.pair(good_certificate(), good_key());
    let server = |ticket_keys: Option<&str>| {
        let ticket_keys = ticket_keys.map(|text| NamedPath {
            origin: Origin::Flag("ticket_keys"),
            path: files.write("tickets", text),
        });
        let https = Https {
            ticket_keys,
            ..https(vec![pair.clone()])
        };
        source()
            .load(&https, &OperatorFiles::direct())
            .unwrap()
            .config
    };
    let (key, other) = ("00".repeat(32), "11".repeat(32));
    let trusting = client();
    let is_resumed = |config| certificate_served(config, &trusting).0;
    assert!(!is_resumed(server(Some(&key))));
    assert!(is_resumed(server(Some(&key))));
    assert!(is_resumed(server(Some(&format!("{other}\n{key}\n")))));
    assert!(
        is_resumed(server(Some(&other))),
        "the last ticket was the new key's"
    );
    assert!(!is_resumed(server(None)));
}

#[test]
fn a_folder_has_hundreds_of_certificates_by_name_and_is_read_again() {
    let files = Files::new();
    let folder = NamedPath {
        origin: Origin::Flag("certificates"),
        path: files.path("live"),
    };
    let add = |name: &str| {
        let pair = folder.path.join(name);
        fs::create_dir_all(&pair).unwrap();
        let chain = certificate_pem(&[name, &format!("*.{name}")], &ECDSA_KEY);
        fs::write(pair.join("fullchain.pem"), chain).unwrap();
        fs::write(pair.join("privkey.pem"), good_key()).unwrap();
    };
    let names = (0..300).map(|number| format!("site{number}.example"));
    let names: Vec<String> = names.collect();
    names.iter().for_each(|name| add(name));
    let default = files.pair(good_certificate(), good_key());
    let load = || {
        load(
            std::slice::from_ref(&default),
            Some(&folder),
            &OperatorFiles::direct(),
        )
    };
    let certificates = load().unwrap();
    assert_eq!(certificates.count(), 301);
    let schemes = ECDSA_SCHEMES;
    let own = |certificates: &Certificates, name: &str| {
        let chosen = certificates.choose(Some(name), schemes).unwrap();
        chosen.cert[0].to_vec()
    };
    let first = own(&certificates, NAME);
    let mut seen = vec![first.clone()];
    for name in &names {
        let certificate = own(&certificates, name);
        assert_eq!(own(&certificates, &format!("WWW.{name}.")), certificate);
        assert!(!seen.contains(&certificate), "{name}");
        seen.push(certificate);
    }
    for other in ["new.example", "a.b.site1.example", "example", ""] {
        assert_eq!(own(&certificates, other), first, "{other}");
    }
    add("new.example");
    assert_ne!(own(&load().unwrap(), "new.example"), first);
    fs::remove_file(folder.path.join("new.example/privkey.pem")).unwrap();
    let refusal = load().unwrap_err().to_string();
    assert!(
        refusal.contains("new.example/privkey.pem: no private key in it"),
        "{refusal}"
    );
    let empty = NamedPath {
        path: files.path("empty"),
        ..folder.clone()
    };
    fs::create_dir(&empty.path).unwrap();
    let refusal = super::super::pairs::load(&[], Some(&empty), &OperatorFiles::direct());
    assert!(
        refusal
            .unwrap_err()
            .to_string()
            .contains("no certificate in it")
    );
}

#[test]
fn certificates_that_clients_refuse_or_will_soon_are_named() {
    let files = Files::new();
    let long = files.pair(certificate_until(2_031, 5, 6), good_key());
    let chain = certificate_until(2_041, 1, 1) + &certificate_until(2_031, 1, 1);
    let chained = PairPaths {
        certificate: NamedPath {
            path: files.write("chain.pem", chain),
            ..long.certificate.clone()
        },
        ..long.clone()
    };
    let certificates = load(&[long, chained], None, &OperatorFiles::direct()).unwrap();
    // What is behind the server's own counts too: clients refuse the chain.
    let end_of_issuer = 1_924_992_000;
    assert_eq!(certificates.earliest_end(), Some(end_of_issuer));
    let warnings = |unix_seconds| -> Vec<String> {
        let directory = format!("{}/", files.0.path().display());
        let warnings = certificates.warnings(unix_seconds).into_iter();
        warnings
            .map(|warning| warning.replace(&directory, ""))
            .collect()
    };
    assert_eq!(warnings(end_of_issuer - 15 * 86_400), [""; 0]);
    let soon = "--cert chain.pem: the certificate for video.example expires on 2031-01-01 \
                (in 13 days); renew it, then SIGHUP";
    assert_eq!(warnings(end_of_issuer - 13 * 86_400), [soon]);
    let over = warnings(1_950_000_000);
    assert!(over[0].starts_with("--cert cert.pem: ") && over[0].contains("expired on 2031-05-06"));
    assert!(over[1].contains("expired on 2031-01-01"), "{over:?}");
    assert_eq!(warnings(0).len(), 3, "none of them has begun");
}

#[test]
fn secrets_are_not_logged_unless_asked_for() {
    let files = Files::new();
    let https = https(vec![files.pair(good_certificate(), good_key())]);
    let source = source();
    let load = || source.load(&https, &OperatorFiles::direct());
    let config = load().unwrap().config;
    assert!(!config.key_log.will_log("CLIENT_TRAFFIC_SECRET_0"));
    let words = format!("{source:?} {config:?}");
    let key = good_key();
    assert!(!words.contains(&key.lines().nth(1).unwrap()[..20]));
}
