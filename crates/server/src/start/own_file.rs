//! Files for what only the server's user may read: traces, and secrets of TLS.
//!
//! Who starts the server is often root, and others may write to the directory. So **nobody else chooses the
//! file**: a symbolic link is not followed, and a file that is there must be a regular one of this user,
//! and no other name may lead to it. It refuses everything else, before a byte of it is lost.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Where the writes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writes {
    /// Behind what is there.
    AtTheEnd,
    /// To an empty file: what was there is lost.
    Anew,
}

/// Opens a file to write, or makes one that its owner alone can read.
///
/// # Errors
/// What the kernel said; [`io::ErrorKind::PermissionDenied`] if the file is not this user's alone.
pub(crate) fn open(path: &Path, writes: Writes) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match writes {
        Writes::AtTheEnd => options.append(true),
        Writes::Anew => options.write(true),
    };
    // Not blocking: the open of a FIFO would wait for a reader.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = options.create(true).mode(0o600).custom_flags(flags);
    let file = file
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            // A FIFO that nobody reads, or a socket.
            Some(libc::ENXIO) => refused("not a regular file"),
            _ => error,
        })?;
    let status = file.metadata()?;
    let user = rustix::process::geteuid().as_raw();
    let refusal = if !status.is_file() {
        "not a regular file"
    } else if status.uid() != user {
        "it belongs to another user"
    } else if status.nlink() > 1 {
        "it has another name, too"
    } else {
        if writes == Writes::Anew {
            file.set_len(0)?;
        }
        return Ok(file);
    };
    Err(refused(refusal))
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_file_is_made_for_its_owner_alone_and_used_again() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("secrets");
        for (writes, expected) in [
            (Writes::AtTheEnd, "x"),
            (Writes::AtTheEnd, "xx"),
            (Writes::Anew, "x"),
        ] {
            open(&path, writes).unwrap().write_all(b"x").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_others_have_put_there_is_refused_and_stays() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("target"), "content").unwrap();
        symlink(path("target"), path("link")).unwrap();
        symlink(path("missing"), path("dangling")).unwrap();
        fs::write(path("first"), "content").unwrap();
        fs::hard_link(path("first"), path("second")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), fifo, mode, 0).unwrap();
        let mut names = vec!["link", "dangling", "second", "fifo"];
        // Only root can give a file away.
        fs::write(path("others"), "content").unwrap();
        if chown(path("others"), Some(65_534), None).is_ok() {
            names.push("others");
        }
        for name in names {
            for writes in [Writes::AtTheEnd, Writes::Anew] {
                assert!(open(&path(name), writes).is_err(), "{name}");
            }
        }
        assert!(!path("missing").exists());
        for name in ["target", "first", "others"] {
            assert_eq!(fs::read_to_string(path(name)).unwrap(), "content", "{name}");
        }
    }
}
