//! Hostile clients at the TLS port: bytes that are not TLS, and handshakes that never end.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::Fixture;
use crate::netns::files::{self, LARGE_BYTES};
use crate::netns::setup::Family;
use testbed::client::Client;
use testbed::suite::{Outcome, Suite};

/// Handshakes left unfinished at once, beside a transfer.
const UNFINISHED_HANDSHAKES: usize = 300;

/// Files fetched by others beside them.
const SIZES_BESIDE_BYTES: [u64; 4] = [1, 15_361, 300_000, 8 << 20];

/// First bytes that belong to no handshake; each is enough to see that.
const GARBAGE: [(&str, &[u8]); 8] = [
    ("zeros", &[0; 1000]),
    ("ones", &[0xff; 1000]),
    ("a record of no version", b"\x16\x09\x01\x00\x05hello"),
    ("a record too long", b"\x16\x03\x01\xff\xff\x01\x00\x00\x00"),
    ("an alert", b"\x15\x03\x01\x00\x02\x02\x28"),
    (
        "application data",
        b"\x17\x03\x03\x00\x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ),
    (
        "a hello that is none",
        b"\x16\x03\x01\x00\x08\x01\x00\x00\x04\xff\xff\xff\xff",
    ),
    (
        "a hello of SSL 2",
        b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80\x02\x00\x80\x03\x00\x80\
          \x04\x00\x80\x05\x00\x80\x06\x00\x40\x07\x00\xc0aaaaaaaaaaaaaaaa",
    ),
];

/// How far a client comes before it falls silent.
#[derive(Clone, Copy, Debug)]
enum Silence {
    FromTheStart,
    InTheHello,
    AfterTheHello,
}

impl Silence {
    const ALL: [Self; 3] = [Self::FromTheStart, Self::InTheHello, Self::AfterTheHello];

    fn what(self) -> &'static str {
        match self {
            Self::FromTheStart => "says nothing",
            Self::InTheHello => "says half a hello",
            Self::AfterTheHello => "never answers",
        }
    }
}

/// All checks of this kind.
pub(super) fn run(suite: &mut Suite, fixture: Fixture<'_>) {
    suite.run(&fixture.label("plain HTTP gets 400"), || plain(fixture));
    for (what, bytes) in GARBAGE {
        suite.run(&fixture.label(&format!("survives {what}")), || {
            garbage(fixture, bytes)
        });
    }
    for silence in Silence::ALL {
        let label = fixture.label(&format!("closes on who {}", silence.what()));
        suite.run(&label, || {
            let client = fall_silent(fixture, silence)?;
            fixture.serves_on()?;
            await_end(client)?;
            fixture.serves_on()
        });
    }
    let label = fixture.label(&format!(
        "{UNFINISHED_HANDSHAKES} unfinished handshakes beside a transfer"
    ));
    suite.run(&label, || unfinished_handshakes(fixture));
}

fn connect(fixture: Fixture<'_>) -> Result<Client> {
    Client::connect(
        fixture.setup.client(),
        fixture.setup.https_address(Family::V4)?,
    )
}

/// The reply is as plain as the request was.
fn plain(fixture: Fixture<'_>) -> Result<Outcome> {
    let mut client = connect(fixture)?;
    client.ask("GET", "/4096.mp4", "")?;
    let head = client.read_head()?;
    ensure!(head.status == 400, "{} instead of 400", head.status);
    client.read_to_end()?;
    fixture.serves_on()
}

/// Whatever the server says, it closes, and nobody else is hurt.
fn garbage(fixture: Fixture<'_>, bytes: &[u8]) -> Result<Outcome> {
    let mut client = connect(fixture)?;
    client.send(bytes)?;
    client.read_to_end()?;
    fixture.serves_on()
}

/// Connects, and comes as far as that.
fn fall_silent(fixture: Fixture<'_>, silence: Silence) -> Result<Client> {
    let mut client = connect(fixture)?;
    let hello = hello()?;
    match silence {
        Silence::FromTheStart => {}
        Silence::InTheHello => client.send(&hello[..hello.len() / 2])?,
        Silence::AfterTheHello => client.send(&hello)?,
    }
    Ok(client)
}

/// The first flight of a client that offers all it knows.
fn hello() -> Result<Vec<u8>> {
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("first.test").context("a name")?;
    let mut connection = ClientConnection::new(Arc::new(config), name)?;
    let mut hello = Vec::new();
    connection.write_tls(&mut hello)?;
    Ok(hello)
}

/// Waits until the server has given a client up. The client's own timeout is above any
/// of the server under test.
fn await_end(mut client: Client) -> Result<()> {
    client
        .read_to_end()
        .map(drop)
        .context("the server does not close")
}

/// A large transfer goes on and small ones come and go while hundreds wait for nothing.
fn unfinished_handshakes(fixture: Fixture<'_>) -> Result<Outcome> {
    let content = files::content(LARGE_BYTES);
    let half = LARGE_BYTES / 2;
    let mut curl = files::begin(
        fixture.setup,
        fixture.access(),
        Family::V4,
        LARGE_BYTES,
        &[],
    )?;
    curl.read_checked(content, 0, half)?;
    let mut clients = Vec::new();
    for silence in Silence::ALL.into_iter().cycle().take(UNFINISHED_HANDSHAKES) {
        clients.push(fall_silent(fixture, silence)?);
    }
    for size in SIZES_BESIDE_BYTES {
        files::fetch(fixture.setup, fixture.access(), Family::V4, size)?;
    }
    curl.read_checked(content, half, LARGE_BYTES - half)?;
    curl.finish()?;
    clients.into_iter().try_for_each(await_end)?;
    fixture.serves_on()
}
