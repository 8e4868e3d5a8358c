//! `make demo`: a film is made, served by Atlas over a TAP, and played from the wire; without root over a relay.
//!
//! A program of its own, so that nothing else is compiled before the first film.
//!
//! The film is synthetic (ffmpeg's test picture and a tone), cut into HLS segments. ffmpeg plays it
//! three times: from the disk, over HTTP and over HTTPS through Atlas; every decoded frame must be
//! the same. The certificate is made for the demo, and nobody vouches for it. For browsers there is a
//! page that plays the film as one MP4 file, which they all can; it is fetched, too.
//! With `--once` it ends then, and as root all of it happens in a network namespace; otherwise the TAP is the
//! host's and the film stays up until Ctrl-C. Bounded by: a limit on every wait.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool speaks to its terminal"
)]

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use testbed::certificate::{Identity, IdentityFiles};
use testbed::client::Client;
use testbed::film::{self, FRAME_RATE};
use testbed::namespace::Namespace;
use testbed::packages;
use testbed::program::Program;
use testbed::server::Server;
use testbed::{interrupt, is_root, scratch_directory};

/// The film's length, seconds.
const FILM_SECONDS: u32 = 20;

/// The length of a segment, seconds.
const SEGMENT_SECONDS: u32 = 4;

/// The playlist's name.
const PLAYLIST: &str = "index.m3u8";

/// The film as one file, and the page that plays it: what the server has for `/`.
const WHOLE_FILM: &str = "film.mp4";
const PAGE_FILE: &str = "index.html";
const PAGE: &str = r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Atlas</title>
<style>
  body { font: 1rem/1.5 sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
  video { background: black; width: 100% }
</style>
<h1>Atlas</h1>
<video src="film.mp4" controls autoplay muted loop playsinline></video>
<p>Every jump in the film is a range request. The same film in segments, for players of HLS:
<a href="index.m3u8">index.m3u8</a></p>
</html>
"#;

/// Where Atlas answers when it is not told otherwise.
const ADDRESS: &str = "10.77.0.2";

/// Where a relay takes clients.
const RELAY: &str = "127.0.0.1";

/// Plays a film over the wire and compares every frame: over a TAP as root, else through the host's TCP
#[derive(Parser, Clone, Debug)]
#[command(name = "atlas-demo", version)]
struct Options {
    /// Ends after the check instead of serving until Ctrl-C; as root touches only a namespace of its own
    #[arg(long)]
    once: bool,
    /// The server to show (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match interrupt::catch().and_then(|()| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            interrupt::exit_code().map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// Shows Atlas at work; fails unless the film came over the wire unchanged.
fn run(options: &Options) -> Result<()> {
    // One waits for the network, the other for processors.
    let (installed, atlas) = std::thread::scope(|scope| {
        let installed = scope.spawn(|| packages::ensure_installed(&packages::FOR_DEMO));
        if options.atlas.is_none() {
            println!("building the server; the first time takes some minutes");
        }
        let atlas = Program::Atlas.find(options.atlas.as_deref());
        (installed.join(), atlas)
    });
    installed.map_err(|_| anyhow::anyhow!("the installation panicked"))??;
    show(options.once, &atlas?)
}

fn show(once: bool, atlas: &Path) -> Result<()> {
    let film = scratch_directory("demo")?;
    println!("making a film of {FILM_SECONDS} s");
    make_film(film.path())?;
    let place = if once && is_root() {
        Some(Namespace::new("demo")?)
    } else {
        None
    };
    let inside = |program: &str| match &place {
        Some(namespace) => namespace.command(program),
        None => Command::new(program),
    };
    let papers = scratch_directory("certificate")?;
    let identity = Identity::self_signed(&[ADDRESS, RELAY])?.write(papers.path(), "demo")?;
    let mut command = inside("env");
    command.arg(atlas).arg("serve").arg(film.path());
    if is_root() {
        command.args(["--https", "443"]);
    } else {
        let [http, https] = free_ports()?.map(|port| port.to_string());
        let link = format!("relay:{RELAY}");
        command.args(["--link", &link, "--http", &http, "--https", &https]);
    }
    command.arg("--cert").arg(&identity.certificate);
    command.arg("--key").arg(&identity.key);
    let server = Server::atlas(&mut command)?;
    let url = |scheme| url_of(&server.ready, scheme, PLAYLIST);
    let (http, https) = (url("http")?, url("https")?);
    println!("atlas serves {http} and {https}");
    let page = url_of(&server.ready, "http", "")?;
    fetch_page(place.as_ref(), address_of(&page)?, film.path())?;
    println!("the page {page} and the film in it are served");

    let playlist = film.path().join(PLAYLIST);
    let expected = film::play(Command::new("ffmpeg"), &[], &playlist.to_string_lossy())?;
    compare(&expected, inside("ffmpeg"), &http, &[])?;
    let certificate = identity.certificate.to_string_lossy();
    let trust = ["-tls_verify", "1", "-ca_file", &certificate];
    compare(&expected, inside("ffmpeg"), &https, &trust)?;
    println!("every decoded frame is the same as from the disk");
    if !once {
        invite(&page, &http, &https, &identity);
        while !interrupt::is_set() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    report(server)
}

/// The URL of a file, made of the one of this scheme in the server's `ready` line.
fn url_of(ready: &str, scheme: &str, file: &str) -> Result<String> {
    let root = ready
        .split_whitespace()
        .find(|word| word.split_once("://").is_some_and(|(it, _)| it == scheme))
        .with_context(|| format!("the ready line has no URL of {scheme}: {ready}"))?;
    Ok(format!("{}/{file}", root.trim_end_matches('/')))
}

/// Where the server of a URL of plain HTTP is.
fn address_of(url: &str) -> Result<SocketAddr> {
    let (_, behind) = url.split_once("://").context("a URL has a scheme")?;
    let (place, _) = behind.split_once('/').context("a URL has a path")?;
    match place.parse() {
        Ok(address) => Ok(address),
        Err(_) => Ok(SocketAddr::new(place.parse().context("an address")?, 80)),
    }
}

/// Two ports of loopback that nobody has now.
fn free_ports() -> Result<[u16; 2]> {
    let listen = || TcpListener::bind((RELAY, 0)).context("listening on loopback");
    let (first, second) = (listen()?, listen()?);
    Ok([first.local_addr()?.port(), second.local_addr()?.port()])
}

/// Fetches what a browser would: the page at `/`, and the beginning of the film it names.
fn fetch_page(place: Option<&Namespace>, address: SocketAddr, folder: &Path) -> Result<()> {
    let mut client = match place {
        Some(namespace) => Client::connect(namespace, address)?,
        None => Client::connect_from_here(address)?,
    };
    let (head, body) = client.exchange("GET", "/", "")?;
    let content_type = head.field("content-type").unwrap_or_default();
    ensure!(
        (head.status, content_type) == (200, "text/html; charset=utf-8") && body == PAGE.as_bytes(),
        "the page came as {} {content_type:?}, {} bytes",
        head.status,
        body.len()
    );
    let (path, range) = (format!("/{WHOLE_FILM}"), "Range: bytes=0-9999\r\n");
    let (head, body) = client.exchange("GET", &path, range)?;
    let content_type = head.field("content-type").unwrap_or_default();
    let expected = fs::read(folder.join(WHOLE_FILM))?;
    ensure!(
        (head.status, content_type) == (206, "video/mp4") && expected.starts_with(&body),
        "the film came as {} {content_type:?}, {} bytes",
        head.status,
        body.len()
    );
    Ok(())
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
fn invite(page: &str, http: &str, https: &str, identity: &IdentityFiles) {
    let certificate = identity.certificate.display();
    println!("\nopen it in a browser until Ctrl-C:\n  {page}");
    println!("or in a player:");
    println!("  ffplay {http}\n  ffplay {https}\n  curl -O {http}");
    println!("  curl --cacert {certificate} -O {https}");
    println!("Nobody vouches for the certificate: curl -k goes on without, a browser asks first.");
}

/// Makes a playlist and its segments in `folder`, the same film as one file, and its page.
fn make_film(folder: &Path) -> Result<()> {
    // A key frame at the start of each segment, and nowhere else.
    let group = (FRAME_RATE * SEGMENT_SECONDS).to_string();
    let segment = SEGMENT_SECONDS.to_string();
    let mut options = vec!["-g", &group, "-keyint_min", &group, "-sc_threshold", "0"];
    options.extend(["-b:v", "4M", "-f", "hls", "-hls_playlist_type", "vod"]);
    options.extend(["-hls_time", &segment]);
    let playlist = folder.join(PLAYLIST);
    film::make(&playlist, FILM_SECONDS, "1280x720", &options)?;
    // Its index first, so that it plays before all of it is there.
    let index_first = ["-movflags", "+faststart"];
    film::wrap(&playlist, &folder.join(WHOLE_FILM), &index_first)?;
    fs::write(folder.join(PAGE_FILE), PAGE).context("writing the page")
}

/// Ends the server and prints what it counted.
fn report(server: Server) -> Result<()> {
    let stopped = server.stop()?;
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
    use super::{PAGE, PLAYLIST, WHOLE_FILM, address_of, url_of};

    #[test]
    fn the_ready_line_has_a_url_of_each_scheme_or_none() {
        let ready = "ready http://10.77.0.2/ https://10.77.0.2:8443/ link=tap:atlas0";
        let url = |scheme| url_of(ready, scheme, PLAYLIST).expect("a URL");
        assert_eq!(url("http"), "http://10.77.0.2/index.m3u8");
        assert_eq!(url("https"), "https://10.77.0.2:8443/index.m3u8");
        assert!(url_of("ready http://10.77.0.2/", "https", PLAYLIST).is_err());
        let page = url_of(ready, "http", "").expect("a URL");
        assert_eq!(page, "http://10.77.0.2/");
        let address = |url| address_of(url).expect("an address").to_string();
        assert_eq!(address(&page), "10.77.0.2:80");
        assert_eq!(address("http://127.0.0.1:8080/"), "127.0.0.1:8080");
    }

    #[test]
    fn the_page_names_the_files_there_are() {
        for file in [WHOLE_FILM, PLAYLIST] {
            assert!(PAGE.contains(&format!("\"{file}\"")), "{file}");
        }
    }
}
