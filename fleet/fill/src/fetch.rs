//! Brings one object: in parts side by side, resumed, at most as fast as is allowed, and compared before it has a name.
//!
//! **Memory is bounded by permits**: each request to the origin has one while it runs, and holds no more than
//! [`REQUEST_BYTES`]. It refuses content that is longer or shorter than was said, of another version, or with another
//! digest; then nothing appears.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tokio::sync::Semaphore;

use crate::fault::{Fault, Kind};
use crate::origin::{Content, Described, Origin};
use crate::partial::{Finished, Partial};
use crate::plan::Fetch;
use crate::rate::Bucket;
use crate::stamp::Stamp;

/// The most memory of a request: hyper's buffer of an HTTP/1 connection (8 KiB + 400 KiB), a piece on its way to the
/// disk, of the same size at most, and TLS's records.
pub const REQUEST_BYTES: u64 = 1 << 20;
/// Parts of one object at once.
const PARTS_AT_ONCE: usize = 8;

/// Holds all requests together to a rate.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    bucket: Mutex<Bucket>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            bucket: Mutex::default(),
        }
    }
}

impl Pace {
    /// Sets the rate, bytes a second.
    pub fn set_rate(&self, rate: Option<u64>) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.set_rate(rate);
    }

    /// Waits until bytes that have come are within the rate.
    async fn take(&self, bytes: u64) {
        let wait_ns = {
            let now_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(now_ns, bytes)
        };
        if wait_ns > 0 {
            tokio::time::sleep(Duration::from_nanos(wait_ns)).await;
        }
    }
}

/// What all fetches share.
#[derive(Debug)]
pub struct Fetcher {
    /// Whom it asks.
    pub origin: Arc<Origin>,
    /// Where partial objects are.
    pub folder: PathBuf,
    /// Bytes of a part; objects of at most one part are fetched by one request.
    pub part_bytes: u64,
    /// One for each request, of [`REQUEST_BYTES`].
    pub permits: Arc<Semaphore>,
    /// The rate.
    pub pace: Arc<Pace>,
    /// Bytes that came.
    pub received_bytes: Arc<AtomicU64>,
}

/// What came of it.
#[derive(Debug)]
pub enum Fetched {
    /// A copy that is to get its name.
    Whole {
        /// The copy.
        finished: Finished,
        /// What was compared beside the length.
        verified: &'static str,
        /// Bytes that were there before.
        resumed_bytes: u64,
    },
    /// The copy that is there is of the origin's version.
    Unchanged,
    /// The origin has this version, for which there may be no room.
    Described(Stamp),
}

impl Fetcher {
    /// Brings an object.
    ///
    /// # Errors
    /// Why it did not come. What is there of it is gone on with the next time, unless it was wrong.
    pub async fn fetch(&self, job: &Fetch) -> Result<Fetched, Fault> {
        let has_partial =
            |stamp| Partial::resume(&self.folder, &job.name, stamp, self.part_bytes).is_some();
        let is_small = |stamp: Stamp| stamp.size_bytes <= self.part_bytes && !has_partial(stamp);
        if job.listed.is_some_and(is_small) {
            return self.fetch_whole(job).await;
        }
        let described = {
            let _permit = self.permit().await;
            self.origin.describe(&job.name).await?
        };
        if job.held == Some(described.stamp) {
            return Ok(Fetched::Unchanged);
        }
        if !has_room(job, described.stamp) {
            return Ok(Fetched::Described(described.stamp));
        }
        if is_small(described.stamp) {
            return self.fetch_whole(job).await;
        }
        match self.fetch_parts(job, &described).await {
            Err(fault) if fault.kind == Kind::NoRanges => self.fetch_whole(job).await,
            fetched => fetched,
        }
    }

    async fn permit(&self) -> tokio::sync::SemaphorePermit<'_> {
        let permit = self.permits.acquire().await;
        permit.expect("invariant: the semaphore is never closed")
    }

    /// By one request.
    async fn fetch_whole(&self, job: &Fetch) -> Result<Fetched, Fault> {
        let _permit = self.permit().await;
        let name = &job.name;
        let mut content = self.origin.whole(name).await?;
        let described = content.described.clone();
        if job.held == Some(described.stamp) {
            return Ok(Fetched::Unchanged);
        }
        if let Some(listed) = job.listed {
            check_length(listed, described.stamp, name)?;
        }
        let stamp = described.stamp;
        if !has_room(job, stamp) {
            return Ok(Fetched::Described(stamp));
        }
        let created = Partial::create(&self.folder, name, stamp, self.part_bytes);
        let mut partial = created.map_err(|error| Fault::of_io(name, &error))?;
        let received = self
            .receive(&mut content, partial.file(), 0..stamp.size_bytes, name)
            .await;
        if let Err(fault) = received {
            // Without its order known, nothing of it counts.
            partial.discard();
            return Err(fault);
        }
        for (part, _) in partial.missing() {
            partial
                .mark_done(part)
                .map_err(|error| Fault::of_io(name, &error))?;
        }
        self.complete(partial, described, name, 0).await
    }

    /// By a request for each part that is not there yet.
    async fn fetch_parts(&self, job: &Fetch, described: &Described) -> Result<Fetched, Fault> {
        let name = &job.name;
        let stamp = described.stamp;
        let mut partial = match Partial::resume(&self.folder, name, stamp, self.part_bytes) {
            Some(partial) => partial,
            None => {
                let created = Partial::create(&self.folder, name, stamp, self.part_bytes);
                created.map_err(|error| Fault::of_io(name, &error))?
            }
        };
        let resumed_bytes = partial.done_bytes();
        let file = partial.file();
        let parts = partial.missing().into_iter().map(|(part, range)| {
            let file = Arc::clone(&file);
            async move {
                let _permit = self.permit().await;
                let mut content = self.origin.part(name, described, range.clone()).await?;
                if content.range != range {
                    let text =
                        format!("GET {name}: the origin sent another part than was asked for");
                    return Err(Fault::new(Kind::Protocol, text));
                }
                self.receive(&mut content, file, range, name).await?;
                Ok(part)
            }
        });
        let mut parts = futures_util::stream::iter(parts).buffer_unordered(PARTS_AT_ONCE);
        let mut failed = None;
        while let Some(part) = parts.next().await {
            match part {
                Ok(part) => {
                    let marked = partial.mark_done(part);
                    failed = marked.err().map(|error| Fault::of_io(name, &error));
                }
                Err(fault) => failed = Some(fault),
            }
            if failed.is_some() {
                break;
            }
        }
        drop(parts);
        match failed {
            None => {
                self.complete(partial, described.clone(), name, resumed_bytes)
                    .await
            }
            Some(fault) => {
                let is_useless = matches!(
                    fault.kind,
                    Kind::Changed | Kind::Absent | Kind::Length | Kind::NoRanges
                );
                // What has no room takes none from what would.
                if is_useless || fault.kind == Kind::NoSpace {
                    partial.discard();
                }
                Err(fault)
            }
        }
    }

    /// Writes a reply's content to its place.
    async fn receive(
        &self,
        content: &mut Content,
        file: Arc<File>,
        range: Range<u64>,
        name: &str,
    ) -> Result<(), Fault> {
        let mut offset = range.start;
        while let Some(bytes) = content.next().await? {
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            if offset.saturating_add(length) > range.end {
                let text = format!("GET {name}: the origin sent more than it said");
                return Err(Fault::new(Kind::Length, text));
            }
            let (file, at) = (Arc::clone(&file), offset);
            blocking(move || file.write_all_at(&bytes, at))
                .await
                .map_err(|error| Fault::of_io(name, &error))?;
            offset += length;
            self.received_bytes.fetch_add(length, Ordering::Relaxed);
            self.pace.take(length).await;
        }
        if offset < range.end {
            let (sent, said) = (offset - range.start, range.end - range.start);
            let text = format!("GET {name}: the origin sent {sent} bytes and had said {said}");
            return Err(Fault::new(Kind::Length, text));
        }
        Ok(())
    }

    /// Compares the whole with its digest, and makes it durable.
    async fn complete(
        &self,
        partial: Partial,
        described: Described,
        name: &str,
        resumed_bytes: u64,
    ) -> Result<Fetched, Fault> {
        let verified = described
            .expected
            .as_ref()
            .map_or("length", |it| it.algorithm.name());
        let failed = |error: std::io::Error| Fault::of_io(name, &error);
        let checked = blocking(move || {
            let is_right = match &described.expected {
                None => true,
                Some(expected) => partial.verify(expected)?,
            };
            Ok((partial, is_right))
        });
        let (partial, is_right) = checked.await.map_err(failed)?;
        if !is_right {
            partial.discard();
            let text = format!("GET {name}: what came is not what the origin's {verified} is of");
            return Err(Fault::new(Kind::Checksum, text));
        }
        let finished = blocking(move || partial.finish()).await.map_err(failed)?;
        Ok(Fetched::Whole {
            finished,
            verified,
            resumed_bytes,
        })
    }
}

/// Whether an object is no larger than what there is room for.
fn has_room(job: &Fetch, found: Stamp) -> bool {
    job.listed
        .is_some_and(|it| found.size_bytes <= it.size_bytes)
}

/// # Errors
/// Of one version there are two lengths.
fn check_length(said: Stamp, found: Stamp, name: &str) -> Result<(), Fault> {
    let is_same = (said.seconds, said.nanos) == (found.seconds, found.nanos);
    if is_same && said.size_bytes != found.size_bytes {
        let text = format!(
            "GET {name}: the listing says {} bytes, and the reply {}",
            said.size_bytes, found.size_bytes
        );
        return Err(Fault::new(Kind::Length, text));
    }
    Ok(())
}

/// Runs what may wait for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(std::io::Error::other(error.to_string())))
}
