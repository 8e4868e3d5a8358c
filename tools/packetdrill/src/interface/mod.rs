//! The interface of packetdrill for user-space stacks (its `packetdrill.h`): a table of functions, each
//! of which translates one call of C for [`Shared`].
//!
//! It refuses connect, epoll, pipe and splice. Every pointer comes from packetdrill, which calls as
//! one calls the system: buffers are as long as it says, strings end in a zero. A null buffer is
//! EFAULT, as in Linux.
#![allow(
    unsafe_code,
    reason = "the boundary to packetdrill, which is C; nothing else in this crate is unsafe"
)]

mod addresses;
mod shared;

use core::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use core::slice;
use std::fs::File;
use std::os::fd::AsRawFd as _;

use clock::Duration;
use libc::{iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

use crate::host::{Errno, Host, HowToShut, Option32, Settings};
use shared::Shared;

/// Seconds of the wall clock when the host's clock is zero: any number that is not a small one.
const EPOCH_SECONDS: u64 = 1_000_000;

/// `struct packetdrill_interface`. The two variadic functions of C, `fcntl` and `ioctl`, have their
/// one optional argument as an ordinary one: on Linux, x86-64 and aarch64 pass it in the same
/// register either way.
#[repr(C)]
#[derive(Debug)]
struct Interface {
    userdata: *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    socket: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    listen: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    accept: unsafe extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    connect: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    read: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t) -> ssize_t,
    readv: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    recv: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    recvfrom: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    recvmsg: unsafe extern "C" fn(*mut c_void, c_int, *mut msghdr, c_int) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t) -> ssize_t,
    writev: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    send: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t, c_int) -> ssize_t,
    sendto: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    sendmsg: unsafe extern "C" fn(*mut c_void, c_int, *const msghdr, c_int) -> ssize_t,
    fcntl: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_long) -> c_int,
    ioctl: unsafe extern "C" fn(*mut c_void, c_int, c_ulong, *mut c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    shutdown: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    getsockopt: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        c_int,
        c_int,
        *mut c_void,
        *mut socklen_t,
    ) -> c_int,
    setsockopt:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    poll: unsafe extern "C" fn(*mut c_void, *mut pollfd, nfds_t, c_int) -> c_int,
    netdev_send: unsafe extern "C" fn(*mut c_void, *const c_void, size_t) -> c_int,
    netdev_receive:
        unsafe extern "C" fn(*mut c_void, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    usleep: unsafe extern "C" fn(*mut c_void, c_uint) -> c_int,
    gettimeofday: unsafe extern "C" fn(*mut c_void, *mut timeval, *mut c_void) -> c_int,
    epoll_create: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    epoll_ctl: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut c_void) -> c_int,
    epoll_wait: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, c_int, c_int) -> c_int,
    pipe: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    splice: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_longlong,
        c_int,
        *mut c_longlong,
        size_t,
        c_uint,
    ) -> ssize_t,
}

/// Fills packetdrill's table. `flags` is what `--so_flags` says: words `mtu=N` and `push=off`, with
/// commas between them.
///
/// # Safety
/// `flags` is null or a string, `interface` a table to write, as packetdrill passes them.
#[unsafe(no_mangle)]
unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, interface: *mut Interface) {
    let text = if flags.is_null() {
        ""
    } else {
        // SAFETY: the caller passes a string.
        unsafe { CStr::from_ptr(flags) }.to_str().unwrap_or("")
    };
    let shared = Box::new(Shared::new(settings(text)));
    let table = Interface {
        userdata: Box::into_raw(shared).cast(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: the caller passes a table to write.
    unsafe { interface.write(table) };
}

fn settings(flags: &str) -> Settings {
    let mut settings = Settings::default();
    for word in flags.split(',') {
        match word.split_once('=') {
            Some(("mtu", bytes)) => {
                settings.mtu_bytes = bytes.parse().unwrap_or(settings.mtu_bytes);
            }
            Some(("push", "off")) => settings.has_push = false,
            _ => {}
        }
    }
    settings
}

/// What stands behind `userdata`.
///
/// # Safety
/// `userdata` is that of a table this module filled, and `free` was not called.
unsafe fn shared<'a>(userdata: *mut c_void) -> &'a Shared {
    let shared: *mut Shared = userdata.cast();
    // SAFETY: `packetdrill_interface_init` made it from a box, which lives until `free`. It is only
    // ever shared.
    unsafe { &*shared }
}

/// The result of a call as C has it, with `errno`.
fn answer<T: TryInto<ssize_t>>(result: Result<T, Errno>) -> ssize_t {
    match result {
        Ok(value) => value.try_into().unwrap_or(ssize_t::MAX),
        Err(Errno(number)) => {
            // SAFETY: the C library's errno of this thread, which always exists.
            let place = unsafe { libc::__errno_location() };
            // SAFETY: it points to an integer of this thread.
            unsafe { place.write(number) };
            -1
        }
    }
}

fn answer_int<T: TryInto<ssize_t>>(result: Result<T, Errno>) -> c_int {
    c_int::try_from(answer(result)).unwrap_or(c_int::MAX)
}

fn answer_unit(result: Result<(), Errno>) -> c_int {
    answer_int(result.map(|()| 0_i32))
}

/// Makes a descriptor's number one that the kernel knows, too: at the end packetdrill closes what a
/// script left open, by a real `close`.
fn occupy(number: c_int) {
    let nothing = File::open("/dev/null").expect("a system has /dev/null");
    // SAFETY: the number is none that anybody in this process uses.
    let made = unsafe { libc::dup2(nothing.as_raw_fd(), number) };
    assert_eq!(made, number, "a process may have {number} descriptors");
}

unsafe extern "C" fn free(userdata: *mut c_void) {
    // SAFETY: it is the box that `packetdrill_interface_init` made, and nobody uses it from now on.
    drop(unsafe { Box::from_raw(userdata.cast::<Shared>()) });
}

unsafe extern "C" fn socket(
    userdata: *mut c_void,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let is_ours = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & 0xff == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    let result = if is_ours {
        let made = shared.call(Host::socket);
        occupy(made);
        Ok(made)
    } else {
        Err(Errno::PROTOCOL)
    };
    answer_int(result)
}

unsafe extern "C" fn bind(
    userdata: *mut c_void,
    descriptor: c_int,
    address: *const sockaddr,
    address_bytes: socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    // SAFETY: it passes an address of that length.
    let address = unsafe { addresses::read(address, address_bytes) };
    let bound = address
        .ok_or(Errno::INVALID)
        .and_then(|address| shared.call(|host| host.bind(descriptor, address.port())));
    answer_unit(bound)
}

unsafe extern "C" fn listen(userdata: *mut c_void, descriptor: c_int, _backlog: c_int) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    answer_unit(shared.call(|host| host.listen(descriptor)))
}

unsafe extern "C" fn accept(
    userdata: *mut c_void,
    descriptor: c_int,
    address: *mut sockaddr,
    address_bytes: *mut socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let accepted = shared.blocking(descriptor, |host| host.accept(descriptor));
    let accepted = accepted.map(|(accepted, peer)| {
        occupy(accepted);
        // SAFETY: both are null, or an address to write and its length.
        unsafe { addresses::write(peer, address, address_bytes) };
        accepted
    });
    answer_int(accepted)
}

/// Reads into a buffer of `room` bytes.
///
/// # Safety
/// `userdata` is that of the table; `buffer` is null or has room for that many bytes.
unsafe fn read_into(
    userdata: *mut c_void,
    descriptor: c_int,
    buffer: *mut c_void,
    room: size_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let shared = unsafe { shared(userdata) };
    if buffer.is_null() {
        return answer::<i32>(Err(Errno::FAULT));
    }
    let bytes = shared.blocking(descriptor, |host| host.read(descriptor, room));
    let count = bytes.map(|bytes| {
        // SAFETY: a read returns at most `room` bytes, and the buffer has room for them.
        unsafe { buffer.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
        bytes.len()
    });
    answer(count)
}

unsafe extern "C" fn read(
    userdata: *mut c_void,
    descriptor: c_int,
    buffer: *mut c_void,
    room: size_t,
) -> ssize_t {
    // SAFETY: packetdrill passes the userdata of its table and a buffer of that length.
    unsafe { read_into(userdata, descriptor, buffer, room) }
}

unsafe extern "C" fn recv(
    userdata: *mut c_void,
    descriptor: c_int,
    buffer: *mut c_void,
    room: size_t,
    _flags: c_int,
) -> ssize_t {
    // SAFETY: packetdrill passes the userdata of its table and a buffer of that length.
    unsafe { read_into(userdata, descriptor, buffer, room) }
}

unsafe extern "C" fn recvfrom(
    userdata: *mut c_void,
    descriptor: c_int,
    buffer: *mut c_void,
    room: size_t,
    _flags: c_int,
    _address: *mut sockaddr,
    _address_bytes: *mut socklen_t,
) -> ssize_t {
    // SAFETY: packetdrill passes the userdata of its table and a buffer of that length.
    unsafe { read_into(userdata, descriptor, buffer, room) }
}

/// The parts of a gathered buffer.
///
/// # Safety
/// `parts` is null or points to `count` of them.
unsafe fn parts<'a>(parts: *const iovec, count: size_t) -> &'a [iovec] {
    if parts.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(parts, count) }
}

/// Reads into the first part alone: a short read, which a caller must expect.
///
/// # Safety
/// `userdata` is that of the table; the part, if there is one, is a buffer.
unsafe fn read_into_first(userdata: *mut c_void, descriptor: c_int, parts: &[iovec]) -> ssize_t {
    let Some(first) = parts.first() else {
        return answer::<i32>(Err(Errno::INVALID));
    };
    // SAFETY: the caller's promise.
    unsafe { read_into(userdata, descriptor, first.iov_base, first.iov_len) }
}

unsafe extern "C" fn readv(
    userdata: *mut c_void,
    descriptor: c_int,
    first: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: packetdrill passes as many parts as it says.
    let parts = unsafe { parts(first, usize::try_from(count).unwrap_or(0)) };
    // SAFETY: it passes the userdata of its table, and its parts are buffers.
    unsafe { read_into_first(userdata, descriptor, parts) }
}

unsafe extern "C" fn recvmsg(
    userdata: *mut c_void,
    descriptor: c_int,
    message: *mut msghdr,
    _flags: c_int,
) -> ssize_t {
    // SAFETY: packetdrill passes a message.
    let message = unsafe { &mut *message };
    message.msg_controllen = 0;
    message.msg_flags = 0;
    // SAFETY: it has as many parts as it says.
    let parts = unsafe { parts(message.msg_iov, message.msg_iovlen) };
    // SAFETY: packetdrill passes the userdata of its table, and the parts are buffers.
    unsafe { read_into_first(userdata, descriptor, parts) }
}

/// Writes `count` bytes.
///
/// # Safety
/// `userdata` is that of the table; `buffer` is null or has that many bytes.
unsafe fn write_from(
    userdata: *mut c_void,
    descriptor: c_int,
    buffer: *const c_void,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let shared = unsafe { shared(userdata) };
    if buffer.is_null() {
        return answer::<i32>(Err(Errno::FAULT));
    }
    // SAFETY: the caller's promise; nobody writes them during the call.
    let bytes = unsafe { slice::from_raw_parts(buffer.cast::<u8>(), count) };
    answer(shared.call(|host| host.write(descriptor, bytes)))
}

unsafe extern "C" fn write(
    userdata: *mut c_void,
    descriptor: c_int,
    buffer: *const c_void,
    count: size_t,
) -> ssize_t {
    // SAFETY: packetdrill passes the userdata of its table and a buffer of that length.
    unsafe { write_from(userdata, descriptor, buffer, count) }
}

unsafe extern "C" fn send(
    userdata: *mut c_void,
    descriptor: c_int,
    buffer: *const c_void,
    count: size_t,
    _flags: c_int,
) -> ssize_t {
    // SAFETY: packetdrill passes the userdata of its table and a buffer of that length.
    unsafe { write_from(userdata, descriptor, buffer, count) }
}

unsafe extern "C" fn sendto(
    userdata: *mut c_void,
    descriptor: c_int,
    buffer: *const c_void,
    count: size_t,
    _flags: c_int,
    _address: *const sockaddr,
    _address_bytes: socklen_t,
) -> ssize_t {
    // SAFETY: packetdrill passes the userdata of its table and a buffer of that length.
    unsafe { write_from(userdata, descriptor, buffer, count) }
}

/// Writes all parts as one.
///
/// # Safety
/// `userdata` is that of the table; the parts are buffers.
unsafe fn write_parts(userdata: *mut c_void, descriptor: c_int, parts: &[iovec]) -> ssize_t {
    let mut all = Vec::new();
    for part in parts.iter().filter(|part| !part.iov_base.is_null()) {
        // SAFETY: the caller's promise; nobody writes them during the call.
        all.extend_from_slice(unsafe {
            slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len)
        });
    }
    // SAFETY: the caller's promise, and a buffer of our own.
    unsafe { write_from(userdata, descriptor, all.as_ptr().cast(), all.len()) }
}

unsafe extern "C" fn writev(
    userdata: *mut c_void,
    descriptor: c_int,
    first: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: packetdrill passes as many parts as it says.
    let parts = unsafe { parts(first, usize::try_from(count).unwrap_or(0)) };
    // SAFETY: it passes the userdata of its table, and its parts are buffers.
    unsafe { write_parts(userdata, descriptor, parts) }
}

unsafe extern "C" fn sendmsg(
    userdata: *mut c_void,
    descriptor: c_int,
    message: *const msghdr,
    _flags: c_int,
) -> ssize_t {
    // SAFETY: packetdrill passes a message.
    let message = unsafe { &*message };
    // SAFETY: it has as many parts as it says.
    let parts = unsafe { parts(message.msg_iov, message.msg_iovlen) };
    // SAFETY: packetdrill passes the userdata of its table, and the parts are buffers.
    unsafe { write_parts(userdata, descriptor, parts) }
}

unsafe extern "C" fn fcntl(
    userdata: *mut c_void,
    descriptor: c_int,
    command: c_int,
    argument: c_long,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let nonblocking = c_long::from(libc::O_NONBLOCK);
    match command {
        libc::F_SETFL => {
            let is_nonblocking = argument & nonblocking != 0;
            answer_unit(shared.call(|host| host.set_nonblocking(descriptor, is_nonblocking)))
        }
        libc::F_GETFL => {
            let is_blocking = shared.call(|host| host.is_blocking(descriptor));
            let flag = if is_blocking { 0 } else { libc::O_NONBLOCK };
            answer_int(Ok(libc::O_RDWR | flag))
        }
        _ => answer_unit(Err(Errno::INVALID)),
    }
}

unsafe extern "C" fn ioctl(
    userdata: *mut c_void,
    descriptor: c_int,
    request: c_ulong,
    value: *mut c_int,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    // SIOCINQ of Linux has this number, too.
    if request != libc::FIONREAD || value.is_null() {
        return answer_unit(Err(Errno::INVALID));
    }
    let bytes = shared.call(|host| host.readable_bytes(descriptor));
    answer_unit(bytes.map(|bytes| {
        // SAFETY: packetdrill passes an integer to write with this request.
        unsafe { value.write(c_int::try_from(bytes).unwrap_or(c_int::MAX)) };
    }))
}

unsafe extern "C" fn close(userdata: *mut c_void, descriptor: c_int) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let closed = shared.call(|host| host.close(descriptor));
    if closed.is_ok() {
        // SAFETY: `occupy` made it, and nobody uses it any more.
        unsafe { libc::close(descriptor) };
    }
    answer_unit(closed)
}

unsafe extern "C" fn shutdown(userdata: *mut c_void, descriptor: c_int, how: c_int) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let how = match how {
        libc::SHUT_RD => HowToShut::Read,
        libc::SHUT_WR => HowToShut::Write,
        libc::SHUT_RDWR => HowToShut::Both,
        _ => return answer_unit(Err(Errno::INVALID)),
    };
    answer_unit(shared.call(|host| host.shutdown(descriptor, how)))
}

/// The option that a level and a name stand for.
fn option(level: c_int, name: c_int) -> Option<Option32> {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Some(Option32::SegmentBytesMax),
        (libc::IPPROTO_TCP, crate::adapt::CONGESTION_WINDOW_OPTION) => {
            Some(Option32::CongestionWindowSegments)
        }
        (libc::SOL_SOCKET, libc::SO_ERROR) => Some(Option32::Error),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_SNDBUF | libc::SO_RCVBUF)
        | (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(Option32::Ignored),
        _ => None,
    }
}

unsafe extern "C" fn getsockopt(
    userdata: *mut c_void,
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    value_bytes: *mut socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let Some(option) = option(level, name) else {
        return answer_unit(Err(Errno::NO_OPTION));
    };
    // SAFETY: packetdrill passes the length of its buffer.
    let room = unsafe { value_bytes.read() };
    if room != 4 {
        return answer_unit(Err(Errno::INVALID));
    }
    let found = shared.call(|host| host.option(descriptor, option));
    answer_unit(found.map(|found| {
        // SAFETY: the buffer has room for four bytes; it need not be aligned.
        unsafe { value.cast::<c_int>().write_unaligned(found) };
    }))
}

unsafe extern "C" fn setsockopt(
    userdata: *mut c_void,
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    value_bytes: socklen_t,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let Some(option) = option(level, name) else {
        return answer_unit(Err(Errno::NO_OPTION));
    };
    if value_bytes < 4 || value.is_null() {
        return answer_unit(Err(Errno::INVALID));
    }
    // SAFETY: the buffer has four bytes at least; it need not be aligned.
    let value = unsafe { value.cast::<c_int>().read_unaligned() };
    answer_unit(shared.call(|host| host.set_option(descriptor, option, value)))
}

unsafe extern "C" fn poll(
    userdata: *mut c_void,
    first: *mut pollfd,
    count: nfds_t,
    timeout_millis: c_int,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: it passes an array of that many, which nobody else uses during the call.
    let polled = unsafe { slice::from_raw_parts_mut(first, count) };
    let millis = u64::try_from(timeout_millis).ok();
    let until = millis.map(|millis| shared.call(|host| host.now()) + Duration::from_millis(millis));
    let descriptor = polled.first().map_or(-1, |it| it.fd);
    let ready = shared.blocking(descriptor, |host| {
        let ready = polled.iter_mut().filter_map(|it| {
            it.revents = events(host, it.fd, it.events);
            (it.revents != 0).then_some(())
        });
        match ready.count() {
            0 if until.is_none_or(|until| host.now() < until) => Err(Errno::AGAIN),
            ready => Ok(ready),
        }
    });
    answer_int(ready)
}

/// `revents` of one descriptor.
fn events(host: &mut Host, descriptor: c_int, wanted: i16) -> i16 {
    let Ok(readiness) = host.readiness(descriptor) else {
        return libc::POLLNVAL;
    };
    let always = libc::POLLHUP | libc::POLLERR;
    [
        (readiness.is_readable, libc::POLLIN),
        (readiness.is_writable, libc::POLLOUT),
        (readiness.is_hung_up, libc::POLLHUP),
        (readiness.has_error, libc::POLLERR),
    ]
    .into_iter()
    .filter(|(is_set, event)| *is_set && (wanted | always) & event != 0)
    .fold(0, |all, (_, event)| all | event)
}

unsafe extern "C" fn netdev_send(
    userdata: *mut c_void,
    packet: *const c_void,
    count: size_t,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    // SAFETY: it passes a packet of that length, which nobody writes during the call.
    let packet = unsafe { slice::from_raw_parts(packet.cast::<u8>(), count) };
    shared.call(|host| host.receive(packet));
    0
}

unsafe extern "C" fn netdev_receive(
    userdata: *mut c_void,
    buffer: *mut c_void,
    count: *mut size_t,
    at_micros: *mut c_longlong,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    // SAFETY: it passes the buffer's length here.
    let room = unsafe { count.read() };
    // Nothing to be received is a packet of no bytes, which packetdrill reports as a failure.
    let (at, bytes) = shared.next_packet().map_or_else(
        || (shared.now(), Vec::new()),
        |packet| (packet.at, packet.bytes),
    );
    assert!(bytes.len() <= room, "packetdrill's buffer takes any packet");
    // SAFETY: the buffer has room for them.
    unsafe { buffer.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    // SAFETY: it points to a length to write.
    unsafe { count.write(bytes.len()) };
    let micros = EPOCH_SECONDS * 1_000_000 + at.as_micros();
    // SAFETY: it points to a time to write.
    unsafe { at_micros.write(c_longlong::try_from(micros).unwrap_or(c_longlong::MAX)) };
    0
}

unsafe extern "C" fn usleep(userdata: *mut c_void, micros: c_uint) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    shared.advance(Duration::from_micros(micros.into()));
    0
}

unsafe extern "C" fn gettimeofday(
    userdata: *mut c_void,
    time: *mut timeval,
    _zone: *mut c_void,
) -> c_int {
    // SAFETY: packetdrill passes the userdata of its table.
    let shared = unsafe { shared(userdata) };
    let micros = EPOCH_SECONDS * 1_000_000 + shared.now().as_micros();
    let whole = |value: u64| c_long::try_from(value).unwrap_or(c_long::MAX);
    let value = timeval {
        tv_sec: whole(micros / 1_000_000),
        tv_usec: whole(micros % 1_000_000),
    };
    // SAFETY: it points to a time to write.
    unsafe { time.write(value) };
    0
}

unsafe extern "C" fn connect(
    _userdata: *mut c_void,
    _descriptor: c_int,
    _address: *const sockaddr,
    _address_bytes: socklen_t,
) -> c_int {
    answer_unit(Err(Errno::UNSUPPORTED))
}

unsafe extern "C" fn epoll_create(_userdata: *mut c_void, _size: c_int) -> c_int {
    answer_unit(Err(Errno::UNSUPPORTED))
}

unsafe extern "C" fn epoll_ctl(
    _userdata: *mut c_void,
    _epoll: c_int,
    _operation: c_int,
    _descriptor: c_int,
    _event: *mut c_void,
) -> c_int {
    answer_unit(Err(Errno::UNSUPPORTED))
}

unsafe extern "C" fn epoll_wait(
    _userdata: *mut c_void,
    _epoll: c_int,
    _events: *mut c_void,
    _events_max: c_int,
    _timeout: c_int,
) -> c_int {
    answer_unit(Err(Errno::UNSUPPORTED))
}

unsafe extern "C" fn pipe(_userdata: *mut c_void, _descriptors: *mut c_int) -> c_int {
    answer_unit(Err(Errno::UNSUPPORTED))
}

unsafe extern "C" fn splice(
    _userdata: *mut c_void,
    _from: c_int,
    _from_offset: *mut c_longlong,
    _to: c_int,
    _to_offset: *mut c_longlong,
    _count: size_t,
    _flags: c_uint,
) -> ssize_t {
    answer::<i32>(Err(Errno::UNSUPPORTED))
}
