//! What sealing costs beyond the AEAD alone: the same bytes sealed by [`Sealer::seal`], framing
//! and all, and by one call of aws-lc-rs that does nothing else.
//!
//! `cargo bench -p atlas-record --bench seal`
//!
//! Records lie back to back in an arena far larger than the second-level cache, as they do in
//! slots. The two ways take turns on pieces of it half an arena apart, each going first every
//! other time, so that both meet the same caches, clock rates and neighbours. A turn is a fraction
//! of a millisecond, shorter than a time slice, and gives one ratio of times: the median of some
//! two thousand is printed, and the quartiles beside it. Over 1 means slower.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]
#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock that the room does not"
)]

use std::hint::black_box;
use std::time::Instant;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use record::{Algorithm, ContentType, Sealer, TrafficKey, Version};

const ARENA_BYTES: usize = 64 << 20;
/// What one way seals before it is the other's turn: some 70 or 250 records.
const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = ARENA_BYTES / PIECE_BYTES;
/// Walks through the arena, the first not counted.
const WALKS: usize = 33;
const TURNS: usize = WALKS * PIECES;
/// The sizes that objects are sealed in: at first, and then.
const CONTENTS_BYTES: [usize; 2] = [4096, 15_360];

const IV: [u8; 12] = [0x5a; 12];

fn main() {
    let mut arena = vec![0xa5; ARENA_BYTES];
    println!(
        "{:<28}{:>8}{:>14}{:>14}{:>10}{:>20}",
        "", "bytes", "alone GB/s", "sealed GB/s", "ratio", "quartiles"
    );
    for (algorithm, aead) in [
        (Algorithm::Aes128Gcm, &aead::AES_128_GCM),
        (Algorithm::Aes256Gcm, &aead::AES_256_GCM),
        (Algorithm::ChaCha20Poly1305, &aead::CHACHA20_POLY1305),
    ] {
        let key = vec![0x3c; aead.key_len()];
        let unbound = UnboundKey::new(aead, &key).expect("a key of the AEAD's length");
        let alone = LessSafeKey::new(unbound);
        for version in [Version::Tls13, Version::Tls12] {
            let key = TrafficKey::new(version, algorithm, &key, IV).expect("the same key");
            let name = format!("{version:?} {algorithm:?}");
            compare(&name, &alone, &Sealer::new(&key), &mut arena);
        }
    }
    let key = UnboundKey::new(&aead::AES_128_GCM, &[0; 16]).expect("a key of the AEAD's length");
    let alone = LessSafeKey::new(key);
    compare("emulated", &alone, &Sealer::emulated(), &mut arena);
}

fn compare(name: &str, alone: &LessSafeKey, sealer: &Sealer, arena: &mut [u8]) {
    for content_bytes in CONTENTS_BYTES {
        let record_bytes = content_bytes + sealer.framing().overhead_bytes() as usize;
        let mut turns: Vec<Turn> = (0..TURNS)
            .map(|turn| Turn::take(turn, alone, sealer, arena, record_bytes))
            .collect();
        // The first walk through the arena has warmed the machine up.
        turns.drain(..PIECES);
        let ratios = sorted(turns.iter().map(|turn| turn.sealed / turn.alone));
        let alone = sorted(turns.iter().map(|turn| turn.alone));
        let sealed = sorted(turns.iter().map(|turn| turn.sealed));
        let gigabytes = (PIECE_BYTES / record_bytes * content_bytes) as f64 / 1e9;
        let (quarter, half) = (turns.len() / 4, turns.len() / 2);
        println!(
            "{name:<28}{content_bytes:>8}{:>14.2}{:>14.2}{:>10.3}{:>20}",
            gigabytes / alone[half],
            gigabytes / sealed[half],
            ratios[half],
            format!("{:.3} to {:.3}", ratios[quarter], ratios[half + quarter]),
        );
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Seconds that one piece took in either way.
struct Turn {
    alone: f64,
    sealed: f64,
}

impl Turn {
    fn take(
        turn: usize,
        alone: &LessSafeKey,
        sealer: &Sealer,
        arena: &mut [u8],
        record_bytes: usize,
    ) -> Self {
        let piece = |index: usize| index % PIECES * PIECE_BYTES..(index % PIECES + 1) * PIECE_BYTES;
        let (here, there) = (piece(turn), piece(turn + PIECES / 2));
        let content_bytes = record_bytes - sealer.framing().overhead_bytes() as usize;
        let seal_alone = |arena: &mut [u8]| {
            let records = arena[here.clone()].chunks_exact_mut(record_bytes);
            seal_alone(alone, records.map(|record| &mut record[..content_bytes]));
        };
        let seal_records = |arena: &mut [u8]| {
            seal_records(sealer, arena[there.clone()].chunks_exact_mut(record_bytes));
        };
        if turn.is_multiple_of(2) {
            let alone = seconds(|| seal_alone(arena));
            let sealed = seconds(|| seal_records(arena));
            Self { alone, sealed }
        } else {
            let sealed = seconds(|| seal_records(arena));
            let alone = seconds(|| seal_alone(arena));
            Self { alone, sealed }
        }
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

/// One call a content, with as much associated data as TLS 1.3 has.
fn seal_alone<'a>(key: &LessSafeKey, contents: impl Iterator<Item = &'a mut [u8]>) {
    for (number, content) in contents.enumerate() {
        let mut nonce = IV;
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from([23, 3, 3, 60, 17]), content);
        black_box(tag.expect("the AEAD seals").as_ref());
    }
}

fn seal_records<'a>(sealer: &Sealer, records: impl Iterator<Item = &'a mut [u8]>) {
    for (number, record) in records.enumerate() {
        black_box(sealer.seal(number as u64, ContentType::ApplicationData, record));
    }
}
