//! Replies over TLS by curl: ranges, one connection for many, every suite, the right certificate.

use anyhow::{Context as _, Result, ensure};

use super::Fixture;
use crate::netns::files::{self, LARGE_BYTES, name};
use crate::netns::identities::Identities;
use crate::netns::setup::Family;
use testbed::curl::Curl;
use testbed::suite::{Outcome, Suite};

/// Records a key may seal in the group that changes keys often.
pub(crate) const KEY_RECORDS_MAX: u64 = 64;

/// The files every suite is tried with: a chunk of a film, and enough that records are long.
const SUITE_SIZES_BYTES: [u64; 2] = [300_000, 8 << 20];

/// First and last byte of ranges of the file of 300,000: on both sides of a block, of a record of
/// 15 blocks, of the largest record; one byte; the end.
const RANGES: [(u64, u64); 12] = [
    (0, 0),
    (4095, 4096),
    (4096, 8191),
    (1, 15_359),
    (15_360, 30_719),
    (15_361, 30_720),
    (16_383, 16_384),
    (3, 65_535),
    (65_536, 299_999),
    (122_879, 122_881),
    (299_999, 299_999),
    (7, 299_998),
];

/// curl's options for a suite, and what openssl calls it. TLS 1.2 suites name the kind of key, and
/// thereby the certificate.
struct TlsSuite {
    version: &'static str,
    name: &'static str,
}

const fn tls_suite(version: &'static str, name: &'static str) -> TlsSuite {
    TlsSuite { version, name }
}

/// All that TLS 1.3 has, and the AEAD suites of TLS 1.2 that RFC 9325 s4.2 leaves.
const SUITES: [TlsSuite; 9] = [
    tls_suite("1.3", "TLS_AES_128_GCM_SHA256"),
    tls_suite("1.3", "TLS_AES_256_GCM_SHA384"),
    tls_suite("1.3", "TLS_CHACHA20_POLY1305_SHA256"),
    tls_suite("1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    tls_suite("1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    tls_suite("1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    tls_suite("1.2", "ECDHE-RSA-AES128-GCM-SHA256"),
    tls_suite("1.2", "ECDHE-RSA-AES256-GCM-SHA384"),
    tls_suite("1.2", "ECDHE-RSA-CHACHA20-POLY1305"),
];

impl TlsSuite {
    fn curl_options(&self) -> [&str; 5] {
        match self.version {
            "1.3" => ["-v", "--tls-max", "1.3", "--tls13-ciphers", self.name],
            _ => ["-v", "--tls-max", "1.2", "--ciphers", self.name],
        }
    }

    /// A host with a key of the right kind.
    fn host(&self) -> &'static str {
        if self.name.contains("RSA-") && !self.name.contains("ECDSA-") {
            Identities::SECOND
        } else {
            Identities::FIRST
        }
    }
}

/// All checks of this kind.
pub(crate) fn run(suite: &mut Suite, fixture: Fixture<'_>) {
    for family in Family::BOTH {
        let label = fixture.label(&format!("{} ranges on one connection", family.name()));
        suite.run(&label, || ranges(fixture, family));
    }
    suite.run(&fixture.label("many requests on one connection"), || {
        one_connection(fixture)
    });
    for tls_suite in &SUITES {
        let label = fixture.label(&format!("TLS {} {}", tls_suite.version, tls_suite.name));
        suite.run(&label, || by_suite(fixture, tls_suite));
    }
    suite.run(&fixture.label("the certificate for the name"), || {
        names(fixture)
    });
}

/// Every range by one curl, which keeps its connection.
fn ranges(fixture: Fixture<'_>, family: Family) -> Result<Outcome> {
    const SIZE: u64 = 300_000;
    let url = fixture.access().url(fixture.setup, family, &name(SIZE))?;
    let mut arguments = Vec::new();
    for (first, last) in RANGES {
        if !arguments.is_empty() {
            arguments.push("--next".to_owned());
            // What is not said again is forgotten.
            arguments.extend(["--silent", "--show-error", "--fail"].map(str::to_owned));
        }
        arguments.extend(fixture.access().options());
        arguments.extend(["--range".to_owned(), format!("{first}-{last}")]);
        arguments.extend(COUNTED.map(str::to_owned));
        arguments.push(url.clone());
    }
    let mut curl = Curl::start(fixture.setup.client(), &arguments)?;
    for (first, last) in RANGES {
        curl.read_checked(files::content(SIZE), first, last - first + 1)
            .with_context(|| format!("{first}-{last}"))?;
    }
    expect_one_connection(&curl.finish()?, "206", RANGES.len())
}

/// Makes curl say, for each reply, its status and how many connections it took.
const COUNTED: [&str; 2] = ["--write-out", "%{stderr}%{http_code} %{num_connects}\n"];

fn expect_one_connection(said: &str, status: &str, replies: usize) -> Result<Outcome> {
    let lines: Vec<&str> = said.lines().collect();
    let expected = (0..replies).map(|index| format!("{status} {}", u8::from(index == 0)));
    ensure!(lines.iter().copied().eq(expected), "{said:?}");
    Ok(Outcome::Passed)
}

/// Small and large files in turn: records start short, grow, and stay so.
fn one_connection(fixture: Fixture<'_>) -> Result<Outcome> {
    let sizes = [1, 300_000, 0, 8 << 20, 15_361, 4096, 8 << 20, 16_385];
    let mut arguments = fixture.access().options();
    arguments.extend(COUNTED.map(str::to_owned));
    for size in sizes {
        arguments.push(
            fixture
                .access()
                .url(fixture.setup, Family::V4, &name(size))?,
        );
    }
    let mut curl = Curl::start(fixture.setup.client(), &arguments)?;
    for size in sizes {
        curl.read_checked(files::content(size), 0, size)?;
    }
    expect_one_connection(&curl.finish()?, "200", sizes.len())
}

fn by_suite(fixture: Fixture<'_>, tls_suite: &TlsSuite) -> Result<Outcome> {
    let mut arguments = fixture.access().options();
    arguments.extend(tls_suite.curl_options().map(str::to_owned));
    for size in SUITE_SIZES_BYTES {
        arguments.extend(fixture.named(tls_suite.host(), size)?);
    }
    let mut curl = Curl::start(fixture.setup.client(), &arguments)?;
    for size in SUITE_SIZES_BYTES {
        curl.read_checked(files::content(size), 0, size)?;
    }
    let said = curl.finish()?;
    let expected = format!(
        "SSL connection using TLSv{} / {}",
        tls_suite.version, tls_suite.name
    );
    ensure!(said.contains(&expected), "not {expected:?}: {said}");
    Ok(Outcome::Passed)
}

/// curl checks the name itself; who names nobody known is shown the first certificate.
fn names(fixture: Fixture<'_>) -> Result<Outcome> {
    for host in [Identities::FIRST, Identities::SECOND] {
        let mut arguments = fixture.access().options();
        arguments.extend(fixture.named(host, 4096)?);
        let mut curl = Curl::start(fixture.setup.client(), &arguments)?;
        curl.read_checked(files::content(4096), 0, 4096)?;
        curl.finish().context(host)?;
    }
    let mut arguments = vec!["--insecure".to_owned(), "--verbose".to_owned()];
    arguments.extend(fixture.named("unknown.test", 4096)?);
    let mut curl = Curl::start(fixture.setup.client(), &arguments)?;
    curl.read_checked(files::content(4096), 0, 4096)?;
    let said = curl.finish()?;
    let expected = format!("subject: CN={}", Identities::FIRST);
    ensure!(said.contains(&expected), "not {expected:?}: {said}");
    Ok(Outcome::Passed)
}

/// A large file while keys change every [`KEY_RECORDS_MAX`] records.
pub(crate) fn run_many_keys(suite: &mut Suite, fixture: Fixture<'_>) {
    let label = fixture.label(&format!("a new key every {KEY_RECORDS_MAX} records"));
    suite.run(&label, || {
        files::fetch(fixture.setup, fixture.access(), Family::V4, LARGE_BYTES)?;
        files::fetch(fixture.setup, fixture.access(), Family::V4, 4097).context("afterwards")?;
        Ok(Outcome::Passed)
    });
}
