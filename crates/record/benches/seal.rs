//! What sealing costs with either library, and what it costs beyond the AEAD alone: the same bytes
//! sealed by [`Sealer::seal`], framing and all, and by one call of aws-lc-rs that does nothing else.
//!
//! `cargo bench -p atlas-record --bench seal`
//!
//! First table: aws-lc's sealers beside the bare calls. Second table: ring's sealers beside aws-lc's.
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
use record::{AeadLibrary, Algorithm, ContentType, Sealer, TrafficKey, Version};

const ARENA_BYTES: usize = 64 << 20;
/// What one way seals before it is the other's turn: some 70 or 250 records.
const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = ARENA_BYTES / PIECE_BYTES;
/// Walks through the arena, the first not counted.
const WALKS: usize = 33;
const TURNS: usize = WALKS * PIECES;
/// The sizes that objects are sealed in: at first, and then.
const CONTENTS_BYTES: [usize; 2] = [4096, 15_360];

const KEY_BYTE: u8 = 0x3c;
const IV: [u8; 12] = [0x5a; 12];

fn main() {
    let mut arena = vec![0xa5; ARENA_BYTES];
    let ciphers = [
        (Algorithm::Aes128Gcm, &aead::AES_128_GCM),
        (Algorithm::Aes256Gcm, &aead::AES_256_GCM),
        (Algorithm::ChaCha20Poly1305, &aead::CHACHA20_POLY1305),
    ];
    print_heads("alone", "sealed");
    for (algorithm, aead) in ciphers {
        let unbound = UnboundKey::new(aead, &vec![KEY_BYTE; aead.key_len()]);
        let alone = Alone(LessSafeKey::new(
            unbound.expect("a key of the AEAD's length"),
        ));
        for version in [Version::Tls13, Version::Tls12] {
            let sealer = sealer(AeadLibrary::AwsLc, version, algorithm);
            let name = format!("{version:?} {algorithm:?}");
            compare(&name, &alone, &sealer, &mut arena);
        }
    }
    println!();
    print_heads("aws-lc", "ring");
    for (algorithm, _) in ciphers {
        let version = Version::Tls13;
        let [aws_lc, ring] = AeadLibrary::ALL.map(|library| sealer(library, version, algorithm));
        let name = format!("{version:?} {algorithm:?}");
        compare(&name, &aws_lc, &ring, &mut arena);
    }
}

fn print_heads(first: &str, second: &str) {
    let (first, second) = (format!("{first} GB/s"), format!("{second} GB/s"));
    println!(
        "{:<28}{:>8}{first:>14}{second:>14}{:>10}{:>20}",
        "", "bytes", "ratio", "quartiles"
    );
}

fn sealer(library: AeadLibrary, version: Version, algorithm: Algorithm) -> Sealer {
    let bytes = vec![KEY_BYTE; algorithm.key_bytes()];
    let key = TrafficKey::new(version, algorithm, &bytes, IV).expect("a key of the AEAD's length");
    Sealer::with_library(library, &key)
}

/// A way to seal the records that lie in a piece of the arena.
trait Way {
    fn seal(&self, piece: &mut [u8], record_bytes: usize, content_bytes: usize);
}

/// One call of aws-lc a content, with as much associated data as TLS 1.3 has.
struct Alone(LessSafeKey);

impl Way for Alone {
    fn seal(&self, piece: &mut [u8], record_bytes: usize, content_bytes: usize) {
        for (number, record) in piece.chunks_exact_mut(record_bytes).enumerate() {
            let mut nonce = IV;
            nonce[4..].copy_from_slice(&number.to_be_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let data = Aad::from([23, 3, 3, 60, 17]);
            let content = &mut record[..content_bytes];
            let tag = self.0.seal_in_place_separate_tag(nonce, data, content);
            black_box(tag.expect("the AEAD seals").as_ref());
        }
    }
}

impl Way for Sealer {
    fn seal(&self, piece: &mut [u8], record_bytes: usize, _content_bytes: usize) {
        for (number, record) in piece.chunks_exact_mut(record_bytes).enumerate() {
            let content_type = ContentType::ApplicationData;
            black_box(self.seal(number as u64, content_type, record));
        }
    }
}

fn compare(name: &str, first: &dyn Way, second: &Sealer, arena: &mut [u8]) {
    for content_bytes in CONTENTS_BYTES {
        let record_bytes = content_bytes + second.framing().overhead_bytes() as usize;
        let piece = |index: usize| index % PIECES * PIECE_BYTES..(index % PIECES + 1) * PIECE_BYTES;
        let mut turns: Vec<Turn> = (0..TURNS)
            .map(|turn| {
                let mut seconds = |way: &dyn Way, index: usize| {
                    let piece = &mut arena[piece(index)];
                    seconds(|| way.seal(piece, record_bytes, content_bytes))
                };
                let there = turn + PIECES / 2;
                if turn.is_multiple_of(2) {
                    let first = seconds(first, turn);
                    let second = seconds(second, there);
                    Turn { first, second }
                } else {
                    let second = seconds(second, there);
                    let first = seconds(first, turn);
                    Turn { first, second }
                }
            })
            .collect();
        // The first walk through the arena has warmed the machine up.
        turns.drain(..PIECES);
        let ratios = sorted(turns.iter().map(|turn| turn.second / turn.first));
        let first = sorted(turns.iter().map(|turn| turn.first));
        let second = sorted(turns.iter().map(|turn| turn.second));
        let gigabytes = (PIECE_BYTES / record_bytes * content_bytes) as f64 / 1e9;
        let (quarter, half) = (turns.len() / 4, turns.len() / 2);
        println!(
            "{name:<28}{content_bytes:>8}{:>14.2}{:>14.2}{:>10.3}{:>20}",
            gigabytes / first[half],
            gigabytes / second[half],
            ratios[half],
            format!("{:.3} to {:.3}", ratios[quarter], ratios[half + quarter]),
        );
    }
}

/// Seconds that one piece took in either way.
struct Turn {
    first: f64,
    second: f64,
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}
