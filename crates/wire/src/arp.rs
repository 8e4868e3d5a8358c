//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! Refused: other hardware or protocol types, operations other than request and reply, and senders
//! no station can be. Whether the target is one of our addresses is the caller's to say.

use core::net::Ipv4Addr;

use crate::ethernet::{ETHERTYPE_IPV4, MacAddress};
use crate::field;
use crate::reason::DropReason;
use crate::writer::Writer;

/// Bytes of an Ethernet/IPv4 ARP packet.
pub const PACKET_BYTES: usize = 28;

/// Hardware type (10 Mb) Ethernet.
const HARDWARE_ETHERNET: u16 = 1;
const OPERATION_REQUEST: u16 = 1;
const OPERATION_REPLY: u16 = 2;

/// What an ARP packet wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpOperation {
    /// "Who has the target address?"
    Request,
    /// "The sender address is at the sender MAC."
    Reply,
}

/// An ARP packet as values. RFC 826's "hardware" is a MAC here, its "protocol" IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpRepr {
    /// Request or reply.
    pub operation: ArpOperation,
    /// MAC of the station speaking.
    pub sender_mac: MacAddress,
    /// Its IPv4 address; unspecified in a probe (RFC 5227 s2.1.1).
    pub sender_address: Ipv4Addr,
    /// MAC of the station spoken to; anything in a request.
    pub target_mac: MacAddress,
    /// The IPv4 address asked for, or spoken to.
    pub target_address: Ipv4Addr,
}

impl ArpRepr {
    /// Parses the payload of an Ethernet frame; bytes after the packet are padding.
    ///
    /// # Errors
    /// The `Arp...` reasons.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let packet: &[u8; PACKET_BYTES] = bytes.first_chunk().ok_or(DropReason::ArpTooShort)?;
        let hardware = (field::u16::<0, _>(packet), packet[4]);
        let protocol = (field::u16::<2, _>(packet), packet[5]);
        if hardware != (HARDWARE_ETHERNET, 6) || protocol != (ETHERTYPE_IPV4, 4) {
            return Err(DropReason::ArpUnsupported);
        }
        let operation = match field::u16::<6, _>(packet) {
            OPERATION_REQUEST => ArpOperation::Request,
            OPERATION_REPLY => ArpOperation::Reply,
            _ => return Err(DropReason::ArpOperationUnknown),
        };
        let repr = Self {
            operation,
            sender_mac: MacAddress(field::bytes::<8, 6, _>(packet)),
            sender_address: Ipv4Addr::from_octets(field::bytes::<14, 4, _>(packet)),
            target_mac: MacAddress(field::bytes::<18, 6, _>(packet)),
            target_address: Ipv4Addr::from_octets(field::bytes::<24, 4, _>(packet)),
        };
        let sender = repr.sender_address;
        if !repr.sender_mac.is_station() || sender.is_multicast() || sender.is_broadcast() {
            return Err(DropReason::ArpSenderInvalid);
        }
        Ok(repr)
    }

    /// Writes the packet.
    pub fn emit(&self, packet: &mut [u8; PACKET_BYTES]) {
        Writer::new(packet)
            .u16(HARDWARE_ETHERNET)
            .u16(ETHERTYPE_IPV4)
            .bytes(&[6, 4])
            .u16(match self.operation {
                ArpOperation::Request => OPERATION_REQUEST,
                ArpOperation::Reply => OPERATION_REPLY,
            })
            .bytes(&self.sender_mac.0)
            .bytes(&self.sender_address.octets())
            .bytes(&self.target_mac.0)
            .bytes(&self.target_address.octets());
    }
}
