//! Files that are written while the server runs: access log, trace, capture.
//!
//! It refuses to follow a symbolic link, which others may have put there for a process that may write
//! anywhere, and to wait: the open of a FIFO fails as long as nobody reads it. Bound: one descriptor each.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat, fcntl_getfl, fcntl_setfl};

use crate::failure::Failure;

/// Rights of a file that has more in it than the access log: frames, or what a viewer does.
const PRIVATE_MODE: u32 = 0o600;

/// Opens a file with these options. Writing to it may wait; opening it does not.
///
/// # Errors
/// What the kernel said: `ELOOP` for a symbolic link, `ENXIO` for a FIFO that nobody reads.
pub(crate) fn open(mut options: OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Makes an empty file for `owner`, a user and a group, who is to open it later with fewer rights. A file
/// that is there stays as it is, and what cannot be made now is for the later open to tell.
pub(crate) fn make_for(owner: Option<(u32, u32)>, path: &Path) {
    let Some((user, group)) = owner else { return };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(PRIVATE_MODE);
    if let Ok(file) = options.open(path) {
        // Where it cannot be given away, the later open fails.
        let _ = fchown(&file, Some(user), Some(group));
    }
}

/// Whether a file can be written, or made if there is none. Changes nothing.
///
/// # Errors
/// What the kernel says. A FIFO that nobody reads now is none.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true);
    match open(options, path) {
        Ok(_) => Ok(()),
        Err(error) if is_unread_fifo(&error, path) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_directory_of(path),
        Err(error) => Err(error),
    }
}

fn check_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let rights = Access::WRITE_OK | Access::EXEC_OK;
    Ok(accessat(
        CWD,
        parent.unwrap_or(Path::new(".")),
        rights,
        AtFlags::EACCESS,
    )?)
}

/// Why a file that `flag` names cannot be written by the user that serves, and what to do.
pub(crate) fn refuse(flag: &str, path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    if is_unread_fifo(error, path) {
        return Failure::not_now(
            format!("{flag} {shown}: nobody reads that FIFO"),
            "start its reader first",
        );
    }
    match error.raw_os_error() {
        Some(libc::ELOOP) => Failure::refused(
            format!("{flag} {shown}: that is a symbolic link"),
            "name a file",
        ),
        _ => Failure::of_error(
            error,
            format!("{flag} {shown}: {error}"),
            "name a file that can be written: one that is not there yet, or one of the user that serves",
        ),
    }
}

/// Whether an open failed because the path is a FIFO that nobody reads.
pub(crate) fn is_unread_fifo(error: &io::Error, path: &Path) -> bool {
    error.raw_os_error() == Some(libc::ENXIO)
        && path
            .symlink_metadata()
            .is_ok_and(|it| it.file_type().is_fifo())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::{check_writable, is_unread_fifo, open};

    pub(crate) fn make_fifo(path: &Path) {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
    }

    #[test]
    fn a_fifo_is_opened_if_somebody_reads_it_and_then_waits_for_who_reads() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("fifo");
        make_fifo(&path);
        let to_append = || {
            let mut options = OpenOptions::new();
            options.append(true);
            open(options, &path)
        };
        let error = to_append().unwrap_err();
        assert!(is_unread_fifo(&error, &path), "{error}");
        check_writable(&path).unwrap();
        // Linux opens both ends of a FIFO at once without waiting.
        let mut reader = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut writer = to_append().unwrap();
        // More than a pipe holds.
        let bytes = vec![7; 1 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&bytes).unwrap());
            let mut read = vec![0; bytes.len()];
            reader.read_exact(&mut read).unwrap();
            assert!(read == bytes);
        });
    }

    #[test]
    fn a_check_for_writing_tells_what_a_start_would_find_and_makes_nothing() {
        let directory = tempfile::TempDir::new().unwrap();
        let at = |name: &str| directory.path().join(name);
        File::create(at("old")).unwrap();
        symlink(at("old"), at("link")).unwrap();
        for good in ["old", "new"] {
            check_writable(&at(good)).unwrap();
        }
        let errno = |name: &str| check_writable(&at(name)).unwrap_err().raw_os_error();
        assert_eq!(errno("link"), Some(libc::ELOOP));
        assert_eq!(errno("none/new"), Some(libc::ENOENT));
        assert_eq!(errno("old/new"), Some(libc::ENOTDIR));
        assert_eq!(errno("."), Some(libc::EISDIR));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
