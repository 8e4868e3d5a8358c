//! A registry that is a file: read when its status changes.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use placement::{FLEET_BYTES_MAX, Member, parse_fleet};

use crate::settings::FileSettings;
use crate::view::ViewSender;

/// How often the file's status is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// What changes when a file's content does: its inode, length, and the time of its change in nanoseconds.
type Stamp = (u64, u64, i64, i64);

/// Tells of the members of a file, for ever.
pub(crate) async fn follow(settings: FileSettings, views: ViewSender) {
    let mut seen = None;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let path = settings.path.clone();
        // A file of another machine may block.
        let read = tokio::task::spawn_blocking(move || read(&path, seen)).await;
        match read.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(None) => {}
            Ok(Some((stamp, Ok(members)))) => {
                seen = Some(stamp);
                views.learned(members, Vec::new());
            }
            Ok(Some((stamp, Err(why)))) => {
                seen = Some(stamp);
                views.lost(&format!("{}: {why}", settings.path.display()));
            }
            Err(why) => {
                seen = None;
                views.lost(&format!("{}: {why}", settings.path.display()));
            }
        }
    }
}

/// The file's members and its status, if that is not the one seen.
#[expect(
    clippy::type_complexity,
    reason = "a file that cannot be read is looked at again, one that is wrong only when it changes"
)]
fn read(
    path: &Path,
    seen: Option<Stamp>,
) -> Result<Option<(Stamp, Result<Vec<Member>, String>)>, String> {
    let told = |error: io::Error| error.to_string();
    let file = File::open(path).map_err(told)?;
    let status = file.metadata().map_err(told)?;
    let stamp = (
        status.ino(),
        status.len(),
        status.mtime(),
        status.mtime_nsec(),
    );
    if seen == Some(stamp) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(FLEET_BYTES_MAX).unwrap_or(u64::MAX);
    file.take(most + 1).read_to_end(&mut bytes).map_err(told)?;
    let members = parse_fleet(&bytes).map_err(|error| error.to_string());
    Ok(Some((stamp, members)))
}
