//! What is served: a directory, or a raw store on block devices, images, or namespaces of a controller
//! that the server drives itself.
//!
//! The devices of a raw store are opened with the rights that the server was started with, since its user
//! may have none to them; a directory is read as that user. It refuses what is neither. Bound:
//! [`FILES_TRIED_MAX`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant as RealInstant;

use store::raw::{Access, Loaded, RawError, RawStore, Volume, names_in};
use tracing::warn;

use crate::failure::{Failure, may_pass};
use crate::settings::Settings;
use crate::settings::sites::directories;
use crate::start::privileges::Identity;

use super::nvme::{self, Controllers, NvmeNames, OverVfio};
use super::passthrough::Namespaces;

/// Files of the directory that are tried at start.
const FILES_TRIED_MAX: usize = 64;

/// What is served, opened as far as it needs a privilege.
#[derive(Debug)]
pub(super) enum Content {
    /// PATH, and what sites name beside it.
    Directories(PathBuf, Vec<PathBuf>),
    /// Read as files, or by NVMe commands.
    Raw(RawStore, Option<Namespaces>),
    /// On controllers of the server's own.
    Nvme(Volume, Controllers<OverVfio>),
}

/// What the stores of the workers are opened from.
#[derive(Debug)]
pub(super) enum StartedContent {
    /// PATH, and these beside it.
    Directories(Vec<PathBuf>),
    Volume(Volume, Option<Controllers<OverVfio>>),
}

impl StartedContent {
    /// Once all workers have ended.
    pub(super) fn end(self) {
        if let Self::Volume(_, Some(controllers)) = self {
            controllers.shut_down();
        }
    }
}

impl Content {
    /// Looks what the path names, and opens devices. `epoch`: of the worker's clock.
    ///
    /// # Errors
    /// It cannot be served, and what to do.
    pub(super) fn open(settings: &Settings, epoch: RealInstant) -> Result<Self, Failure> {
        if let Some(names) = controllers_named(settings)? {
            let opened = Controllers::open(OverVfio { epoch }, &names, settings.workers);
            return opened.map(|(controllers, volume)| Self::Nvme(volume, controllers));
        }
        Self::open_files(settings)
    }

    /// The same, but NVMe controllers are not taken: a server may have them, and taking them resets them.
    /// `None`: they could be, by what is known without that.
    ///
    /// # Errors
    /// It cannot be served, and what to do.
    pub(super) fn check(settings: &Settings) -> Result<Option<Self>, Failure> {
        match controllers_named(settings)? {
            Some(names) => nvme::check(&names).map(|()| None),
            None => Self::open_files(settings).map(Some),
        }
    }

    fn open_files(settings: &Settings) -> Result<Self, Failure> {
        let path = &settings.path;
        let names = names_in(path);
        let is_other = |path: &Path| fs::metadata(path).is_ok_and(|it| !it.is_dir());
        if names.len() == 1 && !is_other(path) {
            check_directory("PATH", path)?;
            let beside = directories(settings);
            for directory in &beside {
                check_directory("directory", directory)?;
            }
            if settings.nvme_passthrough {
                return Err(Failure::refused(
                    format!(
                        "PATH {}: nvme_passthrough, and that is a directory",
                        path.display()
                    ),
                    "name the block devices of a raw store, or leave nvme_passthrough out",
                ));
            }
            return Ok(Self::Directories(path.clone(), beside));
        }
        refuse_beside(settings)?;
        let direct = !settings.buffered;
        let raw = match RawStore::open(&names, Access::Read { direct }) {
            // Which files have no O_DIRECT matters only if they are a store.
            Err(error @ RawError::NotDirect(_)) => {
                RawStore::open(&names, Access::Read { direct: false }).map_err(refuse_to_serve)?;
                Err(error)
            }
            opened => opened,
        };
        let raw = raw.map_err(refuse_to_serve)?;
        // So that it is known before anything else is opened.
        warn_of_copies(&raw.load().map_err(refuse_to_serve)?);
        let namespaces = if settings.nvme_passthrough {
            Some(Namespaces::open(raw.devices())?)
        } else {
            None
        };
        Ok(Self::Raw(raw, namespaces))
    }

    /// Checks the directory again as the user that serves: the first check ran as root.
    pub(super) fn check_as(&self, identity: &Identity) -> Result<(), Failure> {
        match self {
            Self::Directories(path, beside) => {
                check_directory_as("PATH", path, identity)?;
                let mut beside = beside.iter();
                beside.try_for_each(|path| check_directory_as("directory", path, identity))
            }
            Self::Raw(..) | Self::Nvme(..) => Ok(()),
        }
    }

    /// Whether each open object is a descriptor.
    pub(super) const fn has_descriptors(&self) -> bool {
        matches!(self, Self::Directories(..))
    }

    /// Starts what the stores share.
    pub(super) fn start(self) -> Result<StartedContent, Failure> {
        match self {
            Self::Directories(_, beside) => Ok(StartedContent::Directories(beside)),
            Self::Raw(raw, namespaces) => {
                let ids = namespaces.as_ref().map(Namespaces::ids);
                let volume = Volume::start(raw, ids.as_deref()).map_err(refuse_raw)?;
                Ok(StartedContent::Volume(volume, None))
            }
            Self::Nvme(volume, controllers) => {
                Ok(StartedContent::Volume(volume, Some(controllers)))
            }
        }
    }
}

/// The NVMe controllers that PATH names; `None`: it names none.
fn controllers_named(settings: &Settings) -> Result<Option<NvmeNames>, Failure> {
    let path = &settings.path;
    let names = NvmeNames::parse(path).transpose()?;
    if names.is_some() {
        refuse_beside(settings)?;
    }
    if names.is_some() && settings.nvme_passthrough {
        return Err(Failure::refused(
            format!(
                "PATH {}: nvme_passthrough, and that names NVMe controllers of Atlas's own",
                path.display()
            ),
            "leave nvme_passthrough out, or give the controllers back (atlas nvme unbind) and name their \
             block devices",
        ));
    }
    Ok(names)
}

/// Warns of copies of superblocks and catalogues that cannot be used: the store has fewer than it should.
pub(super) fn warn_of_copies(loaded: &Loaded) {
    for fault in &loaded.faults {
        warn!("{fault}; another copy is used");
    }
    if loaded.unknown.is_some() {
        warn!(
            "there may be a newer catalogue, which cannot be read: the last change may be missing"
        );
    }
}

/// Why a raw store cannot be used, and what to do.
pub(crate) fn refuse_raw(error: RawError) -> Failure {
    let remedy = match &error {
        RawError::Io { .. } => "name a device or image that this user may open",
        RawError::Kind(_) => "name a directory, a block device or an image file",
        RawError::InUse(_) => "unmount it, or name another device",
        RawError::NotDirect(_) => {
            "keep the image on ext4, xfs or btrfs, or set buffered = true in the configuration file"
        }
        RawError::Devices(_) => "name fewer",
        RawError::Mount { error, .. } => match error {
            volume::MountError::NoStore { .. } => {
                "name a directory, or a store that atlas store init has made"
            }
            _ => "name all devices of one store, each once, joined by commas",
        },
        RawError::Catalogue { .. } => {
            "the device is damaged: make the store anew, and add the files"
        }
        RawError::Locked(_) | RawError::BeingMade(_) => "wait until it has ended",
        RawError::Served(_) => "end that server first",
        _ => "try again",
    };
    Failure::refused(error.to_string(), remedy)
}

/// Why a raw store cannot be served, and whether it may be soon.
pub(super) fn refuse_to_serve(error: RawError) -> Failure {
    let is_passing = match &error {
        RawError::Locked(_) | RawError::BeingMade(_) | RawError::Restless(_) => true,
        RawError::Io { error, .. } => error.raw_os_error().is_some_and(may_pass),
        _ => false,
    };
    match refuse_raw(error) {
        Failure::Refused(text) if is_passing => Failure::NotNow(text),
        failure => failure,
    }
    .behind("PATH ")
}

/// Refuses directories beside a PATH that is none: a store is one or the other.
fn refuse_beside(settings: &Settings) -> Result<(), Failure> {
    let path = settings.path.display();
    directories(settings).first().map_or(Ok(()), |directory| {
        let directory = directory.display();
        Err(Failure::refused(
            format!(
                "PATH {path}: that is no directory, and a site names the directory {directory} beside it"
            ),
            "serve a directory, or have another server serve that site",
        ))
    })
}

fn check_directory(what: &str, path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let refuse = |problem: &str, remedy: &str| {
        Err(Failure::refused(
            format!("{what} {shown}: {problem}"),
            remedy,
        ))
    };
    let of_error = |error: &io::Error, remedy: &str| {
        let problem = format!("{what} {shown}: {error}");
        Err(Failure::of_error(error, problem, remedy))
    };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => refuse(
            "there is no such directory or device",
            "name an existing one",
        ),
        Err(error) => of_error(&error, "name a directory that this user can reach"),
        Ok(metadata) if !metadata.is_dir() => refuse(
            "that is not a directory",
            "name the directory the files are in",
        ),
        // Serving lists no directory, but one that cannot be listed is seldom the one intended.
        Ok(_) => match fs::read_dir(path) {
            Ok(_) => Ok(()),
            Err(error) => of_error(&error, "let this user read it, or run as another"),
        },
    }
}

/// Checks the directory again as the user that serves: the first check ran as root.
fn check_directory_as(what: &str, path: &Path, identity: &Identity) -> Result<(), Failure> {
    let Err(error) = fs::read_dir(path) else {
        warn_of_unreadable_files(path, identity);
        return Ok(());
    };
    let path = path.display();
    Err(Failure::of_error(
        &error,
        format!("{what} {path}: {identity} cannot read it: {error}"),
        format!(
            "let everybody (chmod -R o+rX {path}, and o+x on the directories above), or name \
             another user with --user"
        ),
    ))
}

/// Warns at start if the serving user can read none of the first files.
fn warn_of_unreadable_files(path: &Path, identity: &Identity) {
    if has_closed_files_only(path) {
        let path = path.display();
        warn!(
            "{path}: {identity} cannot read the files in it: requests for them get 403; \
             chmod -R o+rX {path}, or name another user with --user"
        );
    }
}

/// Whether there are files, and this user can read none of the first.
pub(super) fn has_closed_files_only(path: &Path) -> bool {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let is_closed = |entry: fs::DirEntry| {
        fs::File::open(entry.path())
            .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    let mut closed = files.take(FILES_TRIED_MAX).map(is_closed).peekable();
    closed.peek().is_some() && closed.all(|is_closed| is_closed)
}
