//! Fields at fixed offsets of headers of fixed size.
//!
//! Offsets are const parameters, so a field outside its header is a compile error and reading one
//! cannot fail at run time.

/// The `N` bytes at offset `AT`.
pub(crate) const fn bytes<const AT: usize, const N: usize, const M: usize>(
    header: &[u8; M],
) -> [u8; N] {
    const { assert!(AT + N <= M, "a field lies inside its header") }
    let mut field = [0; N];
    let mut index = 0;
    while index < N {
        field[index] = header[AT + index];
        index += 1;
    }
    field
}

/// The 16-bit big-endian field at offset `AT`.
pub(crate) const fn u16<const AT: usize, const M: usize>(header: &[u8; M]) -> u16 {
    u16::from_be_bytes(bytes::<AT, 2, M>(header))
}

/// The 32-bit big-endian field at offset `AT`.
pub(crate) const fn u32<const AT: usize, const M: usize>(header: &[u8; M]) -> u32 {
    u32::from_be_bytes(bytes::<AT, 4, M>(header))
}
