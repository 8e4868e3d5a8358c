//! A table of fixed capacity, addressed by index; the index freed last is reused first.

/// The table.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Room for `capacity` entries, allocated now.
    pub(crate) fn new(capacity: usize) -> Self {
        let count = u32::try_from(capacity).expect("invariant: a table has fewer than 2^32 places");
        let mut places = Vec::with_capacity(capacity);
        places.resize_with(capacity, || None);
        Self {
            places,
            free: (0..count).rev().collect(),
        }
    }

    /// Entries in use.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there is no room.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Puts an entry in; gives it back if there is no room.
    pub(crate) fn insert(&mut self, entry: T) -> Result<u32, T> {
        let Some(index) = self.free.pop() else {
            return Err(entry);
        };
        self.places[index as usize] = Some(entry);
        Ok(index)
    }

    pub(crate) fn entry(&self, index: u32) -> Option<&T> {
        self.places.get(index as usize)?.as_ref()
    }

    pub(crate) fn entry_mut(&mut self, index: u32) -> Option<&mut T> {
        self.places.get_mut(index as usize)?.as_mut()
    }

    /// Asks the processor for the first `bytes` of an entry that will be needed soon
    /// ([`memory::prefetch`]).
    pub(crate) fn prefetch(&self, index: u32, bytes: usize) {
        if let Some(place) = self.places.get(index as usize) {
            memory::prefetch_beginning(place, bytes);
        }
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.places.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }

    /// The indexes in use.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        let indexes = 0..u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        indexes.filter(|index| self.entry(*index).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn a_full_table_gives_the_entry_back() {
        let mut slab = Slab::new(1);
        assert_eq!(slab.insert('a'), Ok(0));
        assert!(slab.is_full());
        assert_eq!(slab.insert('b'), Err('b'));
        assert_eq!(slab.remove(0), Some('a'));
        assert_eq!(slab.remove(0), None);
        assert_eq!((slab.len(), slab.insert('c')), (0, Ok(0)));
        assert_eq!(slab.indexes().collect::<Vec<_>>(), [0]);
    }
}
