//! The origin: S3 and compatible stores, Google, Azure, HTTP, or a directory, by the crate `object_store`.
//!
//! Credentials are those of the environment, of a file, or of the instance's metadata service, in the names that the
//! providers' own tools have. The file is read again when the origin refuses what it had. It refuses to try again by
//! itself: the caller knows what else is to be done. Every wait for the origin is bounded by `stall`; a listing by
//! [`LISTED_MAX`] objects.

mod build;
mod observe;

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};

use crate::checks::{Expected, expected};
use crate::fault::{Fault, Kind};
use crate::plan::Name;
use crate::stamp::Stamp;
use build::Built;
use observe::{Fields, fault_of};

pub use build::check_url;

/// Most objects of a listing: each takes some hundred bytes of memory.
pub const LISTED_MAX: usize = 5_000_000;
/// Most bytes of an object: of one that says to be larger the size is taken for wrong.
pub const OBJECT_BYTES_MAX: u64 = 1 << 40;
// The sizes of a listing can be added up.
const _: () = assert!((LISTED_MAX as u64).checked_mul(OBJECT_BYTES_MAX).is_some());
/// Most bytes of a name: what a directory of a file system may have is less for each part.
const NAME_BYTES_MAX: usize = 1024;
/// Most bytes of a part of a name.
const PART_BYTES_MAX: usize = 255;

/// Where the origin is, and how it is asked.
#[derive(Clone, Debug)]
pub struct OriginSettings {
    /// `s3://bucket/prefix` and the like.
    pub url: String,
    /// Of a compatible service.
    pub endpoint: Option<String>,
    /// Of S3.
    pub region: Option<String>,
    /// A file of `KEY=VALUE` lines.
    pub credentials: Option<PathBuf>,
    /// Longest wait for the next byte.
    pub stall: Duration,
}

/// The origin.
#[derive(Debug)]
pub struct Origin {
    settings: OriginSettings,
    built: Mutex<Built>,
}

/// A listing.
#[derive(Debug)]
pub struct Listing {
    /// The version of each name.
    pub objects: HashMap<Name, Stamp>,
    /// Objects whose names nobody can ask for, or no file can have, or whose sizes cannot be.
    pub skipped: usize,
}

/// What the origin said of an object.
#[derive(Clone, Debug)]
pub struct Described {
    /// Its version.
    pub stamp: Stamp,
    /// Its ETag as it was written.
    pub etag: Option<String>,
    /// A digest of all of it, if there is one.
    pub expected: Option<Expected>,
}

/// A reply with content.
pub struct Content {
    /// What it said of the object.
    pub described: Described,
    /// The part that it has.
    pub range: Range<u64>,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    stall: Duration,
    what: String,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

impl Content {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The connection broke, or nothing came for too long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        match tokio::time::timeout(self.stall, self.stream.next()).await {
            Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
            Ok(Some(Err(error))) => {
                let mut fault = fault_of(&self.what, &error);
                // The reply had begun.
                if matches!(fault.kind, Kind::Connect | Kind::Protocol) {
                    fault.kind = Kind::Broken;
                }
                Err(fault)
            }
            Ok(None) => Ok(None),
            Err(_) => Err(stalled(&self.what, self.stall)),
        }
    }
}

impl Origin {
    /// Prepares requests; sends none.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub fn new(settings: OriginSettings) -> Result<Self, String> {
        let built = build::build(&settings)?;
        Ok(Self {
            settings,
            built: Mutex::new(built),
        })
    }

    /// Reads credentials again.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn renew(&self) -> Result<(), String> {
        let built = build::build(&self.settings)?;
        *self.built.lock().unwrap_or_else(PoisonError::into_inner) = built;
        Ok(())
    }

    /// Whether it can say what it has.
    #[must_use]
    pub fn can_list(&self) -> bool {
        self.built().can_list
    }

    /// What it has beneath its prefix.
    ///
    /// # Errors
    /// Why it is not known; nothing is known then.
    pub async fn list(&self) -> Result<Listing, Fault> {
        let built = self.built();
        let what = "listing";
        let mut stream = built.store.list(Some(&built.prefix));
        let mut listing = Listing {
            objects: HashMap::new(),
            skipped: 0,
        };
        loop {
            let next = tokio::time::timeout(self.settings.stall, stream.next()).await;
            let meta = match next {
                Err(_) => return Err(stalled(what, self.settings.stall)),
                Ok(None) => return Ok(listing),
                Ok(Some(Err(error))) => return Err(fault_of(what, &error)),
                Ok(Some(Ok(meta))) => meta,
            };
            let name = relative(&built.prefix, &meta.location);
            let name = name.filter(|name| is_name(name) && meta.size <= OBJECT_BYTES_MAX);
            match name {
                Some(name) => {
                    listing.objects.insert(name.into(), stamp_of(&meta));
                }
                None => listing.skipped += 1,
            }
            if listing.objects.len().saturating_add(listing.skipped) > LISTED_MAX {
                return Err(Fault::new(
                    Kind::Protocol,
                    format!("listing: more than {LISTED_MAX} objects; name a longer prefix"),
                ));
            }
        }
    }

    /// What it says of an object.
    ///
    /// # Errors
    /// Why it is not known.
    pub async fn describe(&self, name: &str) -> Result<Described, Fault> {
        let options = GetOptions::new().with_head(true);
        Ok(self.request("HEAD", name, options, true).await?.described)
    }

    /// All of an object.
    ///
    /// # Errors
    /// Why there is no reply.
    pub async fn whole(&self, name: &str) -> Result<Content, Fault> {
        self.request("GET", name, GetOptions::new(), true).await
    }

    /// A part of the version with this description; of another one `Changed`.
    ///
    /// # Errors
    /// Why there is no reply.
    pub async fn part(
        &self,
        name: &str,
        described: &Described,
        range: Range<u64>,
    ) -> Result<Content, Fault> {
        let options = GetOptions::new()
            .with_range(Some(GetRange::Bounded(range)))
            .with_if_match(described.etag.clone());
        let content = self.request("GET", name, options, false).await?;
        let (said, found) = (described.stamp, content.described.stamp);
        if found == said {
            return Ok(content);
        }
        let is_same = (found.seconds, found.nanos) == (said.seconds, said.nanos);
        let (kind, text) = if is_same {
            let lengths = (said.size_bytes, found.size_bytes);
            let text = format!(
                "the origin says {} bytes once, and {} then",
                lengths.0, lengths.1
            );
            (Kind::Length, text)
        } else {
            (Kind::Changed, "it changed while it was fetched".to_owned())
        };
        Err(Fault::new(kind, format!("GET {name}: {text}")))
    }

    async fn request(
        &self,
        method: &str,
        name: &str,
        options: GetOptions,
        is_whole: bool,
    ) -> Result<Content, Fault> {
        let built = self.built();
        let what = format!("{method} {name}");
        let path = Path::parse(format!("{}/{name}", built.prefix))
            .map_err(|error| Fault::new(Kind::Name, format!("{what}: {error}")))?;
        let sent = tokio::time::timeout(self.settings.stall, built.store.get_opts(&path, options));
        let result = match sent.await {
            Err(_) => return Err(stalled(&what, self.settings.stall)),
            Ok(Err(error)) => return Err(fault_of(&what, &error)),
            Ok(Ok(result)) => result,
        };
        let size_bytes = result.meta.size;
        if size_bytes > OBJECT_BYTES_MAX {
            let text = format!("{what}: {size_bytes} bytes are more than {OBJECT_BYTES_MAX}");
            return Err(Fault::new(Kind::Length, text));
        }
        let fields = result.extensions.get::<Fields>();
        let expected = fields.and_then(|fields| expected(built.kind, is_whole, fields.iter()));
        let described = Described {
            stamp: stamp_of(&result.meta),
            etag: result.meta.e_tag.clone(),
            expected,
        };
        Ok(Content {
            described,
            range: result.range.clone(),
            stream: result.into_stream(),
            stall: self.settings.stall,
            what,
        })
    }

    fn built(&self) -> Built {
        let built = self.built.lock();
        built.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn stalled(what: &str, stall: Duration) -> Fault {
    let seconds = stall.as_secs_f32();
    Fault::new(
        Kind::Stalled,
        format!("{what}: the origin sent nothing for {seconds} s"),
    )
}

fn stamp_of(meta: &ObjectMeta) -> Stamp {
    // Listings may have fractions of seconds that replies do not.
    let seconds = meta.last_modified.timestamp();
    Stamp::new(meta.size, seconds, meta.e_tag.as_deref())
}

/// The name of an object beneath a prefix.
fn relative<'a>(prefix: &Path, location: &'a Path) -> Option<&'a str> {
    let (prefix, location) = (prefix.as_ref(), location.as_ref());
    if prefix.is_empty() {
        return Some(location);
    }
    location.strip_prefix(prefix)?.strip_prefix('/')
}

/// Whether a file can have this name and a request ask for it. What begins with a dot is not served.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.len() <= PART_BYTES_MAX;
    name.len() <= NAME_BYTES_MAX
        && !name.contains(char::is_control)
        && !name.contains('\\')
        && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_files_can_have_and_requests_ask_for() {
        for name in ["a", "a/b.m4s", "ä ö/ü", &"a".repeat(255)] {
            assert!(is_name(name), "{name}");
        }
        let long = ["a".repeat(256), "a/".repeat(512) + "a"];
        let refused = [
            "", "/a", "a/", "a//b", ".", "..", "a/../b", ".a", "a/.b", "a\n", "a\\b",
        ];
        for name in refused.into_iter().chain(long.iter().map(String::as_str)) {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn names_are_relative_to_the_prefix() {
        let of = |prefix: &str, location: &str| {
            let location = Path::parse(location).unwrap();
            relative(&Path::parse(prefix).unwrap(), &location).map(str::to_owned)
        };
        assert_eq!(of("", "a/b").as_deref(), Some("a/b"));
        assert_eq!(of("films", "films/a/b").as_deref(), Some("a/b"));
        assert_eq!(of("films", "films2/a"), None);
        assert_eq!(of("films", "films"), None);
    }
}
