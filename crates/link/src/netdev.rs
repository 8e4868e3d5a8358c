//! What a device's driver does for AF_XDP sockets in zero copy, as the kernel tells by the family "netdev" of
//! generic netlink (Linux 6.3; of metadata, 6.8).
//!
//! Two requests: for the family's number, and for the device. Answers are parsed as bytes from outside: it
//! refuses a malformed one with `EPROTO`, never a panic. Bounds: those of `netlink`.
//! Reading first: Documentation/userspace-api/netlink/intro.rst; linux/netdev.h, linux/genetlink.h.

use crate::netlink::{Attributes, Netlink, push_attribute, read_u16, read_u32};

/// `struct genlmsghdr`: command, version, two bytes reserved.
const HEADER_BYTES: usize = 4;
const VERSION: u8 = 1;

/// The family that names families.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const FAMILY: &[u8] = b"netdev\0";
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
const NETDEV_XSK_FLAGS_TX_CHECKSUM: u32 = 2;

/// What a driver does in zero copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZeroCopyOffer {
    /// Most descriptors of one frame; 0 if it does not tell, as where it has no zero copy.
    pub(crate) descriptors_max: u32,
    /// Whether it finishes the transport checksums of frames whose metadata asks for it.
    pub(crate) finishes_checksums: bool,
}

/// Asks about the device of this index, in the network namespace of the calling thread.
///
/// # Errors
/// `ENOENT` if the kernel has no such family, `ENODEV` if there is no such device.
pub(crate) fn zero_copy_offer(index: i32) -> Result<ZeroCopyOffer, i32> {
    let mut netlink = Netlink::open_generic()?;
    let answer = netlink.request(
        GENL_ID_CTRL,
        0,
        &message(CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, FAMILY),
    )?;
    let family = parse_family(&answer).ok_or(libc::EPROTO)?;
    let index = index.to_ne_bytes();
    let answer = netlink.request(
        family,
        0,
        &message(NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index),
    )?;
    parse_offer(&answer).ok_or(libc::EPROTO)
}

/// A command with one attribute.
fn message(command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let mut body = vec![command, VERSION, 0, 0];
    push_attribute(&mut body, attribute, value);
    body
}

/// The number of the family that was asked for.
fn parse_family(body: &[u8]) -> Option<u16> {
    let mut attributes = Attributes(body.get(HEADER_BYTES..)?);
    let (_, value) = attributes.find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID)?;
    read_u16(value, 0)
}

/// `None` if an attribute is shorter than its type. One that is missing offers nothing.
fn parse_offer(body: &[u8]) -> Option<ZeroCopyOffer> {
    let mut offer = ZeroCopyOffer::default();
    for (kind, value) in Attributes(body.get(HEADER_BYTES..)?) {
        match kind {
            NETDEV_A_DEV_XDP_ZC_MAX_SEGS => offer.descriptors_max = read_u32(value, 0)?,
            NETDEV_A_DEV_XSK_FEATURES => {
                // 64 bits in the machine's order.
                let features = u64::from_ne_bytes(*value.first_chunk()?);
                offer.finishes_checksums = features & u64::from(NETDEV_XSK_FLAGS_TX_CHECKSUM) != 0;
            }
            _ => {}
        }
    }
    Some(offer)
}

#[cfg(test)]
mod tests {
    use super::{
        CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, FAMILY,
        NETDEV_A_DEV_IFINDEX, NETDEV_A_DEV_XDP_ZC_MAX_SEGS, NETDEV_A_DEV_XSK_FEATURES,
        ZeroCopyOffer, message, parse_family, parse_offer, zero_copy_offer,
    };
    use crate::netlink::push_attribute;

    #[test]
    fn a_request_has_the_documented_bytes() {
        let mut expected = vec![3, 1, 0, 0];
        expected.extend(11_u16.to_ne_bytes());
        expected.extend(2_u16.to_ne_bytes());
        expected.extend(b"netdev\0\0");
        let body = message(CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, FAMILY);
        assert_eq!(body, expected);
    }

    #[test]
    fn the_family_s_number_is_found_behind_its_name() {
        let mut body = message(1, CTRL_ATTR_FAMILY_NAME, FAMILY);
        push_attribute(&mut body, CTRL_ATTR_FAMILY_ID, &37_u16.to_ne_bytes());
        assert_eq!(parse_family(&body), Some(37));
        // The last two bytes fill up the attribute; what is cut off before is no number.
        for length in 0..body.len() - 2 {
            assert_eq!(parse_family(&body[..length]), None, "{length} bytes");
        }
    }

    /// An answer with these features, and of what is asked nothing else.
    fn answer(features: u64) -> Vec<u8> {
        let mut body = message(1, NETDEV_A_DEV_IFINDEX, &7_u32.to_ne_bytes());
        push_attribute(
            &mut body,
            NETDEV_A_DEV_XSK_FEATURES,
            &features.to_ne_bytes(),
        );
        body
    }

    #[test]
    fn the_checksum_s_bit_is_told_from_others_and_descriptors_are_counted() {
        let offer = |descriptors_max, finishes_checksums| {
            Some(ZeroCopyOffer {
                descriptors_max,
                finishes_checksums,
            })
        };
        for (features, expected) in [(0, false), (1, false), (2, true), (3, true), (4, false)] {
            assert_eq!(parse_offer(&answer(features)), offer(0, expected));
        }
        assert_eq!(parse_offer(&answer(2 << 32)), offer(0, false));
        let mut body = answer(2);
        push_attribute(
            &mut body,
            NETDEV_A_DEV_XDP_ZC_MAX_SEGS,
            &8_u32.to_ne_bytes(),
        );
        assert_eq!(parse_offer(&body), offer(8, true));
        // A kernel before 6.8 tells no features.
        let old = message(1, NETDEV_A_DEV_IFINDEX, &7_u32.to_ne_bytes());
        assert_eq!(parse_offer(&old), offer(0, false));
    }

    #[test]
    fn malformed_answers_offer_nothing() {
        let mut body = answer(2);
        push_attribute(
            &mut body,
            NETDEV_A_DEV_XDP_ZC_MAX_SEGS,
            &8_u32.to_ne_bytes(),
        );
        for length in 0..body.len() {
            // Whatever is missing: no panic.
            let _ = parse_offer(&body[..length]);
        }
        for length in 0..answer(2).len() {
            let offer = parse_offer(&answer(2)[..length]);
            assert!(!offer.is_some_and(|it| it.finishes_checksums), "{length}");
        }
        for (kind, bytes) in [
            (NETDEV_A_DEV_XDP_ZC_MAX_SEGS, 3),
            (NETDEV_A_DEV_XSK_FEATURES, 7),
        ] {
            let body = message(1, kind, &[0xff; 8][..bytes]);
            assert_eq!(parse_offer(&body), None, "an attribute cut short");
        }
    }

    #[test]
    fn the_kernel_tells_of_loopback_and_refuses_an_unknown_index() {
        let offer = match zero_copy_offer(1) {
            // Before Linux 6.3.
            Err(libc::ENOENT) => return,
            answer => answer.unwrap(),
        };
        assert!(!offer.finishes_checksums);
        assert_eq!(zero_copy_offer(i32::MAX), Err(libc::ENODEV));
    }
}
