//! What a store counts.

use counters::counters;

counters! {
    /// What a store did since start.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Counters {
        /// Look-ups answered by a file already open.
        pub store_shared_lookups: u64,
        /// Look-ups answered at once by the kernel's caches.
        pub store_inline_lookups: u64,
        /// Look-ups submitted to the threads.
        pub store_threaded_lookups: u64,
        /// Look-ups refused for any reason but a lack of room.
        pub store_refused_lookups: u64,
        /// Look-ups refused for lack of room.
        pub store_full_lookups: u64,
        /// Files opened.
        pub store_opened_objects: u64,
        /// Files closed.
        pub store_closed_objects: u64,
        /// Files whose path was found to name another file, or none.
        pub store_replaced_objects: u64,
        /// Files closed because they were unused for long.
        // For `crate::StoreConfig::unused_time_max`.
        pub store_expired_objects: u64,
        /// Look-ups refused because their file system did not answer in time.
        pub store_overdue_lookups: u64,
        /// Look-ups that the threads answered after they were refused.
        pub store_late_lookups: u64,
        /// Files handed to the threads to be closed.
        pub store_threaded_closes: u64,
        /// Files the threads have closed.
        pub store_finished_closes: u64,
        /// Times the served directory was opened again.
        pub store_reopened_roots: u64,
        /// Files or objects whose clients were reset, `replaced_timeout_seconds` after they were
        /// replaced or removed.
        pub store_outdated_objects: u64,
        /// Times the devices of a raw store, or its newest catalogue, could not be read.
        pub store_failed_catalogues: u64,
    }
}
