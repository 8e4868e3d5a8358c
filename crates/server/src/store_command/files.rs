//! The files that `atlas store add` takes: found by descriptors, and opened only as what was found.
//!
//! Whoever adds files is often root, and others may own the directory. So **no symbolic link beneath a
//! directory that was named is followed**, neither while files are looked for nor when they are opened
//! later (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`), and a file that is another by then, or
//! has changed, is refused. Links that were named themselves are followed. It refuses everything but regular
//! files, and never waits for the writer of a FIFO. Bounded by the depth of the directories, each a
//! descriptor while it is looked through.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use volume::{Time, is_name};

use crate::failure::Failure;

/// A file to become an object.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// For messages.
    pub(super) path: PathBuf,
    place: Place,
    /// Of the object.
    pub(super) name: String,
    /// As it was found.
    pub(super) status: Status,
}

/// How it is opened.
#[derive(Clone, Debug)]
enum Place {
    /// By the path that was named.
    Named,
    /// By its path beneath a directory that was named.
    Beneath(Rc<Root>, PathBuf),
}

/// A directory that was named, and which one it was.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Tells a file and its content from all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Status {
    pub(super) size_bytes: u64,
    pub(super) modified: Time,
    changed: Time,
    device: u64,
    inode: u64,
}

impl Status {
    /// Of an open file.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::of(&rustix::fs::fstat(file)?))
    }

    fn of(stat: &Stat) -> Self {
        Self {
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

fn time(seconds: i64, nanos: impl TryInto<u32>) -> Time {
    Time {
        seconds,
        nanos: nanos.try_into().unwrap_or(0),
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Files found, and what was left out.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) items: Vec<Item>,
    /// Symbolic links, device nodes and the like.
    pub(super) skipped: usize,
}

impl Found {
    /// Finds the files of a directory, with names relative to it, or a single one.
    ///
    /// # Errors
    /// What cannot be read, or cannot become an object.
    pub(super) fn gather(&mut self, path: &Path, prefix: &str) -> Result<(), Failure> {
        let failed = |error: rustix::io::Errno| unreadable(path, error.into());
        // Not opened before it is known to be no device node or FIFO.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let named = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let stat = rustix::fs::fstat(&named).map_err(failed)?;
        match kind(&stat) {
            FileType::Directory => {
                let root = Rc::new(Root {
                    path: path.to_owned(),
                    device: stat.st_dev,
                    inode: stat.st_ino,
                });
                let directory = open_beneath(named.as_fd(), Path::new("."), OFlags::DIRECTORY);
                let directory = directory.map_err(|error| unreadable(path, error))?;
                self.gather_directory(&root, &directory, Path::new(""), prefix)
            }
            FileType::RegularFile => {
                let name = path.file_name().unwrap_or_default();
                self.push(path.to_owned(), Place::Named, prefix, name, &stat)
            }
            _ => Err(Failure::refused(
                format!("{}: neither a directory nor a regular file", path.display()),
                "name one",
            )),
        }
    }

    /// `beneath`: the path of the directory from the root.
    fn gather_directory(
        &mut self,
        root: &Rc<Root>,
        directory: &OwnedFd,
        beneath: &Path,
        prefix: &str,
    ) -> Result<(), Failure> {
        let shown = root.path.join(beneath);
        let names = names_in(directory).map_err(|error| unreadable(&shown, error))?;
        for name in names {
            let name = OsStr::from_bytes(&name);
            let (path, beneath) = (shown.join(name), beneath.join(name));
            let failed = |error: io::Error| unreadable(&path, error);
            // Of the entry itself: a link to a directory could lead round in a circle.
            let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat.map_err(|error| failed(error.into()))?;
            match kind(&stat) {
                FileType::Directory => {
                    let text = utf8(&path, name)?;
                    let next = open_beneath(directory.as_fd(), name.as_ref(), OFlags::DIRECTORY);
                    let next = next.map_err(failed)?;
                    self.gather_directory(root, &next, &beneath, &format!("{prefix}{text}/"))?;
                }
                FileType::RegularFile => {
                    let place = Place::Beneath(Rc::clone(root), beneath);
                    self.push(path.clone(), place, prefix, name, &stat)?;
                }
                _ => self.skipped += 1,
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        path: PathBuf,
        place: Place,
        prefix: &str,
        name: &OsStr,
        stat: &Stat,
    ) -> Result<(), Failure> {
        let name = format!("{prefix}{}", utf8(&path, name)?);
        if !is_name(&name) {
            return Err(Failure::refused(
                format!("{path:?}: no request could have its name"),
                "rename it",
            ));
        }
        self.items.push(Item {
            path,
            place,
            name,
            status: Status::of(stat),
        });
        Ok(())
    }
}

/// Names in a directory, in ascending order.
fn names_in(directory: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens what is beneath a directory, by no link.
fn open_beneath(directory: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)?;
    Ok(opened)
}

/// Why a file that was found is not added.
#[derive(Debug)]
pub(super) enum Unopened {
    /// It is another by now, or has changed.
    Changed,
    /// What the kernel said.
    Failed(io::Error),
}

impl Item {
    /// Opens the file that was found, and no other.
    ///
    /// # Errors
    /// It is not there any more, or cannot be read.
    pub(super) fn open(&self) -> Result<File, Unopened> {
        let file = self.open_by_path().map_err(Unopened::Failed)?;
        let found = Status::of_file(&file).map_err(Unopened::Failed)?;
        if found == self.status {
            Ok(file)
        } else {
            Err(Unopened::Changed)
        }
    }

    fn open_by_path(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Place::Beneath(root, beneath) = &self.place else {
            let opened = rustix::fs::openat(CWD, &self.path, flags, Mode::empty())?;
            return Ok(opened.into());
        };
        let flags = flags | OFlags::DIRECTORY;
        let directory = rustix::fs::openat(CWD, &root.path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&directory)?;
        if (stat.st_dev, stat.st_ino) != (root.device, root.inode) {
            return Err(io::ErrorKind::StaleNetworkFileHandle.into());
        }
        open_beneath(directory.as_fd(), beneath, OFlags::empty()).map(Into::into)
    }
}

fn utf8<'a>(path: &Path, name: &'a OsStr) -> Result<&'a str, Failure> {
    name.to_str().ok_or_else(|| {
        Failure::refused(
            format!("{}: its name is not UTF-8", path.display()),
            "rename it",
        )
    })
}

fn unreadable(path: &Path, error: io::Error) -> Failure {
    Failure::refused(
        format!("{}: {error}", path.display()),
        "nothing was changed",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// Files to be added, and one beside them that is not.
    struct Site {
        directory: TempDir,
    }

    impl Site {
        fn new() -> Self {
            let directory = TempDir::new().unwrap();
            let site = Self { directory };
            fs::create_dir_all(site.path("films/sub")).unwrap();
            fs::write(site.path("films/a"), "content").unwrap();
            fs::write(site.path("films/sub/b"), "content").unwrap();
            fs::create_dir(site.path("outside")).unwrap();
            fs::write(site.path("outside/b"), "secret!").unwrap();
            site
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        /// What is found at the path that is named.
        fn items(&self, name: &str) -> Vec<Item> {
            let mut found = Found::default();
            found.gather(&self.path(name), "").unwrap();
            found.items
        }

        /// Another takes the place of what was found.
        fn swap(&self, name: &str, make: impl FnOnce(&Path)) {
            let path = self.path(name);
            fs::rename(&path, self.path("away")).unwrap();
            make(&path);
        }
    }

    fn make_fifo(path: &Path) {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap();
    }

    #[test]
    fn files_are_found_with_their_names_and_opened() {
        let site = Site::new();
        symlink(site.path("outside"), site.path("films/link")).unwrap();
        make_fifo(&site.path("films/fifo"));
        let mut found = Found::default();
        found.gather(&site.path("films"), "x/").unwrap();
        let names: Vec<_> = found.items.iter().map(|it| it.name.as_str()).collect();
        assert_eq!((names, found.skipped), (vec!["x/a", "x/sub/b"], 2));
        for item in &found.items {
            let text = io::read_to_string(item.open().unwrap()).unwrap();
            assert_eq!(text, "content");
        }
        // A link that is named is followed.
        symlink(site.path("films"), site.path("named")).unwrap();
        assert_eq!(site.items("named").len(), 2);
        symlink(site.path("films/a"), site.path("file")).unwrap();
        assert!(site.items("file")[0].open().is_ok());
        let mut found = Found::default();
        let refused = found.gather(&site.path("films/fifo"), "").unwrap_err();
        assert!(refused.to_string().contains("neither a directory"));
    }

    #[test]
    fn a_link_that_is_put_in_the_place_of_a_file_is_not_followed() {
        let site = Site::new();
        for (name, index) in [("films/a", 0), ("films/sub/b", 1), ("films/sub", 1)] {
            let items = site.items("films");
            let secret = site.path(if name.ends_with("sub") {
                "outside"
            } else {
                "outside/b"
            });
            site.swap(name, |path| symlink(&secret, path).unwrap());
            let error = items[index].open().unwrap_err();
            let Unopened::Failed(error) = error else {
                panic!("{name}: {error:?}");
            };
            assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{name}");
            fs::remove_file(site.path(name)).unwrap();
            fs::rename(site.path("away"), site.path(name)).unwrap();
        }
        // The directory that was named is another one.
        let items = site.items("films");
        site.swap("films", |path| {
            fs::create_dir(path).unwrap();
            fs::hard_link(site.path("away/a"), path.join("a")).unwrap();
        });
        assert!(matches!(items[0].open(), Err(Unopened::Failed(_))));
    }

    #[test]
    fn a_directory_that_becomes_a_link_is_not_entered() {
        let site = Site::new();
        let films = File::open(site.path("films")).unwrap();
        site.swap("films/sub", |path| {
            symlink(site.path("outside"), path).unwrap()
        });
        let entered = open_beneath(films.as_fd(), Path::new("sub"), OFlags::DIRECTORY);
        assert!(entered.is_err());
        assert!(open_beneath(films.as_fd(), Path::new(".."), OFlags::DIRECTORY).is_err());
    }

    #[test]
    fn what_is_another_file_by_then_is_refused_at_once() {
        let site = Site::new();
        for name in ["films", "films/a"] {
            let items = site.items(name);
            site.swap("films/a", make_fifo);
            assert!(matches!(items[0].open(), Err(Unopened::Changed)), "{name}");
            fs::remove_file(site.path("films/a")).unwrap();
            // Of the same size, and said to be of the same time.
            fs::write(site.path("films/a"), "another").unwrap();
            let time = fs::metadata(site.path("away")).unwrap().modified().unwrap();
            let file = File::options().write(true).open(site.path("films/a"));
            file.unwrap().set_modified(time).unwrap();
            assert!(matches!(items[0].open(), Err(Unopened::Changed)), "{name}");
        }
    }
}
