//! Socket addresses as C has them: `sockaddr_in` and `sockaddr_in6`.
#![allow(
    unsafe_code,
    reason = "the boundary to packetdrill, which is C; see the module above"
)]

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ptr;

use libc::{in_addr, in6_addr, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// Reads an address; `None`: its family is not IPv4 or IPv6, or it is too short.
///
/// # Safety
/// `address` is null or points to that many bytes.
pub(super) unsafe fn read(address: *const sockaddr, bytes: socklen_t) -> Option<SocketAddr> {
    if address.is_null() || bytes < length::<sockaddr_in>() {
        return None;
    }
    // SAFETY: there are enough bytes for the family, which comes first in every address.
    let family = unsafe { address.read_unaligned() }.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: there are enough bytes.
            let it = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(it.sin_port))))
        }
        libc::AF_INET6 if bytes >= length::<sockaddr_in6>() => {
            // SAFETY: there are enough bytes.
            let it = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(it.sin6_addr.s6_addr);
            Some(SocketAddr::from((ip, u16::from_be(it.sin6_port))))
        }
        _ => None,
    }
}

/// Writes an address and its length, as much of it as there is room for.
///
/// # Safety
/// Either pointer may be null; else `address` has room for as many bytes as `bytes` points to.
pub(super) unsafe fn write(value: SocketAddr, address: *mut sockaddr, bytes: *mut socklen_t) {
    if address.is_null() || bytes.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let room = unsafe { bytes.read() };
    let target = address.cast::<u8>();
    let written = match value {
        SocketAddr::V4(value) => {
            let it = sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: value.port().to_be(),
                sin_addr: in_addr {
                    s_addr: u32::from(*value.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            let count = length::<sockaddr_in>().min(room);
            // SAFETY: at most as many bytes as there is room for, of an address of our own.
            unsafe { target.copy_from(ptr::from_ref(&it).cast(), count as usize) };
            length::<sockaddr_in>()
        }
        SocketAddr::V6(value) => {
            let it = sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: value.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: in6_addr {
                    s6_addr: value.ip().octets(),
                },
                sin6_scope_id: 0,
            };
            let count = length::<sockaddr_in6>().min(room);
            // SAFETY: at most as many bytes as there is room for, of an address of our own.
            unsafe { target.copy_from(ptr::from_ref(&it).cast(), count as usize) };
            length::<sockaddr_in6>()
        }
    };
    // SAFETY: the caller's promise.
    unsafe { bytes.write(written) };
}

fn length<T>() -> socklen_t {
    socklen_t::try_from(size_of::<T>()).expect("invariant: an address is short")
}

fn family(number: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(number).expect("invariant: families are small numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_being_written_and_read() {
        for text in ["192.0.2.1:8080", "[fd00::1]:80"] {
            let value: SocketAddr = text.parse().unwrap();
            let mut room = [0_u64; 4];
            let target: *mut sockaddr = room.as_mut_ptr().cast();
            let mut bytes = 32;
            // SAFETY: the buffer has 32 bytes.
            unsafe { write(value, target, &raw mut bytes) };
            // SAFETY: as above.
            assert_eq!(unsafe { read(target, bytes) }, Some(value), "{text}");
            // SAFETY: fewer bytes than there are.
            assert_eq!(unsafe { read(target, bytes - 1) }, None, "{text}");
        }
    }
}
