//! The arena's memory: one anonymous mapping, in the largest pages to be had, touched at once.
//!
//! Three kinds of pages are tried, from the configured kind down:
//!
//! 1. Reserved 2 MiB pages (`MAP_HUGETLB`). `mmap` reserves them, but the hugetlb limit of a cgroup
//!    applies when they are touched, by SIGBUS. So `MADV_POPULATE_WRITE` touches them, which returns
//!    an error instead.
//! 2. Transparent huge pages: aligned to 2 MiB, with `MADV_HUGEPAGE`. The kernel may not provide
//!    them, so `/proc/self/smaps` is checked.
//! 3. Ordinary pages.
//!
//! It refuses nothing but a mapping the kernel refuses. Bounded by the length it is asked for,
//! rounded up to 2 MiB, and at start, for a moment, by 2 MiB more of address space.

use core::ptr::NonNull;
use std::fs;
use std::io;

/// Bytes of a huge page on x86-64 and, with 4 KiB granules, on arm64.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of an ordinary page. A larger one would only be touched more often than needed.
const PAGE_BYTES: usize = 4096;

/// The kind of pages an arena lies in, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PageKind {
    /// Reserved 2 MiB pages (`vm.nr_hugepages`).
    Huge2M,
    /// Transparent 2 MiB pages, all of it.
    Transparent,
    /// Ordinary pages, at least for a part.
    Ordinary,
}

/// An anonymous private mapping, all of it touched. Not unmapped on drop: see [`Mapping::unmap`].
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length_bytes: usize,
    pages: PageKind,
    fallback_reason: Option<String>,
}

// SAFETY: the mapping belongs to whoever owns this value, whatever the thread; it is not tied to
// the thread that made it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps and touches at least `bytes` bytes, aligned to 2 MiB, in `best` pages or worse.
    ///
    /// # Errors
    /// The errno of the last attempt.
    pub(crate) fn new(bytes: usize, best: PageKind) -> Result<Self, i32> {
        let length_bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let mut refused = None;
        if best == PageKind::Huge2M {
            match map_reserved(length_bytes) {
                Ok(base) => {
                    let (pages, fallback_reason) = (PageKind::Huge2M, None);
                    return Ok(Self {
                        base,
                        length_bytes,
                        pages,
                        fallback_reason,
                    });
                }
                Err(errno) => refused = Some(errno),
            }
        }
        let base = map_aligned(length_bytes)?;
        let wants_transparent = best != PageKind::Ordinary;
        let transparent = if wants_transparent {
            advise_huge(base, length_bytes)
        } else {
            Ok(())
        };
        touch(base, length_bytes);
        let transparent = transparent.and_then(|()| {
            if wants_transparent {
                check_huge(base, length_bytes)
            } else {
                Ok(())
            }
        });
        let (pages, problem) = match transparent {
            Ok(()) if wants_transparent => (PageKind::Transparent, None),
            Ok(()) => (PageKind::Ordinary, None),
            Err(problem) => (PageKind::Ordinary, Some(problem)),
        };
        let fallback_reason = match refused {
            Some(errno) => Some(explain_refusal(
                length_bytes / HUGE_PAGE_BYTES,
                errno,
                problem.as_deref(),
            )),
            None => problem,
        };
        Ok(Self {
            base,
            length_bytes,
            pages,
            fallback_reason,
        })
    }

    /// The address `offset_bytes` into the mapping.
    pub(crate) fn address(&self, offset_bytes: usize) -> *mut u8 {
        debug_assert!(
            offset_bytes < self.length_bytes,
            "offset {offset_bytes} is not mapped"
        );
        self.base.as_ptr().wrapping_add(offset_bytes)
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    pub(crate) fn pages(&self) -> PageKind {
        self.pages
    }

    pub(crate) fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Gives the memory back to the kernel.
    ///
    /// # Safety
    /// Nobody, neither code nor device, may use an address in it afterwards; called once.
    pub(crate) unsafe fn unmap(&mut self) {
        // SAFETY: the caller's promise; base and length are those of our own mapping.
        unsafe { unmap(self.base.as_ptr(), self.length_bytes) };
    }
}

/// Why there are no reserved pages, what is used instead (`problem`: why not transparent ones
/// either), and what to do.
fn explain_refusal(count: usize, errno: i32, problem: Option<&str>) -> String {
    let name = match errno {
        libc::ENOMEM => "ENOMEM".to_owned(),
        libc::EPERM => "EPERM".to_owned(),
        libc::EINVAL => "EINVAL".to_owned(),
        // The error of populating pages beyond a cgroup's limit.
        libc::EFAULT => "EFAULT: the hugetlb limit of the cgroup".to_owned(),
        errno => format!("errno {errno}"),
    };
    let used = problem.map_or_else(
        || "transparent huge pages".to_owned(),
        |problem| format!("ordinary pages ({problem})"),
    );
    format!(
        "huge pages unavailable ({count} × 2 MiB wanted, {name}): using {used}; to reserve: sysctl \
         vm.nr_hugepages={count}"
    )
}

fn map(length_bytes: usize, flags: libc::c_int) -> Result<NonNull<u8>, i32> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
    // exists.
    let base = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            length_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(errno());
    }
    NonNull::new(base.cast()).ok_or(libc::ENOMEM)
}

/// Maps reserved huge pages, and populates them.
fn map_reserved(length_bytes: usize) -> Result<NonNull<u8>, i32> {
    let base = map(length_bytes, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB)?;
    match populate(base, length_bytes) {
        Ok(()) => Ok(base),
        // Before Linux 5.14, which has no such advice: the mapping is used as it is.
        Err(libc::EINVAL) => {
            touch(base, length_bytes);
            Ok(base)
        }
        Err(errno) => {
            // SAFETY: our new mapping, which nobody knows yet.
            unsafe { unmap(base.as_ptr(), length_bytes) };
            Err(errno)
        }
    }
}

/// Has the kernel write to each page, so that one it cannot give is an error (`EFAULT`) and not a
/// SIGBUS.
fn populate(base: NonNull<u8>, length_bytes: usize) -> Result<(), i32> {
    let advice = libc::MADV_POPULATE_WRITE;
    // SAFETY: the range is our own mapping; the advice does not change what it holds.
    let outcome = unsafe { libc::madvise(base.as_ptr().cast(), length_bytes, advice) };
    if outcome == 0 { Ok(()) } else { Err(errno()) }
}

/// Maps 2 MiB more than asked for, and unmaps what is outside the aligned range.
fn map_aligned(length_bytes: usize) -> Result<NonNull<u8>, i32> {
    let padded_bytes = length_bytes
        .checked_add(HUGE_PAGE_BYTES)
        .ok_or(libc::ENOMEM)?;
    let raw = map(padded_bytes, 0)?.as_ptr();
    let before_bytes = raw.addr().next_multiple_of(HUGE_PAGE_BYTES) - raw.addr();
    let base = raw.wrapping_add(before_bytes);
    let after_bytes = HUGE_PAGE_BYTES - before_bytes;
    if before_bytes > 0 {
        // SAFETY: these bytes are ours, nobody knows them, and both ends are on a page boundary.
        unsafe { unmap(raw, before_bytes) };
    }
    if after_bytes > 0 {
        // SAFETY: as above.
        unsafe { unmap(base.wrapping_add(length_bytes), after_bytes) };
    }
    NonNull::new(base).ok_or(libc::ENOMEM)
}

/// # Safety
/// The range is whole pages of a mapping of ours that nobody uses any more.
unsafe fn unmap(start: *mut u8, length_bytes: usize) {
    // SAFETY: the caller's promise.
    let outcome = unsafe { libc::munmap(start.cast(), length_bytes) };
    assert!(
        outcome == 0,
        "munmap of our own mapping failed: errno {}",
        errno()
    );
}

fn advise_huge(base: NonNull<u8>, length_bytes: usize) -> Result<(), String> {
    // SAFETY: the range is our own mapping; the advice does not change what it holds.
    let outcome = unsafe { libc::madvise(base.as_ptr().cast(), length_bytes, libc::MADV_HUGEPAGE) };
    if outcome == 0 {
        return Ok(());
    }
    Err(format!(
        "no transparent huge pages in this kernel (errno {})",
        errno()
    ))
}

/// Writes a zero into each page, so that it exists and no read or send faults later.
fn touch(base: NonNull<u8>, length_bytes: usize) {
    for offset_bytes in (0..length_bytes).step_by(PAGE_BYTES) {
        let page = base.as_ptr().wrapping_add(offset_bytes);
        // SAFETY: within the new mapping, which nobody else knows yet. Volatile, since a plain
        // store of a zero that is never read back may be left out.
        unsafe { page.write_volatile(0) };
    }
}

/// Bytes of the mapping in transparent huge pages, according to the kernel.
fn check_huge(base: NonNull<u8>, length_bytes: usize) -> Result<(), String> {
    let smaps = fs::read_to_string("/proc/self/smaps")
        .map_err(|error| format!("cannot tell whether huge pages are used: {error}"))?;
    let huge_bytes = huge_bytes_at(&smaps, base.as_ptr().addr()).unwrap_or(0);
    if huge_bytes >= length_bytes {
        return Ok(());
    }
    Err(format!(
        "{huge_bytes} of {length_bytes} bytes are in transparent huge pages: set \
         /sys/kernel/mm/transparent_hugepage/enabled to madvise"
    ))
}

/// `AnonHugePages` of the area that holds `address`. The kernel may have merged our mapping with
/// a neighbour; then it reports the sum of both.
fn huge_bytes_at(smaps: &str, address: usize) -> Option<usize> {
    let mut is_ours = false;
    for line in smaps.lines() {
        if let Some(area) = parse_area(line) {
            is_ours = area.contains(&address);
        } else if is_ours && let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let kibibytes: usize = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
            return kibibytes.checked_mul(1024);
        }
    }
    None
}

/// The addresses of an area's first line: `7f0000000000-7f0000200000 rw-p …`.
fn parse_area(line: &str) -> Option<core::ops::Range<usize>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
Size:                  8 kB
AnonHugePages:      4096 kB
VmFlags: rd wr
3000-4000 rw-p 00000000 00:00 0 [heap]
AnonHugePages:         0 kB
";

    #[test]
    fn the_fallback_message_names_what_is_used_and_what_to_do() {
        assert_eq!(
            explain_refusal(18, libc::ENOMEM, None),
            "huge pages unavailable (18 × 2 MiB wanted, ENOMEM): using transparent huge pages; to \
             reserve: sysctl vm.nr_hugepages=18"
        );
        assert_eq!(
            explain_refusal(1, libc::EFAULT, Some("the kernel has none")),
            "huge pages unavailable (1 × 2 MiB wanted, EFAULT: the hugetlb limit of the cgroup): \
             using ordinary pages (the kernel has none); to reserve: sysctl vm.nr_hugepages=1"
        );
        assert!(explain_refusal(1, 5, None).contains("wanted, errno 5)"));
    }

    #[test]
    fn the_area_that_holds_the_address_is_read() {
        assert_eq!(huge_bytes_at(SMAPS, 0x0fff), None);
        assert_eq!(huge_bytes_at(SMAPS, 0x1000), Some(4096 * 1024));
        assert_eq!(huge_bytes_at(SMAPS, 0x2fff), Some(4096 * 1024));
        assert_eq!(huge_bytes_at(SMAPS, 0x3000), Some(0));
        assert_eq!(huge_bytes_at(SMAPS, 0x4000), None);
    }

    #[test]
    fn every_kind_of_page_is_aligned_resident_and_reported() {
        for best in [PageKind::Huge2M, PageKind::Transparent, PageKind::Ordinary] {
            let mut mapping = Mapping::new(HUGE_PAGE_BYTES + 1, best).expect("4 MiB");
            assert_eq!(mapping.length_bytes(), 2 * HUGE_PAGE_BYTES);
            assert!(mapping.address(0).addr().is_multiple_of(HUGE_PAGE_BYTES));
            assert!(mapping.pages() >= best);
            assert_eq!(mapping.fallback_reason().is_some(), mapping.pages() != best);
            let mut resident = [0u8; 2 * HUGE_PAGE_BYTES / PAGE_BYTES];
            let length_bytes = mapping.length_bytes();
            let base = mapping.address(0).cast();
            // SAFETY: `resident` has a byte for each page of our mapping.
            let outcome = unsafe { libc::mincore(base, length_bytes, resident.as_mut_ptr()) };
            assert_eq!(outcome, 0);
            assert!(
                resident.iter().all(|page| page & 1 == 1),
                "{best:?}: a page is not there"
            );
            // SAFETY: nothing refers to it any more.
            unsafe { mapping.unmap() };
        }
    }

    #[test]
    fn unavailable_pages_are_an_error_and_not_a_sigbus() {
        // As with huge pages beyond a cgroup's limit, touching what lies behind the end of a file
        // is a SIGBUS.
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"empty".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0, "errno {}", errno());
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        let null = core::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null, PAGE_BYTES, protection, flags, file, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base = NonNull::new(base.cast()).expect("not 0");
        // EINVAL: Linux before 5.14, which has no such advice.
        let refused = populate(base, PAGE_BYTES);
        assert!(
            matches!(refused, Err(libc::EFAULT | libc::EINVAL)),
            "{refused:?}"
        );
        // SAFETY: our own mapping, not used any more.
        unsafe { unmap(base.as_ptr(), PAGE_BYTES) };
        // SAFETY: our own descriptor.
        unsafe { libc::close(file) };
    }

    #[test]
    fn a_length_beyond_the_address_space_is_refused() {
        let bytes = 1 << 56;
        assert_eq!(
            Mapping::new(bytes, PageKind::Huge2M).err(),
            Some(libc::ENOMEM)
        );
    }
}
