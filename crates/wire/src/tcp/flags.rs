//! Control bits.

use core::fmt;

/// Control bits (RFC 9293 s3.1, RFC 3168 s6.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// Explicit congestion notification: echo.
    pub const ECE: Self = Self(0x40);
    /// Explicit congestion notification: congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// Names of the bits, lowest first.
    const NAMES: [&'static str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without the bits of `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// `SYN|ACK`; `-` when no bit is set.
impl fmt::Display for TcpFlags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return formatter.write_str("-");
        }
        let mut separator = "";
        for (bit, name) in Self::NAMES.iter().enumerate() {
            if self.0 >> bit & 1 == 1 {
                write!(formatter, "{separator}{name}")?;
                separator = "|";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn sets_are_sets() {
        let syn_ack = TcpFlags::SYN.union(TcpFlags::ACK);
        assert!(syn_ack.contains(TcpFlags::SYN) && syn_ack.contains(syn_ack));
        assert!(!TcpFlags::SYN.contains(syn_ack));
        assert!(TcpFlags::SYN.intersects(syn_ack));
        assert!(!syn_ack.intersects(TcpFlags::FIN));
        assert_eq!(syn_ack.difference(TcpFlags::ACK), TcpFlags::SYN);
        assert_eq!(syn_ack.difference(TcpFlags::FIN), syn_ack);
    }

    #[test]
    fn names_are_shown() {
        assert_eq!(TcpFlags::default().to_string(), "-");
        assert_eq!(TcpFlags::SYN.union(TcpFlags::ACK).to_string(), "SYN|ACK");
        assert_eq!(
            TcpFlags(0xff).to_string(),
            "FIN|SYN|RST|PSH|ACK|URG|ECE|CWR"
        );
    }
}
