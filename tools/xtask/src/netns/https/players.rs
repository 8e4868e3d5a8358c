//! Films and pages over TLS by programs with TLS of their own: ffmpeg and a browser.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::Fixture;
use crate::netns::files::{self, name};
use crate::netns::setup::Family;
use testbed::process::{output, run as run_command};
use testbed::suite::{Outcome, Suite};
use testbed::{film, find_program, scratch_directory};

/// The film's name; its index is at its end, so players ask for ranges.
const FILM: &str = "film.mov.mp4";

/// The film's length, seconds. The browser plays it at its own pace.
const FILM_SECONDS: u32 = 2;

/// A browser that has not finished by then never will.
const BROWSER_LIMIT: Duration = Duration::from_secs(60);

/// What the page fetches: the size of a file, the first byte and how many.
const PIECES: [(u64, u64, u64); 5] = [
    (8 << 20, 0, 8 << 20),
    (300_000, 0, 300_000),
    (300_000, 5, 99_996),
    (300_000, 15_359, 15_362),
    (8 << 20, (8 << 20) - 77, 77),
];

/// All checks of this kind.
pub(crate) fn run(suite: &mut Suite, fixture: Fixture<'_>) {
    let has_ffmpeg = find_program("ffmpeg").is_some();
    let film = fixture.library.root().join(FILM);
    suite.run(&fixture.label("film bit-exact by ffmpeg"), || {
        if !has_ffmpeg {
            return Ok(Outcome::Skipped("ffmpeg is not installed".to_owned()));
        }
        if !film.exists() {
            film::make(&film, FILM_SECONDS, "320x180", &[])?;
        }
        by_ffmpeg(fixture)
    });
    suite.run(&fixture.label("page and film in a browser"), || {
        if find_program("chromium").is_none() {
            return Ok(Outcome::Skipped("chromium is not installed".to_owned()));
        }
        by_browser(fixture, film.exists())
    });
}

/// Over the wire with the certificate checked, and from the disk: the same frames.
fn by_ffmpeg(fixture: Fixture<'_>) -> Result<Outcome> {
    let expected = film::play(
        Command::new("ffmpeg"),
        &[],
        &fixture.library.root().join(FILM).to_string_lossy(),
    )?;
    let authority = fixture.identities.authority_file();
    let options = ["-tls_verify", "1", "-ca_file", &authority.to_string_lossy()];
    let url = fixture
        .access()
        .url(fixture.setup, Family::V4, &format!("/{FILM}"))?;
    let received = film::play(fixture.setup.client().command("ffmpeg"), &options, &url)?;
    ensure!(received == expected, "frames differ");
    Ok(Outcome::Passed)
}

/// The page fetches pieces and plays the film; the browser prints what became of the page.
fn by_browser(fixture: Fixture<'_>, has_film: bool) -> Result<Outcome> {
    let home = scratch_directory("browser")?;
    let page = "page.html";
    fs::write(fixture.library.root().join(page), page_text(has_film))?;
    let url = fixture
        .access()
        .url(fixture.setup, Family::V4, &format!("/{page}"))?;
    let mut command = fixture.setup.client().command("env");
    command.arg(format!("HOME={}", home.path().display()));
    command.args(["chromium", "--headless", "--no-sandbox", "--disable-gpu"]);
    command.args(["--disable-dev-shm-usage", "--ignore-certificate-errors"]);
    command.arg("--autoplay-policy=no-user-gesture-required");
    command.arg(format!("--user-data-dir={}", home.path().display()));
    command.args(["--dump-dom", &url]);
    let output = output(&mut command, BROWSER_LIMIT)?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "chromium: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let mut expected = String::new();
    for (size, first, count) in PIECES {
        let hash = hash_of(size, first, count)?;
        expected += &format!("{} {first} {count} {hash}\n", name(size));
    }
    if has_film {
        expected += &format!("film {FILM_SECONDS} s 320x180\n");
    }
    let said = text
        .split_once("<pre id=\"out\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .map(|(said, _)| said)
        .with_context(|| format!("not our page: {text}"))?;
    ensure!(said == expected, "{said:?} instead of {expected:?}");
    Ok(Outcome::Passed)
}

/// SHA-256 of a piece of a file, by coreutils: not by anything the server is made of.
fn hash_of(size: u64, first: u64, count: u64) -> Result<String> {
    let mut piece = vec![0; usize::try_from(count)?];
    files::content(size).fill(first, &mut piece);
    let directory = scratch_directory("piece")?;
    let file = directory.path().join("piece");
    fs::write(&file, piece)?;
    let said = run_command(Command::new("sha256sum").arg(&file))?;
    Ok(said.split(' ').next().unwrap_or_default().to_owned())
}

/// The page. A frame whose document stays open holds the page's `load` event back, and with it
/// the moment at which the browser prints, until the script is through.
fn page_text(has_film: bool) -> String {
    let pieces: Vec<String> = PIECES
        .iter()
        .map(|(size, first, count)| format!("['{}', {first}, {count}]", name(*size)))
        .collect();
    let film = if has_film {
        format!("await play('/{FILM}');")
    } else {
        String::new()
    };
    format!(
        r"<!doctype html><meta charset=utf-8><title>pieces</title>
<pre id=out></pre><video id=film muted></video><iframe id=hold></iframe>
<script>
const hold = document.getElementById('hold').contentDocument;
hold.open();
const say = line => {{ document.getElementById('out').textContent += line + '\n'; }};
const hex = bytes => [...new Uint8Array(bytes)].map(b => b.toString(16).padStart(2, '0')).join('');
async function fetchPiece([path, first, count]) {{
  const range = `bytes=${{first}}-${{first + count - 1}}`;
  const reply = await fetch(path, {{headers: {{Range: range}}, cache: 'no-store'}});
  if (reply.status != 206) throw `${{path}}: ${{reply.status}}`;
  const bytes = await reply.arrayBuffer();
  const hash = hex(await crypto.subtle.digest('SHA-256', bytes));
  return `${{path}} ${{first}} ${{bytes.byteLength}} ${{hash}}`;
}}
function play(path) {{
  return new Promise((done, failed) => {{
    const film = document.getElementById('film');
    film.onended = () => {{
      say(`film ${{Math.round(film.currentTime)}} s ${{film.videoWidth}}x${{film.videoHeight}}`);
      done();
    }};
    film.onerror = () => failed(`film: ${{film.error.message}}`);
    film.src = path;
    film.play().catch(failed);
  }});
}}
(async () => {{
  try {{
    // All at once: the browser opens several connections.
    (await Promise.all([{}].map(fetchPiece))).forEach(say);
    {film}
  }} catch (error) {{
    say(error);
  }}
  hold.close();
}})();
</script>
",
        pieces.join(", ")
    )
}
