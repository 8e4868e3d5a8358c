//! `cargo xtask demo`: a film is made, served by Atlas over a TAP, and played from the wire.
//!
//! The film is synthetic (ffmpeg's test picture and a tone), cut into HLS segments. ffmpeg plays it
//! twice, from the disk and over HTTP through Atlas, and every decoded frame must be the same.
//! With `--once` all of it happens in a network namespace; otherwise the TAP is the host's and the
//! film stays up until Ctrl-C.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::harness::namespace::Namespace;
use crate::harness::process::output;
use crate::harness::server::{Server, atlas_binary};
use crate::harness::{interrupt, is_root, own_program, scratch_directory};
use crate::packages::{self, privileged};

/// The film's length, seconds.
const FILM_SECONDS: u32 = 20;

/// The length of a segment, seconds.
const SEGMENT_SECONDS: u32 = 4;

/// Pictures a second.
const FRAME_RATE: u32 = 25;

/// The playlist's name.
const PLAYLIST: &str = "index.m3u8";

/// Making or playing the film takes seconds.
const LIMIT: Duration = Duration::from_secs(300);

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
    let server = Server::atlas(inside("env").arg(atlas).arg("serve").arg(film.path()))?;
    let url = server
        .ready
        .split_whitespace()
        .nth(1)
        .context("the ready line has no URL")?;
    let url = format!("{}/{PLAYLIST}", url.trim_end_matches('/'));
    println!("atlas serves {url}");

    let expected = play(
        Command::new("ffmpeg"),
        &film.path().join(PLAYLIST).to_string_lossy(),
    )?;
    let start = Instant::now();
    let received = play(inside("ffmpeg"), &url)?;
    println!(
        "played over the wire in {:.1} s: {} frames of picture and sound",
        start.elapsed().as_secs_f64(),
        frames(&received)
    );
    ensure!(frames(&expected) > 0, "the film has no frames");
    ensure!(
        received == expected,
        "what came over the wire is not what is on the disk"
    );
    println!("every decoded frame is the same as from the disk");
    if !once {
        println!("\nopen it in a player until Ctrl-C:\n  ffplay {url}\n  curl -O {url}");
        while !interrupt::is_set() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    report(server)
}

/// Makes a playlist and its segments in `folder`.
fn make_film(folder: &Path) -> Result<()> {
    let picture = format!("testsrc2=size=1280x720:rate={FRAME_RATE}:duration={FILM_SECONDS}");
    let sound = format!("sine=frequency=440:sample_rate=48000:duration={FILM_SECONDS}");
    // A key frame at the start of each segment, and nowhere else.
    let group = (FRAME_RATE * SEGMENT_SECONDS).to_string();
    let mut command = Command::new("ffmpeg");
    command.args([
        "-v", "error", "-f", "lavfi", "-i", &picture, "-f", "lavfi", "-i", &sound,
    ]);
    command.args([
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-pix_fmt",
        "yuv420p",
    ]);
    command.args([
        "-g",
        &group,
        "-keyint_min",
        &group,
        "-sc_threshold",
        "0",
        "-b:v",
        "4M",
    ]);
    command.args([
        "-c:a",
        "aac",
        "-b:a",
        "128k",
        "-f",
        "hls",
        "-hls_playlist_type",
        "vod",
    ]);
    command
        .args(["-hls_time", &SEGMENT_SECONDS.to_string()])
        .arg(folder.join(PLAYLIST));
    let output = output(&mut command, LIMIT)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ffmpeg made no film: {}",
        complaint.trim()
    );
    Ok(())
}

/// Decodes a film and returns the MD5 of each of its frames, one line each.
fn play(mut player: Command, source: &str) -> Result<String> {
    player.args([
        "-v", "error", "-i", source, "-map", "0", "-f", "framemd5", "-",
    ]);
    let output = output(&mut player, LIMIT)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ffmpeg cannot play {source}: {}",
        complaint.trim()
    );
    String::from_utf8(output.stdout).context("framemd5 is text")
}

/// Frames in a framemd5 listing; its comments begin with `#`.
fn frames(listing: &str) -> usize {
    listing
        .lines()
        .filter(|line| !line.starts_with('#'))
        .count()
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
    use super::frames;

    #[test]
    fn comments_are_not_frames() {
        assert_eq!(
            frames("#format: frame checksums\n#hash: MD5\n0, 0, 0, 1, 9, abc\n"),
            1
        );
    }
}
