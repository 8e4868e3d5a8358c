//! Sealing alone: four records of a fetch in a slot, slot after slot, as `session` has them sealed.
//!
//! Included: the AEAD, headers and trailers into the slot's headroom. Left out: finding the records
//! of a stretch of the stream, and keeping their tags. The bytes are those of the last sealing: what
//! is sealed does not change what it costs. A key is given up for another where the record room's
//! limit says so, as the server would ask for a KeyUpdate.

use anyhow::Result;
use memory::{Arena, ArenaConfig, FilledSlot};
use record::{ContentType, Sealer, TrafficKey, Version};

use crate::FETCH_BYTES;
use crate::args::{Cipher, SealArgs};
use crate::timing::Step;

/// Content bytes of a record: four of them are a fetch.
const CONTENT_BYTES: u32 = 15_360;

pub(crate) struct Seal {
    arena: Arena,
    /// Sealed in turn.
    slots: Vec<FilledSlot>,
    turn: usize,
    cipher: Cipher,
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
fn sealer(cipher: Cipher, generation: u64) -> Result<Sealer> {
    let algorithm = cipher.algorithm();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&generation.to_be_bytes());
    let key = TrafficKey::new(
        Version::Tls13,
        algorithm,
        &bytes[..algorithm.key_bytes()],
        [0; 12],
    )?;
    Ok(Sealer::new(&key))
}

impl Seal {
    pub(crate) fn new(args: &SealArgs) -> Result<Self> {
        let (arena, slots) = filled_slots(args.slots)?;
        Ok(Self {
            arena,
            slots,
            turn: 0,
            cipher: args.cipher,
            sealer: sealer(args.cipher, 0)?,
            generation: 0,
            number: 0,
        })
    }

    /// The next record's number, of a new key if the last has sealed enough.
    fn next_number(&mut self) -> Result<u64> {
        if self.number == self.cipher.algorithm().records_max() {
            self.generation += 1;
            self.sealer = sealer(self.cipher, self.generation)?;
            self.number = 0;
        }
        self.number += 1;
        Ok(self.number - 1)
    }
}

impl Step for Seal {
    fn step(&mut self) -> Result<u64> {
        let framing = self.sealer.framing();
        let records = FETCH_BYTES / CONTENT_BYTES;
        for record in 0..records {
            let number = self.next_number()?;
            let slot = &mut self.slots[self.turn];
            let room_bytes = records * framing.overhead_bytes();
            let window = self.arena.window_mut(slot, room_bytes, 0);
            let (room, payload) = window.split_at_mut(room_bytes as usize);
            let mut rooms = room.chunks_mut(framing.overhead_bytes() as usize);
            let room = rooms.nth(record as usize).unwrap_or_default();
            let (header, trailer) = room.split_at_mut(framing.header_bytes as usize);
            let mut contents = payload.chunks_mut(CONTENT_BYTES as usize);
            let content = contents.nth(record as usize).unwrap_or_default();
            let kind = ContentType::ApplicationData;
            self.sealer.seal(number, kind, content, header, trailer);
        }
        self.turn = (self.turn + 1) % self.slots.len();
        Ok(FETCH_BYTES.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(cipher: Cipher) -> Seal {
        Seal::new(&SealArgs { cipher, slots: 2 }).unwrap()
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
        let other = sealer(Cipher::Aes128Gcm, 0).unwrap();
        let framing = other.framing();
        let each = framing.overhead_bytes() as usize;
        let window = seal
            .arena
            .window(&seal.slots[0], 4 * framing.overhead_bytes(), 0);
        for number in 0..4 {
            let (mut content, mut room) = (vec![0; 15_360], vec![0; each]);
            let (header, trailer) = room.split_at_mut(framing.header_bytes as usize);
            let kind = ContentType::ApplicationData;
            other.seal(number as u64, kind, &mut content, header, trailer);
            assert_eq!(window[number * each..][..each], room, "record {number}");
            assert_eq!(window[4 * each + number * 15_360..][..15_360], content);
        }
    }

    #[test]
    fn a_key_that_sealed_enough_is_given_up() {
        let mut seal = seal(Cipher::Aes128Gcm);
        seal.number = Cipher::Aes128Gcm.algorithm().records_max();
        assert_eq!(seal.next_number().unwrap(), 0);
        assert_eq!(seal.generation, 1);
        assert_eq!(seal.next_number().unwrap(), 1);
        assert_eq!(seal.generation, 1);
    }
}
