//! Errors of socket calls, by the numbers that C knows.

/// An error number, as `errno` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// No such descriptor, or not of this kind.
    pub const BAD_DESCRIPTOR: Self = Self(libc::EBADF);
    /// Nothing there yet: a blocking call waits, another one returns this.
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// The argument makes no sense for this socket.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// The socket is not connected.
    pub const NOT_CONNECTED: Self = Self(libc::ENOTCONN);
    /// Nothing can be sent any more.
    pub const PIPE: Self = Self(libc::EPIPE);
    /// The peer reset the connection.
    pub const RESET: Self = Self(libc::ECONNRESET);
    /// The peer did not answer for too long.
    pub const TIMED_OUT: Self = Self(libc::ETIMEDOUT);
    /// This socket has no such option.
    pub const NO_OPTION: Self = Self(libc::ENOPROTOOPT);
    /// A pointer that points nowhere.
    pub const FAULT: Self = Self(libc::EFAULT);
    /// This host does not do that.
    pub const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// Only TCP over IPv4 and IPv6.
    pub const PROTOCOL: Self = Self(libc::EPROTONOSUPPORT);
}
