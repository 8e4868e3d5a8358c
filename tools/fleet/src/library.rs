//! The library: plain objects of seeded content, long ones that are sent slowly, and films in HLS and DASH.
//!
//! What a name has can be computed, so viewers compare every byte. Sizes and the trace follow from a seed alone: each
//! fleet and each rival is asked for the same objects in the same order.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use testbed::content::{Content, OBJECT_SEED};
use testbed::film;
use testbed::random::Random;

/// Objects that are sent slowly, so that a fault finds them in mid-stream.
pub(crate) const LONG_COUNT: u64 = 8;
const LONG_BYTES: u64 = 6 << 20;

/// Smallest plain object, and how often its size may double.
const SMALLEST_BYTES: f64 = 16_384.0;
const DOUBLINGS: f64 = 5.0;

/// Exponent of Zipf's law: how much more the first title is asked for than the others.
pub(crate) const EXPONENT: f64 = 1.0;

/// The film's length in seconds: beyond all faults of a run.
pub(crate) const FILM_SECONDS: u32 = 48;

/// The films' names, and which player plays them.
pub(crate) const HLS: &str = "films/hls/master.m3u8";
pub(crate) const DASH: &str = "films/dash/film.mpd";

/// An object whose every byte is known.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) name: String,
    pub(crate) content: Content,
}

/// A number from 0 to 1.
fn fraction(random: &mut Random) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "53 bits are enough")]
    let numerator = (random.next() >> 11) as f64;
    numerator / (1_u64 << 53) as f64
}

/// Plain objects, sizes spread evenly over powers of two.
pub(crate) fn plain(count: u64) -> Vec<Object> {
    let mut random = Random::new(1);
    let objects = (0..count).map(|index| {
        let size = SMALLEST_BYTES * (fraction(&mut random) * DOUBLINGS).exp2();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most 32 times the smallest"
        )]
        let content = Content::new(OBJECT_SEED + index, size as u64);
        let name = format!("o/{index:06}.bin");
        Object { name, content }
    });
    objects.collect()
}

/// Long objects.
pub(crate) fn long() -> Vec<Object> {
    let objects = (0..LONG_COUNT).map(|index| Object {
        name: format!("long/{index}.bin"),
        content: Content::new(OBJECT_SEED + 1_000_000_000 + index, LONG_BYTES),
    });
    objects.collect()
}

/// Which of so many objects is asked for, request by request.
pub(crate) fn trace(objects: usize, requests: usize) -> Vec<usize> {
    let mut random = Random::new(2);
    let mut by_rank: Vec<usize> = (0..objects).collect();
    random.shuffle(&mut by_rank);
    let mut sum = 0.0;
    let mut sums = Vec::with_capacity(objects);
    for rank in 1..=objects {
        #[expect(clippy::cast_precision_loss, reason = "ranks are far below 2^52")]
        let weight = (rank as f64).powf(-EXPONENT);
        sum += weight;
        sums.push(sum);
    }
    let draws = (0..requests).map(|_| {
        let drawn = fraction(&mut random) * sum;
        let rank = sums.partition_point(|it| *it <= drawn);
        by_rank[rank.min(objects - 1)]
    });
    draws.collect()
}

/// Makes the films beneath `folder` and lists their files. Playlists name `steering` as the server to ask, and `origin`
/// as the place where they are themselves.
pub(crate) fn make_films(folder: &Path, origin: &str, steering: &str) -> Result<Vec<PathBuf>> {
    let (hls, dash) = (folder.join("films/hls"), folder.join("films/dash"));
    fs::create_dir_all(&hls)?;
    fs::create_dir_all(&dash)?;
    let source = folder.join("source.mp4");
    let group = (2 * film::FRAME_RATE).to_string();
    let keyed = ["-g", &group, "-keyint_min", &group, "-sc_threshold", "0"];
    let options = [&keyed[..], &["-b:v", "600k"]].concat();
    film::make(&source, FILM_SECONDS, "320x180", &options)?;
    let options = "-f hls -hls_playlist_type vod -hls_time 2 -master_pl_name master.m3u8";
    let options: Vec<&str> = options.split(' ').collect();
    film::wrap(&source, &hls.join("film.m3u8"), &options)?;
    let options: Vec<&str> = "-f dash -seg_duration 2".split(' ').collect();
    film::wrap(&source, &folder.join(DASH), &options)?;
    insert(
        &folder.join(HLS),
        "#EXTM3U\n",
        &format!(
            "#EXT-X-CONTENT-STEERING:SERVER-URI=\"{steering}/steer?path=/{HLS}\",PATHWAY-ID=\".\"\n"
        ),
    )?;
    insert(
        &folder.join(DASH),
        "</ProgramInformation>\n",
        &format!(
            "<ContentSteering defaultServiceLocation=\".\" queryBeforeStart=\"true\">\
             {steering}/steer?path=/{DASH}</ContentSteering>\n\
             <BaseURL serviceLocation=\".\">{origin}/films/dash/</BaseURL>\n"
        ),
    )?;
    let mut files = Vec::new();
    for folder in [hls, dash] {
        for entry in fs::read_dir(&folder)? {
            files.push(entry?.path());
        }
    }
    Ok(files)
}

/// Puts `text` behind the first `mark` of a file.
fn insert(file: &Path, mark: &str, text: &str) -> Result<()> {
    let old = fs::read_to_string(file)?;
    let (before, behind) = old
        .split_once(mark)
        .with_context(|| format!("{} has no {mark:?}", file.display()))?;
    fs::write(file, format!("{before}{mark}{text}{behind}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_the_same_each_time_and_follows_zipfs_law() {
        let requests = trace(1_000, 20_000);
        assert_eq!(requests, trace(1_000, 20_000));
        let mut counts = vec![0_u32; 1_000];
        for index in &requests {
            counts[*index] += 1;
        }
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        // The sum of 1/n up to 1,000 is 7.49: the first has a share of 13.4 %.
        assert!((2_400..2_950).contains(&counts[0]), "{}", counts[0]);
        assert!((1_150..1_550).contains(&counts[1]), "{}", counts[1]);
    }

    #[test]
    fn sizes_are_within_their_bounds_and_differ() {
        let objects = plain(1_000);
        let sizes = objects.iter().map(|it| it.content.size_bytes);
        assert!(sizes.clone().all(|it| (16_384..=524_288).contains(&it)));
        assert!(sizes.clone().min() < Some(17_000) && sizes.max() > Some(500_000));
    }
}
