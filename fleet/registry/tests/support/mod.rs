//! Servers of the tests: one that answers by a function, and a real etcd.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    clippy::print_stdout,
    reason = "each test uses its part, and says what it skips"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use registry::{EtcdSettings, View, Watch};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a view is as wanted.
pub async fn until(watch: &mut Watch, is_wanted: impl FnMut(&View) -> bool) -> View {
    let seen = timeout(PATIENCE, watch.view.wait_for(is_wanted)).await;
    let seen = seen.expect("a view as wanted, in time");
    seen.expect("the watch goes on").clone()
}

/// The names of a view's members.
pub fn names(view: &View) -> Vec<&str> {
    view.members.iter().map(|it| it.name.as_str()).collect()
}

/// A request's head, or nothing at the connection's end.
pub async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.ok()?;
        bytes.push(byte);
    }
    Some(String::from_utf8(bytes).expect("a head is text"))
}

/// A server on the loopback that answers each request by its target, and closes.
pub async fn serve(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let head = head(&mut stream).await?;
                let (status, body) = answer(head.split(' ').nth(1)?);
                let text = format!(
                    "HTTP/1.1 {status} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(text.as_bytes()).await.ok()
            });
        }
    });
    address
}

/// Certificates for an etcd on the loopback and its clients, all of one authority.
#[derive(Clone)]
pub struct Certificates {
    /// The authority's.
    pub ca: PathBuf,
    /// A client's certificate and its key.
    pub identity: PathBuf,
    server: PathBuf,
    server_key: PathBuf,
}

impl Certificates {
    /// Makes them in a folder.
    pub fn make(folder: &Path) -> Self {
        let key = || KeyPair::generate().expect("keys can be made");
        let mut authority = CertificateParams::new([]).expect("no names are right");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let authority = CertifiedIssuer::self_signed(authority, key()).expect("it can be signed");
        let issue = |name: &str| {
            let mut params = CertificateParams::new([name.to_owned()]).expect("a name is right");
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            let key = key();
            let certificate = params.signed_by(&key, &authority);
            let certificate = certificate.expect("it can be signed").pem();
            (certificate, key.serialize_pem())
        };
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("the folder can be written");
            path
        };
        let (server, server_key) = issue("127.0.0.1");
        let (client, client_key) = issue("client");
        Self {
            ca: write("ca.pem", &authority.pem()),
            identity: write("client.pem", &(client + &client_key)),
            server: write("server.pem", &server),
            server_key: write("server.key", &server_key),
        }
    }
}

/// A real etcd on the loopback, ended when this is dropped.
pub struct RealEtcd {
    child: Child,
    pub client: u16,
    peer: u16,
    certificates: Option<Certificates>,
}

impl RealEtcd {
    /// Starts one, or says why this cannot be tried.
    pub fn start(folder: &Path) -> Option<Self> {
        Self::start_with(folder, None)
    }

    /// The same, over TLS with certificates of both sides.
    pub fn start_with(folder: &Path, certificates: Option<Certificates>) -> Option<Self> {
        let mut command = Command::new("etcd");
        command.arg("--version");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if command.status().is_err() {
            println!("SKIPPED: no etcd (Debian: etcd-server)");
            return None;
        }
        let free = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
            listener.local_addr().expect("it is bound").port()
        };
        let (client, peer) = (free(), free());
        Some(Self {
            child: Self::spawn(folder, client, peer, certificates.as_ref()),
            client,
            peer,
            certificates,
        })
    }

    fn spawn(folder: &Path, client: u16, peer: u16, certificates: Option<&Certificates>) -> Child {
        let scheme = certificates.map_or("http", |_| "https");
        let (client, peer) = (
            format!("{scheme}://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let mut command = Command::new("etcd");
        command
            .args(["--name", "one", "--data-dir"])
            .arg(folder.join("etcd"));
        command.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ]);
        command.args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ]);
        command.args(["--initial-cluster", &format!("one={peer}")]);
        if let Some(it) = certificates {
            command.arg("--cert-file").arg(&it.server);
            command.arg("--key-file").arg(&it.server_key);
            command.arg("--trusted-ca-file").arg(&it.ca);
            command.arg("--client-cert-auth");
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().expect("it was there just now")
    }

    /// Kills it, as a power cut would.
    pub fn kill(&mut self) {
        self.child.kill().expect("it ran");
        self.child.wait().expect("it was ours");
    }

    /// Starts it again where it was.
    pub fn restart(&mut self, folder: &Path) {
        let certificates = self.certificates.as_ref();
        self.child = Self::spawn(folder, self.client, self.peer, certificates);
    }

    pub fn settings(&self) -> EtcdSettings {
        let certificates = self.certificates.as_ref();
        let scheme = certificates.map_or("http", |_| "https");
        EtcdSettings {
            endpoints: vec![format!("{scheme}://127.0.0.1:{}", self.client)],
            prefix: "/atlas/edges/".to_owned(),
            ca: certificates.map(|it| it.ca.clone()),
            identity: certificates.map(|it| it.identity.clone()),
            user: None,
            password_file: None,
        }
    }
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
