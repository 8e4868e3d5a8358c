//! What a store counts.

/// What a store did since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Look-ups answered by an object already open.
    pub store_shared_lookups: u64,
    /// Look-ups that the kernel's caches answered at once.
    pub store_inline_lookups: u64,
    /// Look-ups submitted to the threads.
    pub store_threaded_lookups: u64,
    /// Look-ups refused, whatever the reason, but for want of room.
    pub store_refused_lookups: u64,
    /// Look-ups that found no room.
    pub store_full_lookups: u64,
    /// Objects opened.
    pub store_opened_objects: u64,
    /// Objects closed, for whatever reason.
    pub store_closed_objects: u64,
    /// Objects whose path was found to name another file, or none.
    pub store_replaced_objects: u64,
    /// Objects closed because they were unused for [`crate::StoreConfig::unused_time_max`].
    pub store_expired_objects: u64,
    /// Look-ups refused because their file system did not answer in time.
    pub store_overdue_lookups: u64,
    /// Look-ups that the threads answered after their deadline.
    pub store_late_lookups: u64,
    /// Descriptors handed to the threads to be closed.
    pub store_threaded_closes: u64,
    /// Of these, closed.
    pub store_finished_closes: u64,
    /// Times the directory was opened again.
    pub store_reopened_roots: u64,
    /// Objects that were in use for [`crate::StoreConfig::retired_time_max`] after their names led elsewhere.
    pub store_outdated_objects: u64,
    /// Times the devices of a raw store, or its newest catalogue, could not be read.
    pub store_failed_catalogues: u64,
}

impl Counters {
    /// Name and value of every counter, in a fixed order.
    #[must_use]
    pub fn as_pairs(&self) -> [(&'static str, u64); 16] {
        [
            ("store_shared_lookups", self.store_shared_lookups),
            ("store_inline_lookups", self.store_inline_lookups),
            ("store_threaded_lookups", self.store_threaded_lookups),
            ("store_refused_lookups", self.store_refused_lookups),
            ("store_full_lookups", self.store_full_lookups),
            ("store_opened_objects", self.store_opened_objects),
            ("store_closed_objects", self.store_closed_objects),
            ("store_replaced_objects", self.store_replaced_objects),
            ("store_expired_objects", self.store_expired_objects),
            ("store_overdue_lookups", self.store_overdue_lookups),
            ("store_late_lookups", self.store_late_lookups),
            ("store_threaded_closes", self.store_threaded_closes),
            ("store_finished_closes", self.store_finished_closes),
            ("store_reopened_roots", self.store_reopened_roots),
            ("store_outdated_objects", self.store_outdated_objects),
            ("store_failed_catalogues", self.store_failed_catalogues),
        ]
    }
}
