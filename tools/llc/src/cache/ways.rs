//! The sets of one cache: which lines are there, what they hold, and which makes room.
//!
//! Every way has an age, and the oldest of the permitted ways makes room. Under LRU the ages of a set's lines are
//! 0, 1, 2, ... by how long ago they were touched; under SRRIP they are the predicted intervals, 0-3. A way without a
//! line is older than any line.

use crate::machine::Replacement;
use crate::rng::Rng;

use super::Stage;

/// No line has this number: memory has 2^31 lines.
const EMPTY: u32 = u32::MAX;
const EMPTY_AGE: u8 = u8::MAX;
/// What a line may reach, and what a new one begins with, under [`Replacement::Srrip`].
const SRRIP_MAX: u8 = 3;
const SRRIP_NEW: u8 = 2;
/// Most ways: the paper's machine has them. Loops of a fixed length are quick.
const WAYS_MAX: usize = 20;

/// What is known of a line that is in a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) is_dirty: bool,
    /// The last stage that touched it.
    pub(super) stage: Stage,
}

/// A line with its state.
pub(super) type Line = (u32, State);

/// A set, side by side in two lines of the machine that runs the model. Ways that the cache lacks are [`EMPTY`], and
/// their ages mean nothing.
#[derive(Clone, Debug)]
#[repr(align(128))]
struct Set {
    lines: [u32; WAYS_MAX],
    states: [State; WAYS_MAX],
    ages: [u8; WAYS_MAX],
}

/// Sets of ways.
#[derive(Debug)]
pub(super) struct Ways {
    sets: Vec<Set>,
    ways: usize,
    replacement: Replacement,
    rng: Rng,
}

/// Where a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    set: usize,
    way: usize,
}

impl Ways {
    pub(super) fn new(sets: u32, ways: u32, replacement: Replacement, seed: u64) -> Self {
        let ways = ways as usize;
        assert!(
            (1..=WAYS_MAX).contains(&ways),
            "{ways} ways: the model has {WAYS_MAX}"
        );
        let set = Set {
            lines: [EMPTY; WAYS_MAX],
            states: [State {
                is_dirty: false,
                stage: Stage::Metadata,
            }; WAYS_MAX],
            ages: [EMPTY_AGE; WAYS_MAX],
        };
        let sets = vec![set; sets as usize];
        Self {
            sets,
            ways,
            replacement,
            rng: Rng::new(seed),
        }
    }

    /// The place of a line.
    #[inline]
    pub(super) fn find(&self, set: usize, line: u32) -> Option<Place> {
        // Without a branch for each way, so that the compiler compares several at once.
        let lines = self.sets[set].lines.iter().enumerate();
        let mask = lines.fold(0u32, |mask, (way, it)| mask | u32::from(*it == line) << way);
        let way = mask.trailing_zeros() as usize;
        (mask != 0).then_some(Place { set, way })
    }

    /// The line at `place` was touched.
    #[inline]
    pub(super) fn touch(&mut self, place: Place) {
        let set = &mut self.sets[place.set];
        match self.replacement {
            Replacement::Srrip => set.ages[place.way] = 0,
            Replacement::Lru => set.rejuvenate(place.way),
            Replacement::Random => {}
        }
    }

    #[inline]
    pub(super) fn state(&mut self, place: Place) -> &mut State {
        &mut self.sets[place.set].states[place.way]
    }

    /// Takes a line out.
    #[inline]
    pub(super) fn remove(&mut self, place: Place) -> State {
        let set = &mut self.sets[place.set];
        let left = set.ages[place.way];
        if self.replacement == Replacement::Lru {
            for age in &mut set.ages {
                *age -= u8::from(*age > left && *age != EMPTY_AGE);
            }
        }
        set.ages[place.way] = EMPTY_AGE;
        set.lines[place.way] = EMPTY;
        set.states[place.way]
    }

    /// Puts a line that is not in its set into one of the first `ways` ways, and returns the line that made room.
    #[inline]
    pub(super) fn insert(&mut self, set: usize, (line, state): Line, ways: u32) -> Option<Line> {
        let set = &mut self.sets[set];
        let ways = self.ways.min(ways as usize);
        let (mut way, age) = set.oldest(ways);
        match self.replacement {
            _ if age == EMPTY_AGE => {}
            Replacement::Random => way = self.rng.below(ways as u32) as usize,
            Replacement::Srrip => set.grow_older(ways, SRRIP_MAX - age),
            Replacement::Lru => {}
        }
        let evicted = (set.lines[way], set.states[way]);
        set.lines[way] = line;
        set.states[way] = state;
        match self.replacement {
            Replacement::Srrip => set.ages[way] = SRRIP_NEW,
            Replacement::Lru => set.rejuvenate(way),
            Replacement::Random => set.ages[way] = 0,
        }
        (evicted.0 != EMPTY).then_some(evicted)
    }

    /// Every line, with its state.
    pub(super) fn iter(&self) -> impl Iterator<Item = Line> {
        let of_set = |set: &Set| std::iter::zip(set.lines, set.states);
        let all = self.sets.iter().flat_map(of_set);
        all.filter(|(line, _)| *line != EMPTY)
    }
}

impl Set {
    /// The oldest of the first `ways` ways, of equal ones the first, and its age.
    #[inline]
    fn oldest(&self, ways: usize) -> (usize, u8) {
        // The age before the way, so that the greatest number is the oldest, and of equal ones the first way.
        let key = |way: usize, age: u8| i16::from(age) << 5 | (31 - way) as i16;
        let keys = |way: usize| {
            if way < ways {
                key(way, self.ages[way])
            } else {
                0
            }
        };
        let greatest = match ways {
            // The default of DDIO.
            2 => keys(0).max(keys(1)),
            _ => (0..WAYS_MAX).map(keys).fold(0, i16::max),
        };
        (31 - (greatest & 31) as usize, (greatest >> 5) as u8)
    }

    /// Under SRRIP, when no line is at the end: the first `ways` ways grow older until one is. Others do not.
    #[inline]
    fn grow_older(&mut self, ways: usize, more: u8) {
        if more == 0 {
            return;
        }
        for (way, age) in self.ages.iter_mut().enumerate() {
            *age = age.wrapping_add(if way < ways { more } else { 0 });
        }
    }

    /// Under LRU, the line of this way is now the youngest, and those that were younger are one older.
    #[inline]
    fn rejuvenate(&mut self, way: usize) {
        let before = self.ages[way];
        for age in &mut self.ages {
            *age += u8::from(*age < before);
        }
        self.ages[way] = 0;
    }
}
