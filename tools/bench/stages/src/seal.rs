//! Sealing alone: four records of a fetch in a slot, slot after slot, as `session` has them sealed.
//!
//! Included: the AEAD, moving the records apart, headers and trailers. Left out: finding the records
//! of a stretch of the stream, and keeping their tags. The bytes are those of the last sealing: what
//! is sealed does not change what it costs. A key is given up for another where the record room's
//! limit says so, as the server would ask for a KeyUpdate.

use anyhow::Result;
use memory::{Arena, ArenaConfig, FilledSlot};
use record::{Sealer, TrafficKey, Version};

use crate::FETCH_BYTES;
use crate::args::{Cipher, Library, SealArgs};
use crate::timing::Step;

/// Content bytes of a record: four of them are a fetch.
const CONTENT_BYTES: u32 = 15_360;
const RECORDS: u32 = FETCH_BYTES / CONTENT_BYTES;

pub(crate) struct Seal {
    arena: Arena,
    /// Sealed in turn.
    slots: Vec<FilledSlot>,
    turn: usize,
    cipher: Cipher,
    aead_library: Library,
    sealer: Sealer,
    generation: u64,
    number: u64,
}

/// Slots with a fetch in each: zeros.
pub(crate) fn filled_slots(count: u32) -> Result<(Arena, Vec<FilledSlot>)> {
    let mut arena = Arena::new(ArenaConfig::new(count))?;
    let slots = std::iter::from_fn(|| arena.reserve())
        // No device was told of it, so it is filled with what is there.
        .map(|slot| slot.into_reading().into_filled(FETCH_BYTES))
        .collect();
    Ok((arena, slots))
}

/// A key of its own for each generation; it protects nothing.
fn sealer(cipher: Cipher, library: Library, generation: u64) -> Result<Sealer> {
    let algorithm = cipher.algorithm();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&generation.to_be_bytes());
    let key = TrafficKey::new(
        Version::Tls13,
        algorithm,
        &bytes[..algorithm.key_bytes()],
        [0; 12],
    )?;
    Ok(Sealer::with_library(library.of_record(), &key))
}

impl Seal {
    pub(crate) fn new(args: &SealArgs) -> Result<Self> {
        let (arena, slots) = filled_slots(args.slots)?;
        Ok(Self {
            arena,
            slots,
            turn: 0,
            cipher: args.cipher,
            aead_library: args.aead_library,
            sealer: sealer(args.cipher, args.aead_library, 0)?,
            generation: 0,
            number: 0,
        })
    }
}

impl Step for Seal {
    fn step(&mut self) -> Result<u64> {
        let framing = self.sealer.framing();
        let record_bytes = (CONTENT_BYTES + framing.overhead_bytes()) as usize;
        let room_bytes = RECORDS * framing.overhead_bytes();
        let slot = &mut self.slots[self.turn];
        let window = self
            .arena
            .window_mut(slot, framing.header_bytes, room_bytes);
        let run = &mut window[..RECORDS as usize * record_bytes];
        if self.number + u64::from(RECORDS) > self.cipher.algorithm().records_max() {
            self.generation += 1;
            self.sealer = sealer(self.cipher, self.aead_library, self.generation)?;
            self.number = 0;
        }
        record::seal_run(&self.sealer, self.number, CONTENT_BYTES, run);
        self.number += u64::from(RECORDS);
        self.turn = (self.turn + 1) % self.slots.len();
        Ok(FETCH_BYTES.into())
    }
}

#[cfg(test)]
mod tests {
    use record::ContentType;

    use super::*;

    fn seal(cipher: Cipher) -> Seal {
        let args = SealArgs {
            cipher,
            aead_library: Library::Ring,
            slots: 2,
        };
        Seal::new(&args).unwrap()
    }

    #[test]
    fn every_byte_of_every_slot_is_sealed_in_turn() {
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::Chacha20] {
            let mut seal = seal(cipher);
            assert_eq!(seal.step().unwrap(), 61_440);
            let zeros = |seal: &Seal, slot: usize| {
                let payload = seal.arena.payload(&seal.slots[slot]);
                payload.iter().filter(|byte| **byte == 0).count()
            };
            // One byte in 256 is zero by chance.
            assert!(zeros(&seal, 0) < 61_440 / 100, "{cipher:?}");
            assert_eq!(zeros(&seal, 1), 61_440, "{cipher:?}");
            seal.step().unwrap();
            assert!(zeros(&seal, 1) < 61_440 / 100, "{cipher:?}");
        }
    }

    #[test]
    fn each_record_is_what_the_room_seals_under_its_number() {
        let mut seal = seal(Cipher::Aes128Gcm);
        seal.step().unwrap();
        let other = sealer(Cipher::Aes128Gcm, Library::AwsLc, 0).unwrap();
        let framing = other.framing();
        let room_bytes = 4 * framing.overhead_bytes();
        let window = seal
            .arena
            .window(&seal.slots[0], framing.header_bytes, room_bytes);
        let mut records = window.chunks(15_360 + framing.overhead_bytes() as usize);
        for number in 0..4 {
            let mut record = vec![0; 15_360 + framing.overhead_bytes() as usize];
            other.seal(number, ContentType::ApplicationData, &mut record);
            assert_eq!(records.next(), Some(&record[..]), "record {number}");
        }
    }

    #[test]
    fn a_key_that_sealed_enough_is_given_up() {
        let mut seal = seal(Cipher::Aes128Gcm);
        seal.number = Cipher::Aes128Gcm.algorithm().records_max() - 4;
        seal.step().unwrap();
        assert_eq!(seal.generation, 0);
        seal.step().unwrap();
        assert_eq!((seal.generation, seal.number), (1, 4));
    }
}
