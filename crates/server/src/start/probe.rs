//! What `atlas doctor` tries of what is to be served, by the parts that the start has.
//!
//! It refuses to touch interfaces, addresses and NVMe controllers. Bounds: those of the start.

use super::content::{Content, has_closed_files_only};
use super::storage::open_store;
use crate::failure::Failure;
use crate::settings::Settings;
use crate::start::privileges::Identity;

/// Objects that the store may open which is opened for a moment.
const OBJECTS_MAX: u32 = 16;

/// How PATH can be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Probed {
    /// By whom and how.
    pub(crate) how: String,
    /// What lets the user read the files that it cannot read, if some are found.
    pub(crate) remedy: Option<String>,
}

/// Looks whether the user that serves could serve PATH, and drops rights for good.
///
/// # Errors
/// It cannot be served, and what to do.
pub(crate) fn probe_path(settings: &Settings) -> Result<Probed, Failure> {
    let content = Content::check(settings)?;
    let identity = Identity::resolve(settings.user.as_ref())?;
    identity.assume()?;
    let by = |how: &str| Probed {
        how: format!("{how}, as {identity}"),
        remedy: None,
    };
    match content {
        None => Ok(by("NVMe controllers, which were left alone")),
        Some(content @ Content::Directories(..)) => {
            content.check_as(&identity)?;
            let path = &settings.path;
            let store = open_store(&content.start()?, settings, OBJECTS_MAX, false)?;
            let how = match store.direct_support() {
                store::DirectSupport::Direct => "readable, with O_DIRECT",
                store::DirectSupport::Refused => "readable, through the page cache",
                store::DirectSupport::Unknown => "readable, without a file to try O_DIRECT with",
            };
            if let [mount, ..] = store.mounts_without_direct()[..]
                && !settings.buffered
            {
                return Ok(Probed {
                    remedy: Some(
                        "serve them from ext4, xfs or btrfs, or set buffered = true".into(),
                    ),
                    ..by(&format!(
                        "files in {} refuse O_DIRECT and get 500",
                        mount.display()
                    ))
                });
            }
            if has_closed_files_only(path) {
                return Ok(Probed {
                    remedy: Some(format!("chmod -R o+rX {}, or --user", path.display())),
                    ..by("its first files cannot be read")
                });
            }
            Ok(by(how))
        }
        Some(_) => Ok(by("a raw store whose catalogue is whole")),
    }
}
