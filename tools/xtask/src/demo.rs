//! `cargo xtask demo`: a film is made, served by Atlas over a TAP, and played from the wire.
//!
//! The film is synthetic (ffmpeg's test picture and a tone), cut into HLS segments. ffmpeg plays it
//! three times: from the disk, over HTTP and over HTTPS through Atlas; every decoded frame must be
//! the same. The certificate is made for the demo, and nobody vouches for it.
//! With `--once` all of it happens in a network namespace; otherwise the TAP is the host's and the
//! film stays up until Ctrl-C.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::harness::certificate::{Identity, IdentityFiles};
use crate::harness::film::{self, FRAME_RATE};
use crate::harness::namespace::Namespace;
use crate::harness::server::{Server, atlas_binary};
use crate::harness::{interrupt, is_root, own_program, scratch_directory};
use crate::packages::{self, privileged};

/// The film's length, seconds.
const FILM_SECONDS: u32 = 20;

/// The length of a segment, seconds.
const SEGMENT_SECONDS: u32 = 4;

/// The playlist's name.
const PLAYLIST: &str = "index.m3u8";

/// Where Atlas answers when it is not told otherwise.
const ADDRESS: &str = "10.77.0.2";

/// Options of `demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoOptions {
    /// Ends after the check instead of serving until Ctrl-C; touches only a namespace of its own
    #[arg(long)]
    once: bool,
    /// The server to show (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

/// Shows Atlas at work; fails unless the film came over the wire unchanged.
pub(crate) fn run_command(options: &DemoOptions) -> Result<()> {
    packages::ensure_installed(&packages::FOR_DEMO)?;
    let atlas = atlas_binary(options.atlas.as_deref())?;
    if is_root() {
        return show(options.once, &atlas);
    }
    // Only now root's rights: cargo above has built as the user it belongs to.
    let mut command = privileged("env")?;
    command
        .arg(own_program()?)
        .arg("demo")
        .arg("--atlas")
        .arg(&atlas);
    if options.once {
        command.arg("--once");
    }
    let status = command.status().context("starting sudo")?;
    ensure!(status.success(), "the demo failed");
    Ok(())
}

fn show(once: bool, atlas: &Path) -> Result<()> {
    let film = scratch_directory("demo")?;
    println!("making a film of {FILM_SECONDS} s");
    make_film(film.path())?;
    let place = if once {
        Some(Namespace::new("demo")?)
    } else {
        None
    };
    let inside = |program: &str| match &place {
        Some(namespace) => namespace.command(program),
        None => Command::new(program),
    };
    let papers = scratch_directory("certificate")?;
    let identity = Identity::self_signed(&[ADDRESS])?.write(papers.path(), "demo")?;
    let mut command = inside("env");
    command.arg(atlas).arg("serve").arg(film.path());
    command
        .args(["--https", "443", "--cert"])
        .arg(&identity.certificate);
    command.arg("--key").arg(&identity.key);
    let server = Server::atlas(&mut command)?;
    let url = |scheme| url_of(&server.ready, scheme);
    let (http, https) = (url("http")?, url("https")?);
    println!("atlas serves {http} and {https}");

    let playlist = film.path().join(PLAYLIST);
    let expected = film::play(Command::new("ffmpeg"), &[], &playlist.to_string_lossy())?;
    compare(&expected, inside("ffmpeg"), &http, &[])?;
    let certificate = identity.certificate.to_string_lossy();
    let trust = ["-tls_verify", "1", "-ca_file", &certificate];
    compare(&expected, inside("ffmpeg"), &https, &trust)?;
    println!("every decoded frame is the same as from the disk");
    if !once {
        invite(&http, &https, &identity);
        while !interrupt::is_set() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    report(server)
}

/// The playlist's URL, made of the one of this scheme in the server's `ready` line.
fn url_of(ready: &str, scheme: &str) -> Result<String> {
    let root = ready
        .split_whitespace()
        .find(|word| word.split_once("://").is_some_and(|(it, _)| it == scheme))
        .with_context(|| format!("the ready line has no URL of {scheme}: {ready}"))?;
    Ok(format!("{}/{PLAYLIST}", root.trim_end_matches('/')))
}

/// Plays the film over the wire; each frame must be the expected one.
fn compare(expected: &str, player: Command, url: &str, options: &[&str]) -> Result<()> {
    let start = Instant::now();
    let received = film::play(player, options, url)?;
    println!(
        "played {url} in {:.1} s: {} frames of picture and sound",
        start.elapsed().as_secs_f64(),
        film::frames(&received)
    );
    ensure!(
        received == expected,
        "what came over the wire is not what is on the disk"
    );
    Ok(())
}

/// Says how to see it.
fn invite(http: &str, https: &str, identity: &IdentityFiles) {
    let certificate = identity.certificate.display();
    println!("\nopen it in a player until Ctrl-C:");
    println!("  ffplay {http}\n  ffplay {https}\n  curl -O {http}");
    println!("  curl --cacert {certificate} -O {https}");
    println!("Nobody vouches for the certificate: curl -k goes on without, a browser asks first.");
}

/// Makes a playlist and its segments in `folder`.
fn make_film(folder: &Path) -> Result<()> {
    // A key frame at the start of each segment, and nowhere else.
    let group = (FRAME_RATE * SEGMENT_SECONDS).to_string();
    let segment = SEGMENT_SECONDS.to_string();
    let mut options = vec!["-g", &group, "-keyint_min", &group, "-sc_threshold", "0"];
    options.extend(["-b:v", "4M", "-f", "hls", "-hls_playlist_type", "vod"]);
    options.extend(["-hls_time", &segment]);
    film::make(&folder.join(PLAYLIST), FILM_SECONDS, "1280x720", &options)
}

/// Ends the server and prints what it counted.
fn report(server: Server) -> Result<()> {
    let stopped = server.stop()?;
    ensure!(
        stopped.status.success(),
        "{}: {}",
        stopped.status,
        stopped.stderr.trim()
    );
    let count = |name: &str| stopped.counter(name);
    println!("what the server counted:");
    for (what, name) in [
        ("replies", "http_reply_count"),
        ("TLS handshakes", "tls_handshake_count"),
        ("reads from the disk", "session_read_count"),
        ("bytes read", "disk_read_bytes"),
        ("bytes sent", "tcp_send_bytes"),
        ("segments sent again", "tcp_retransmit_segments"),
        ("CPU time in user mode, us", "cpu_user_us"),
        ("CPU time in the kernel, us", "cpu_system_us"),
    ] {
        println!("  {:>12} {what}", count(name)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::url_of;

    #[test]
    fn the_ready_line_has_a_url_of_each_scheme_or_none() {
        let ready = "ready http://10.77.0.2/ https://10.77.0.2:8443/ link=tap:atlas0";
        let url = |scheme| url_of(ready, scheme).expect("a URL");
        assert_eq!(url("http"), "http://10.77.0.2/index.m3u8");
        assert_eq!(url("https"), "https://10.77.0.2:8443/index.m3u8");
        assert!(url_of("ready http://10.77.0.2/", "https").is_err());
    }
}
