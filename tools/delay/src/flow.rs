//! Which flow a frame belongs to, by as much parsing as that needs.
//!
//! A flow is what the classic five say: two addresses, a protocol, two ports. It has one
//! direction. Where a packet has no ports (ICMP, a fragment, a protocol we do not know) they count
//! as 0: a fragment cannot be told from its datagram's others, so that those keep their order.
//!
//! Not a flow, and to be passed at once: frames that are not IP, whatever does not parse, and the
//! neighbour discovery of IPv6, which is to it what ARP is to IPv4. Tagged frames (802.1Q) are not
//! parsed either. Nothing is verified: a middlebox that drops what it finds odd would be a
//! firewall. Bounded: at most eight extension headers are looked at.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// Most IPv6 extension headers that are walked over in search of the ports.
const EXTENSIONS_MAX: usize = 8;

const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

const IPV4_BYTES_MIN: usize = 20;
/// "More fragments" and the fragment offset, RFC 791 s3.1.
const IPV4_FRAGMENT_MASK: u16 = 0x3fff;

const IPV6_BYTES: usize = 40;
const IPV6_HOP_BY_HOP: u8 = 0;
const IPV6_ROUTING: u8 = 43;
const IPV6_FRAGMENT: u8 = 44;
const IPV6_DESTINATION: u8 = 60;

const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

/// Router and neighbour solicitations and advertisements, and redirects (RFC 4861 s4).
const NEIGHBOUR_DISCOVERY: core::ops::RangeInclusive<u8> = 133..=137;

/// Sets the hash of flows apart from the other uses of one seed.
const FLOW_PURPOSE: u64 = u64::from_be_bytes(*b"flowhash");

/// One direction of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// IPv4 addresses are in the first four bytes, the rest 0: the version keeps them apart.
    source: [u8; 16],
    destination: [u8; 16],
    version: u8,
    protocol: u8,
    /// Source and destination, as they stand in the header; 0 where there are none.
    ports: [u8; 4],
}

/// What a frame is to a middlebox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Part of a flow: it is held.
    Flow(Flow),
    /// Nothing that has a flow: it passes at once.
    AtOnce,
}

impl Flow {
    /// A number that is spread evenly over all flows and differs from seed to seed.
    #[must_use]
    pub fn hash(&self, seed: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(seed, FLOW_PURPOSE);
        hasher.write(&self.source);
        hasher.write(&self.destination);
        hasher.write(&[self.version, self.protocol]);
        hasher.write(&self.ports);
        hasher.finish()
    }
}

/// Sorts a frame, from its destination MAC on.
#[must_use]
pub fn classify(frame: &[u8]) -> Traffic {
    let ethertype = frame.get(12..ETHERNET_BYTES);
    let packet = frame.get(ETHERNET_BYTES..).unwrap_or_default();
    let flow = match ethertype {
        Some(ethertype) if ethertype == ETHERTYPE_IPV4 => parse_ipv4(packet),
        Some(ethertype) if ethertype == ETHERTYPE_IPV6 => parse_ipv6(packet),
        _ => None,
    };
    flow.map_or(Traffic::AtOnce, Traffic::Flow)
}

fn parse_ipv4(packet: &[u8]) -> Option<Flow> {
    let header: &[u8; IPV4_BYTES_MIN] = packet.first_chunk()?;
    let [
        version_and_length,
        _,
        _,
        _,
        _,
        _,
        fragment_high,
        fragment_low,
        ..,
    ] = *header;
    let header_bytes = usize::from(version_and_length & 0x0f) * 4;
    if version_and_length >> 4 != 4 || header_bytes < IPV4_BYTES_MIN {
        return None;
    }
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    let protocol = header[9];
    let is_fragment = u16::from_be_bytes([fragment_high, fragment_low]) & IPV4_FRAGMENT_MASK != 0;
    let payload = packet.get(header_bytes..)?;
    let mut flow = Flow {
        source: [0; 16],
        destination: [0; 16],
        version: 4,
        protocol,
        ports: ports(protocol, payload, is_fragment)?,
    };
    flow.source[..4].copy_from_slice(&[s0, s1, s2, s3]);
    flow.destination[..4].copy_from_slice(&[d0, d1, d2, d3]);
    Some(flow)
}

fn parse_ipv6(packet: &[u8]) -> Option<Flow> {
    let (header, mut payload) = packet.split_first_chunk::<IPV6_BYTES>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let (_, addresses) = header.split_first_chunk::<8>()?;
    let (source, destination) = addresses.split_first_chunk::<16>()?;
    let mut protocol = header[6];
    let mut is_fragment = false;
    for _ in 0..EXTENSIONS_MAX {
        let extension_bytes = match protocol {
            // RFC 8200 s4.3: eight bytes, and as many eights as the second byte says.
            IPV6_HOP_BY_HOP | IPV6_ROUTING | IPV6_DESTINATION => {
                8 + usize::from(*payload.get(1)?) * 8
            }
            IPV6_FRAGMENT => 8,
            _ => break,
        };
        is_fragment |= protocol == IPV6_FRAGMENT;
        let next = *payload.first()?;
        payload = payload.get(extension_bytes..)?;
        protocol = next;
        // What follows in a later fragment is the middle of something, not a header.
        if is_fragment {
            break;
        }
    }
    if protocol == ICMPV6 && !is_fragment && NEIGHBOUR_DISCOVERY.contains(payload.first()?) {
        return None;
    }
    Some(Flow {
        source: *source,
        destination: *destination.first_chunk()?,
        version: 6,
        protocol,
        ports: ports(protocol, payload, is_fragment)?,
    })
}

/// The ports of a transport that has them in its first four bytes; `None` if they are cut off.
fn ports(protocol: u8, payload: &[u8], is_fragment: bool) -> Option<[u8; 4]> {
    match protocol {
        TCP | UDP | DCCP | SCTP if !is_fragment => payload.first_chunk().copied(),
        _ => Some([0; 4]),
    }
}

#[cfg(test)]
mod tests {
    use super::{Flow, Traffic, classify};

    /// An IPv4 packet from 10.0.0.1 to 10.0.0.2 behind an Ethernet header.
    fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 0]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(payload);
        frame
    }

    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, next, 64]);
        frame.extend([0xfd; 16]);
        frame.extend([0xfe; 16]);
        frame.extend(payload);
        frame
    }

    fn flow(frame: &[u8]) -> Flow {
        match classify(frame) {
            Traffic::Flow(flow) => flow,
            Traffic::AtOnce => panic!("no flow in {frame:02x?}"),
        }
    }

    const PORTS: [u8; 8] = [0x9c, 0x40, 0, 80, 1, 2, 3, 4];

    #[test]
    fn every_one_of_the_five_tells_flows_apart() {
        let base = ipv4(6, 0, &PORTS);
        assert_eq!(
            flow(&base),
            flow(&ipv4(6, 0x4000, &[&PORTS[..], b"more"].concat()))
        );
        // Protocol, a byte of either address, a byte of either port.
        for at in [14 + 9, 14 + 15, 14 + 19, 14 + 21, 14 + 23] {
            let mut other = base.clone();
            other[at] = 17;
            assert_ne!(flow(&base), flow(&other), "byte {at}");
            assert_ne!(flow(&base).hash(1), flow(&other).hash(1), "byte {at}");
        }
        let mut other = base;
        other[14 + 8] = 1;
        other[14 + 25] = 99;
        assert_eq!(
            flow(&other),
            flow(&ipv4(6, 0, &PORTS)),
            "hop limit, sequence"
        );
    }

    #[test]
    fn fragments_of_a_datagram_stay_together() {
        let first = flow(&ipv4(17, 0x2000, &PORTS));
        let last = flow(&ipv4(17, 0x00b9, b"xx"));
        assert_eq!(first, last);
        assert_ne!(first, flow(&ipv4(17, 0, &PORTS)));
        let v6 = |offset: u8| ipv6(44, &[&[17, 0, 0, offset, 0, 0, 0, 1][..], &PORTS].concat());
        assert_eq!(flow(&v6(1)), flow(&v6(0x10)));
    }

    #[test]
    fn extension_headers_are_walked_over_up_to_their_limit() {
        let options = |count: usize| {
            let mut payload: Vec<u8> = [60, 0, 1, 4, 0, 0, 0, 0].repeat(count - 1);
            payload.extend([6, 0, 1, 4, 0, 0, 0, 0]);
            payload.extend(PORTS);
            ipv6(60, &payload)
        };
        assert_eq!(flow(&options(8)), flow(&ipv6(6, &PORTS)));
        // One too many: still a flow, but by its addresses only.
        assert_ne!(flow(&options(9)), flow(&ipv6(6, &PORTS)));
        let long = [&[6, 1, 1, 12][..], &[0; 12], &PORTS].concat();
        assert_eq!(flow(&ipv6(0, &long)), flow(&ipv6(6, &PORTS)));
    }

    #[test]
    fn what_keeps_a_network_together_passes_at_once() {
        let mut arp = vec![0xff; 12];
        arp.extend([0x08, 0x06, 0, 1]);
        assert_eq!(classify(&arp), Traffic::AtOnce);
        for (kind, at_once) in [
            (132, false),
            (133, true),
            (137, true),
            (138, false),
            (128, false),
        ] {
            let frame = ipv6(58, &[kind, 0, 0, 0]);
            assert_eq!(classify(&frame) == Traffic::AtOnce, at_once, "type {kind}");
        }
        assert!(matches!(classify(&ipv4(1, 0, &[8, 0])), Traffic::Flow(_)));
    }

    #[test]
    fn whatever_is_cut_short_passes_at_once() {
        for whole in [
            ipv4(6, 0, &PORTS[..4]),
            ipv6(6, &PORTS[..4]),
            ipv6(0, &[&[6, 0, 1, 4, 0, 0, 0, 0][..], &PORTS[..4]].concat()),
            ipv6(58, &[128]),
        ] {
            assert!(matches!(classify(&whole), Traffic::Flow(_)));
            for length in 0..whole.len() {
                assert_eq!(
                    classify(&whole[..length]),
                    Traffic::AtOnce,
                    "{length} bytes"
                );
            }
        }
        let mut wrong = ipv4(6, 0, &PORTS);
        wrong[14] = 0x65;
        assert_eq!(
            classify(&wrong),
            Traffic::AtOnce,
            "version 6 in an IPv4 frame"
        );
        wrong[14] = 0x44;
        assert_eq!(classify(&wrong), Traffic::AtOnce, "a header of 16 bytes");
    }

    #[test]
    fn the_hash_is_the_same_on_every_machine() {
        let flow = flow(&ipv4(6, 0, &PORTS));
        assert_eq!(flow.hash(1), flow.hash(1));
        assert_ne!(flow.hash(1), flow.hash(2));
        assert_eq!(flow.hash(7), HASH_OF_SEED_7);
    }

    /// Written down once: a seed in an old report must name the same bands for ever.
    const HASH_OF_SEED_7: u64 = 16_908_492_474_604_297_893;
}
