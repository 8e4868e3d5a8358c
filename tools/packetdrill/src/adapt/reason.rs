//! Why a script does not apply to Atlas's TCP.

/// A reason. The first that holds, in the order of [`Reason::ALL`], is the script's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// RFC 7413.
    FastOpen,
    /// A server only.
    ActiveOpen,
    /// `MSG_ZEROCOPY`.
    SocketZeroCopy,
    /// RFC 2385.
    Md5,
    /// `epoll`.
    Epoll,
    /// `splice`, `sendfile`.
    Splice,
    /// `SO_TIMESTAMPING`.
    TransmitTimestamps,
    /// `TCP_INQ`.
    InQueue,
    /// `MSG_EOR`.
    EndOfRecord,
    /// `TCP_CORK`, `MSG_MORE`.
    Cork,
    /// `SO_SNDBUF` as a limit, `TCP_NOTSENT_LOWAT`.
    SocketBuffers,
    /// RFC 4821.
    MtuProbing,
    /// `TCP_USER_TIMEOUT`.
    UserTimeout,
    /// A command while the script runs.
    HostQueue,
    /// PSP.
    Psp,
}

impl Reason {
    /// All reasons, in the order in which they are tried.
    pub const ALL: [Self; 15] = [
        Self::FastOpen,
        Self::ActiveOpen,
        Self::SocketZeroCopy,
        Self::Md5,
        Self::Epoll,
        Self::Splice,
        Self::TransmitTimestamps,
        Self::InQueue,
        Self::EndOfRecord,
        Self::Cork,
        Self::SocketBuffers,
        Self::MtuProbing,
        Self::UserTimeout,
        Self::HostQueue,
        Self::Psp,
    ];

    /// What the table says.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::FastOpen => "TCP Fast Open (RFC 7413): refused",
            Self::ActiveOpen => "`connect`: Atlas never opens a connection",
            Self::SocketZeroCopy => "`MSG_ZEROCOPY`: of Linux's sockets",
            Self::Md5 => "MD5 signatures (RFC 2385): refused",
            Self::Epoll => "`epoll`: of Linux's sockets",
            Self::Splice => "`splice`, `sendfile`: of Linux's sockets",
            Self::TransmitTimestamps => "`SO_TIMESTAMPING`: of Linux's sockets",
            Self::InQueue => "`TCP_INQ`: of Linux's sockets",
            Self::EndOfRecord => "`MSG_EOR`: of Linux's sockets",
            Self::Cork => {
                "`TCP_CORK`, `MSG_MORE`: the session appends whole replies, Nagle's algorithm is not used"
            }
            Self::SocketBuffers => {
                "`SO_SNDBUF`, `TCP_NOTSENT_LOWAT`: there is no send buffer that could be full"
            }
            Self::MtuProbing => "probing for a larger path MTU (RFC 4821): not done",
            Self::UserTimeout => "`TCP_USER_TIMEOUT`: the session has a timeout of its own",
            Self::HostQueue => "changes Linux's queue of the interface while it runs",
            Self::Psp => "PSP encryption: of Linux's sockets",
        }
    }

    /// Words of a script, outside of its comments, that show it.
    const fn marks(self) -> &'static [&'static str] {
        match self {
            Self::FastOpen => &["FASTOPEN", "TFO", "FO,", " FO ", "FOEXP"],
            Self::ActiveOpen => &["connect("],
            Self::SocketZeroCopy => &["ZEROCOPY"],
            Self::Md5 => &["md5"],
            Self::Epoll => &["epoll_"],
            Self::Splice => &["splice(", "sendfile("],
            Self::TransmitTimestamps => &["SO_TIMESTAMPING"],
            Self::InQueue => &["TCP_INQ"],
            Self::EndOfRecord => &["MSG_EOR"],
            Self::Cork => &["TCP_CORK", "MSG_MORE"],
            Self::SocketBuffers => &[
                "NOTSENT_LOWAT",
                "notsent_lowat",
                "getsockopt(4, SOL_SOCKET, SO_SNDBUF",
            ],
            Self::MtuProbing => &["tcp_mtu_probing"],
            Self::UserTimeout => &["TCP_USER_TIMEOUT"],
            Self::Psp => &["psp_", "PSP"],
            // Found by where the command stands.
            Self::HostQueue => &[],
        }
    }

    /// The reason why a script does not apply, judged by its words.
    pub(super) fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| {
            let marks = reason.marks();
            marks.iter().any(|mark| text.contains(mark))
        })
    }
}
