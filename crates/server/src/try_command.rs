//! `atlas try`: serves a directory on this machine with what the machine permits, without rights or settings.
//!
//! A TAP where this process may make one, otherwise a relay through the host's own TCP. It names a file of the
//! directory by its URL, so that there is something to open. It refuses a raw store: to read one takes rights.
//! Bounds: [`ENTRIES_MAX`] entries looked at for that file, [`PORTS_TRIED`] ports tried.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::settings::cli::TryArgs;
use crate::settings::{CommonArgs, FileConfig, Settings};
use crate::start;

/// Entries of the directory that are looked at, in all its folders together.
const ENTRIES_MAX: usize = 10_000;

/// The first port that is tried. An ordinary user has none below 1024.
const PORT_FIRST: u16 = 8_080;

/// How many are tried from there.
const PORTS_TRIED: u16 = 20;

/// What browsers open for a directory.
const INDEX: &str = "index.html";

/// The settings to serve with; says on stdout what there is to open.
///
/// # Errors
/// The directory is none, or no port is free.
pub(crate) fn settings(args: &TryArgs) -> Result<Settings, Failure> {
    let path = args.path.display();
    if !args.path.is_dir() {
        return Err(Failure::refused(
            format!("DIR {path}: not a directory"),
            "name one with files in it; atlas serve takes raw stores",
        ));
    }
    let tap = resolve(args, None)?;
    let is_relayed = args.listen.is_some() || args.port.is_some() || !start::permits(&tap);
    let (settings, about) = if is_relayed {
        let address = args.listen.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let port = match args.port {
            Some(port) => port,
            None => free_port(address)?,
        };
        let relayed = resolve(args, Some((address, port)))?;
        (
            relayed,
            "through the host's own TCP: for a try, not for load",
        )
    } else {
        (tap, "over a TAP: for this host")
    };
    let urls = settings.urls();
    let root = urls.split_whitespace().next().unwrap_or_default();
    let name = first_file(&args.path).unwrap_or_default();
    // If stdout is closed, nobody reads it.
    let _ = writeln!(
        std::io::stdout(),
        "{path} {about}\n  {root}{}\nCtrl-C ends it",
        encoded(&name)
    );
    Ok(settings)
}

fn resolve(args: &TryArgs, relay: Option<(IpAddr, u16)>) -> Result<Settings, Failure> {
    let common = CommonArgs {
        path: args.path.clone(),
        link: relay.map(|(address, _)| format!("relay:{address}")),
        http: relay.map(|(_, port)| port.to_string()),
        // Warnings are worth reading, and what the start says is not.
        quiet: u8::from(args.verbose == 0),
        verbose: args.verbose.saturating_sub(1),
        ..CommonArgs::default()
    };
    let file = FileConfig {
        // A tmpfs has no O_DIRECT.
        buffered: Some(true),
        ..FileConfig::default()
    };
    Settings::merge(common, file)
}

/// The first port that nobody listens at.
fn free_port(address: IpAddr) -> Result<u16, Failure> {
    let mut last = None;
    for port in PORT_FIRST..PORT_FIRST + PORTS_TRIED {
        match TcpListener::bind(SocketAddr::new(address, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = Some(error),
        }
    }
    let reason = last.map(|it| it.to_string()).unwrap_or_default();
    Err(Failure::refused(
        format!(
            "{address} has no port from {PORT_FIRST} to {}: {reason}",
            PORT_FIRST + PORTS_TRIED - 1
        ),
        "name one with --port, or another address of this host's with --listen",
    ))
}

/// A file to open, relative to `root`: the index, or the first one by name, those of `root` before those of
/// its folders.
fn first_file(root: &Path) -> Option<PathBuf> {
    if root.join(INDEX).is_file() {
        return Some(INDEX.into());
    }
    let mut folders = vec![PathBuf::new()];
    let mut left = ENTRIES_MAX;
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .take(left)
            .filter_map(|entry| entry.ok().map(|it| it.file_name()))
            .filter(|name| !name.as_bytes().starts_with(b"."))
            .collect();
        left -= names.len();
        names.sort();
        let mut below = Vec::new();
        for name in names {
            let path = folder.join(name);
            let Ok(kind) = fs::symlink_metadata(root.join(&path)) else {
                continue;
            };
            if kind.is_file() {
                return Some(path);
            }
            if kind.is_dir() {
                below.push(path);
            }
        }
        folders.extend(below.into_iter().rev());
    }
    None
}

/// RFC 3986 s2.1: all bytes of a path but unreserved ones and slashes percent-encoded.
fn encoded(path: &Path) -> String {
    let stays = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let bytes = path.as_os_str().as_bytes().iter();
    bytes
        .map(|&byte| match stays(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{Ipv4Addr, TcpListener};
    use std::path::Path;

    use super::{PORT_FIRST, PORTS_TRIED, TryArgs, encoded, first_file, free_port, resolve};

    #[test]
    fn a_relay_s_url_is_the_host_s_and_it_needs_no_rights() {
        let args = TryArgs {
            path: "/srv".into(),
            ..TryArgs::default()
        };
        let at = |address: &str| {
            let settings = resolve(&args, Some((address.parse().unwrap(), 8_081))).unwrap();
            assert!(crate::start::permits(&settings), "whoever runs this");
            assert!(settings.buffered && !settings.is_address_checked);
            settings.urls()
        };
        assert_eq!(at("127.0.0.1"), "http://127.0.0.1:8081/");
        assert_eq!(at("0.0.0.0"), "http://127.0.0.1:8081/", "it can be opened");
        assert_eq!(at("::1"), "http://[::1]:8081/");
        assert_eq!(resolve(&args, None).unwrap().urls(), "http://10.77.0.2/");
    }

    #[test]
    fn the_index_is_opened_then_the_first_file_and_hidden_ones_never() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        let found = || first_file(root.path());
        assert_eq!(found(), None);
        make(".hidden");
        make(".git/config");
        assert_eq!(found(), None);
        make("b/film.mp4");
        make("a/c/film.mp4");
        assert_eq!(found().unwrap(), Path::new("a/c/film.mp4"));
        make("z.mp4");
        assert_eq!(found().unwrap(), Path::new("z.mp4"));
        make("index.html");
        assert_eq!(found().unwrap(), Path::new("index.html"));
    }

    #[test]
    fn a_name_in_a_url_has_its_unusual_bytes_encoded() {
        assert_eq!(encoded(Path::new("a-1/b._~/c.mp4")), "a-1/b._~/c.mp4");
        assert_eq!(
            encoded(Path::new("my film%?#é.mp4")),
            "my%20film%25%3F%23%C3%A9.mp4"
        );
    }

    #[test]
    fn a_port_that_is_taken_is_passed_over_and_without_any_it_says_what_to_do() {
        // An address of loopback's that no other test listens at.
        let address = Ipv4Addr::new(127, 9, 8, 7).into();
        let first = free_port(address).unwrap();
        let mut taken = vec![TcpListener::bind((address, first)).unwrap()];
        let second = free_port(address).unwrap();
        assert!(first < second && second < PORT_FIRST + PORTS_TRIED);
        while let Ok(port) = free_port(address) {
            taken.push(TcpListener::bind((address, port)).unwrap());
        }
        let refusal = free_port(address).unwrap_err().to_string();
        assert!(refusal.contains("--port"), "{refusal}");
    }
}
