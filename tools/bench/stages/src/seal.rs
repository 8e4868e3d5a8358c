//! Sealing alone: four records of a fetch in a slot, slot after slot, as `session` has them sealed.
//!
//! Included: the AEAD, moving the records apart, headers and trailers. Left out: finding the records
//! of a stretch of the stream, and keeping their tags. The bytes are those of the last sealing: what
//! is sealed does not change what it costs. A key is given up for another where the record room's
//! limit says so, as the server would ask for a KeyUpdate.

use anyhow::Result;
use memory::{Arena, ArenaConfig, FilledSlot};
use record::{Algorithm, Sealer, TrafficKey, Version};

use crate::FETCH_BYTES;
use crate::args::SealArgs;
use crate::timing::Step;

/// Content bytes of a record: four of them are a fetch.
const CONTENT_BYTES: u32 = 15_360;
const RECORDS: u32 = FETCH_BYTES / CONTENT_BYTES;

pub(crate) struct Seal {
    arena: Arena,
    /// Sealed in turn.
    slots: Vec<FilledSlot>,
    turn: usize,
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

/// What the bench's servers seal with.
const ALGORITHM: Algorithm = Algorithm::Aes128Gcm;

/// A key of its own for each generation; it protects nothing.
fn sealer(generation: u64) -> Result<Sealer> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&generation.to_be_bytes());
    let key = TrafficKey::new(Version::Tls13, ALGORITHM, &bytes, [0; 12])?;
    Ok(Sealer::new(&key))
}

impl Seal {
    pub(crate) fn new(args: &SealArgs) -> Result<Self> {
        let (arena, slots) = filled_slots(args.slots)?;
        Ok(Self {
            arena,
            slots,
            turn: 0,
            sealer: sealer(0)?,
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
        if self.number + u64::from(RECORDS) > ALGORITHM.records_max() {
            self.generation += 1;
            self.sealer = sealer(self.generation)?;
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

    fn seal() -> Seal {
        Seal::new(&SealArgs { slots: 2 }).unwrap()
    }

    #[test]
    fn every_byte_of_every_slot_is_sealed_in_turn() {
        let mut seal = seal();
        assert_eq!(seal.step().unwrap(), 61_440);
        let zeros = |seal: &Seal, slot: usize| {
            let payload = seal.arena.payload(&seal.slots[slot]);
            payload.iter().filter(|byte| **byte == 0).count()
        };
        // One byte in 256 is zero by chance.
        assert!(zeros(&seal, 0) < 61_440 / 100);
        assert_eq!(zeros(&seal, 1), 61_440);
        seal.step().unwrap();
        assert!(zeros(&seal, 1) < 61_440 / 100);
    }

    #[test]
    fn each_record_is_what_the_room_seals_under_its_number() {
        let mut seal = seal();
        seal.step().unwrap();
        let other = sealer(0).unwrap();
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
        let mut seal = seal();
        seal.number = ALGORITHM.records_max() - 4;
        seal.step().unwrap();
        assert_eq!(seal.generation, 0);
        seal.step().unwrap();
        assert_eq!((seal.generation, seal.number), (1, 4));
    }
}
