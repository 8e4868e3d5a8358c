//! One TLS thing at a time, by `openssl s_client`: resumption, new keys, versions, ALPN.

use anyhow::{Context as _, Result, ensure};

use super::Fixture;
use crate::netns::files::{self, LARGE_BYTES, name};
use crate::netns::setup::Family;
use testbed::content::Content;
use testbed::find_program;
use testbed::openssl::{TlsClient, TlsEnd};
use testbed::suite::{Outcome, Suite};

/// A client's offer that is refused, and what openssl says of the alert it gets.
struct Refusal {
    what: &'static str,
    arguments: &'static [&'static str],
    /// Any of these.
    alerts: &'static [&'static str],
}

/// `SECLEVEL=0` lets the client offer what it thinks too weak itself.
const REFUSALS: [Refusal; 5] = [
    Refusal {
        what: "TLS 1.1",
        arguments: &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        // rustls misses the signature algorithms first, which TLS 1.1 has none of.
        alerts: &["alert protocol version", "alert handshake failure"],
    },
    Refusal {
        what: "a suite of TLS 1.2 without AEAD",
        arguments: &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"],
        alerts: &["alert handshake failure"],
    },
    Refusal {
        what: "a suite of TLS 1.3 that is not ours",
        arguments: &["-tls1_3", "-ciphersuites", "TLS_AES_128_CCM_SHA256"],
        alerts: &["alert handshake failure"],
    },
    Refusal {
        what: "a group that is not ours",
        arguments: &["-tls1_3", "-groups", "ffdhe2048"],
        alerts: &["alert handshake failure"],
    },
    Refusal {
        what: "HTTP/2 only",
        arguments: &["-alpn", "h2"],
        alerts: &["alert no application protocol"],
    },
];

/// All checks of this kind.
pub(super) fn run(suite: &mut Suite, fixture: Fixture<'_>) {
    let mut check = |what: &str, check: &dyn Fn() -> Result<Outcome>| {
        suite.run(&fixture.label(what), || {
            if find_program("openssl").is_none() {
                return Ok(Outcome::Skipped("openssl is not installed".to_owned()));
            }
            check()
        });
    };
    for version in ["-tls1_3", "-tls1_2"] {
        let label = format!("session resumed, openssl {version}");
        check(&label, &|| resumption(fixture, version));
    }
    check("client's new keys between and amid replies", &|| {
        key_updates(fixture)
    });
    check("renegotiation refused", &|| renegotiation(fixture));
    check("ALPN: HTTP/1.1 it is", &|| protocol(fixture));
    for refusal in &REFUSALS {
        check(&format!("refuses {}", refusal.what), &|| {
            refused(fixture, refusal)
        });
    }
}

/// Starts openssl; it trusts our authority only, and says when it is dissatisfied.
fn connect(fixture: Fixture<'_>, arguments: &[&str]) -> Result<TlsClient> {
    let authority = fixture
        .identities
        .authority_file()
        .to_string_lossy()
        .into_owned();
    let mut all = vec!["-CAfile", &authority, "-verify_return_error"];
    all.extend(arguments);
    let address = fixture.setup.https_address(Family::V4)?;
    TlsClient::start(fixture.setup.client(), address, &all)
}

/// Asks for the file of a size; the server is to close afterwards.
fn ask_last(client: &mut TlsClient, size_bytes: u64) -> Result<()> {
    let path = name(size_bytes);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
}

/// The last reply among all that was printed must be this file.
fn expect_body(end: &TlsEnd, content: Content) -> Result<()> {
    let find = |bytes: &[u8], words: &[u8]| {
        let mut windows = bytes.windows(words.len());
        windows.rposition(|window| window == words)
    };
    let size = usize::try_from(content.size_bytes)?;
    let head = find(&end.stdout, b"HTTP/1.1 200 ")
        .with_context(|| format!("no reply: {}", end.stderr.trim()))?;
    let length = end.stdout[head..]
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("a head without an end")?;
    let body = &end.stdout[head + length + 4..];
    ensure!(body.len() >= size, "{} of {size} bytes", body.len());
    content.check(0, &body[..size])
}

fn resumption(fixture: Fixture<'_>, version: &str) -> Result<Outcome> {
    let file = fixture
        .identities
        .directory()
        .join(format!("session{version}"));
    let file = file.to_string_lossy();
    for (direction, expected) in [("-sess_out", "New, "), ("-sess_in", "Reused, ")] {
        let mut client = connect(fixture, &[version, direction, &file])?;
        client.await_handshake()?;
        ask_last(&mut client, 300_000)?;
        let end = client.finish()?;
        end.expect(expected)?;
        expect_body(&end, files::content(300_000))?;
    }
    Ok(Outcome::Passed)
}

/// `K` asks for ours in return, `k` does not (RFC 8446 s4.6.3).
fn key_updates(fixture: Fixture<'_>) -> Result<Outcome> {
    let mut client = connect(fixture, &["-tls1_3"])?;
    client.await_handshake()?;
    client.command("K", "KEYUPDATE")?;
    client.send(format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", name(300_000)).as_bytes())?;
    let content = files::content(300_000);
    let mut tail = [0; 64];
    content.fill(300_000 - 64, &mut tail);
    client.await_bytes(&tail)?;
    client.command("k", "KEYUPDATE")?;
    client.command("K", "KEYUPDATE")?;
    ask_last(&mut client, LARGE_BYTES)?;
    let mut first = [0; 64];
    files::content(LARGE_BYTES).fill(0, &mut first);
    client.await_bytes(&first)?;
    for letter in ["K", "k", "K"] {
        client.command(letter, "KEYUPDATE")?;
    }
    let end = client.finish()?;
    expect_body(&end, files::content(LARGE_BYTES))?;
    Ok(Outcome::Passed)
}

/// Whoever asks may be left with a broken connection, but gets no second handshake.
fn renegotiation(fixture: Fixture<'_>) -> Result<Outcome> {
    let mut client = connect(fixture, &["-tls1_2"])?;
    client.await_handshake()?;
    client.command("R", "RENEGOTIATING")?;
    let end = client.finish()?;
    end.expect("no renegotiation")?;
    fixture.serves_on()
}

fn protocol(fixture: Fixture<'_>) -> Result<Outcome> {
    for (arguments, expected) in [
        (&["-alpn", "h2,http/1.1"][..], "ALPN protocol: http/1.1"),
        (&[][..], "No ALPN negotiated"),
    ] {
        let mut client = connect(fixture, arguments)?;
        client.await_handshake()?;
        ask_last(&mut client, 4096)?;
        let end = client.finish()?;
        end.expect(expected)?;
        expect_body(&end, files::content(4096))?;
    }
    Ok(Outcome::Passed)
}

fn refused(fixture: Fixture<'_>, refusal: &Refusal) -> Result<Outcome> {
    let end = connect(fixture, refusal.arguments)?.finish()?;
    ensure!(
        refusal.alerts.iter().any(|alert| end.says(alert)),
        "none of {:?}: {}",
        refusal.alerts,
        end.stderr.trim()
    );
    fixture.serves_on()
}
