//! AF_XDP sockets that serve a VLAN, on a veth pair without a VLAN device: frames with tags are made and
//! looked at byte by byte. What a VLAN device adds is tried by `cargo xtask lab --link vlan`.

use crate::common::{
    RawSocket, connect, eventually, in_namespace, ip, is_large, open_xdp, receive_until, send,
    send_large, set_tag_removal, with_tag,
};
use clock::Instant;
use link::xdp::CELLS_MIN;
use link::{AttachMode, Link, SetupError, VlanTag, Xdp, XdpConfig};
use wire::MacAddress;

const TAG: VlanTag = VlanTag {
    protocol: 0x8100,
    id: 100,
};
const SERVICE_TAG: VlanTag = VlanTag {
    protocol: 0x88a8,
    id: 4_094,
};

/// A link at an address of its own; `vlan` is the tag of its frames.
fn config(attach: AttachMode, vlan: Option<VlanTag>) -> XdpConfig {
    XdpConfig {
        attach,
        vlan,
        receive_cells: CELLS_MIN,
        ..XdpConfig::new("v0", &["10.77.0.9".parse().unwrap()])
    }
}

/// A UDP frame to our address, of `bytes` bytes that differ by `number`.
fn numbered(mac: MacAddress, number: u8, bytes: usize) -> Vec<u8> {
    let mut frame = mac.0.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0x99, 0x08, 0x00, 0x45, 0]);
    frame.extend(u16::try_from(bytes - 14).unwrap().to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 9]);
    frame.extend(vec![number; bytes - frame.len()]);
    frame
}

#[test]
fn frames_of_a_vlan_come_without_their_tag_and_others_do_not_come() {
    in_namespace(|| {
        let peer = connect();
        set_tag_removal("v0", false);
        // Packet sockets make room for a tag of the other type only so.
        peer.run(|| ip("link set v1 mtu 1504"));
        for attach in [AttachMode::Driver, AttachMode::Generic] {
            for (tag, other_protocol) in [(TAG, 0x88a8), (SERVICE_TAG, 0x8100)] {
                let Some(mut link) = open_xdp(&config(attach, Some(tag))) else {
                    return;
                };
                let VlanTag { protocol, id } = tag;
                let mac = link.capabilities().mac;
                let mut socket = peer.run(|| RawSocket::open("v1"));
                let plain = numbered(mac, 1, 60);
                socket.send(&plain);
                socket.send(&with_tag(&plain, protocol, id - 1));
                socket.send(&with_tag(&plain, protocol, 0));
                socket.send(&with_tag(&plain, other_protocol, id));
                let inner = with_tag(&plain, 0x8100, id);
                socket.send(&with_tag(&inner, protocol, id));
                // Every priority, and from the shortest frame to the largest.
                for (number, bytes) in (2..).zip([60, 61, 1_000, 1_513, 1_514]) {
                    let frame = numbered(mac, number, bytes);
                    let control = id | u16::from(number) << 13;
                    socket.send(&with_tag(&frame, protocol, control));
                    let received = receive_until(&mut link, |it| Some(it.frame.to_vec()));
                    assert_eq!(received, frame);
                }
                let counters = link.counters();
                assert_eq!(counters.received_frames, 5);
                assert_eq!(counters.receive_errors, 0);
            }
        }
    });
}

#[test]
fn frames_leave_with_the_tag_and_nothing_else_of_them_changes() {
    in_namespace(|| {
        let peer = connect();
        set_tag_removal("v0", false);
        for tag in [TAG, SERVICE_TAG] {
            let Some(mut link) = open_xdp(&config(AttachMode::Auto, Some(tag))) else {
                return;
            };
            let mut socket = peer.run(|| RawSocket::open("v1"));
            socket.tell_tags();
            for bytes in [60, 1_514] {
                let frame = numbered(MacAddress([4; 6]), 7, bytes);
                send(&mut link, &frame).unwrap();
                let is_ours = |frame: &[u8]| frame.get(..6) == Some(&[4; 6]);
                // Priority 0.
                let expected = Some((tag.protocol, tag.id));
                assert_eq!(socket.receive_with_tag(is_ours), (expected, frame));
            }
            // A large segment: each of its frames has a tag.
            send_large(&mut link, MacAddress([2; 6]), 30_000).unwrap();
            let mut received = 0;
            while received < 30_000 - 40 {
                let (found, frame) = socket.receive_with_tag(is_large);
                assert_eq!(found, Some((tag.protocol, tag.id)));
                received += frame.len() - 54;
            }
            assert_eq!(received, 30_000 - 40);
            eventually(|| {
                let _ = link.receive(Instant::ZERO, 64, &mut |_| ());
                let counters = link.counters();
                counters.queued_descriptors == counters.completed_descriptors
            });
        }
    });
}

#[test]
fn without_a_vlan_frames_of_any_pass_to_the_kernel_and_those_with_a_priority_only_come() {
    in_namespace(|| {
        let peer = connect();
        // As above.
        peer.run(|| ip("link set v1 mtu 1504"));
        for attach in [AttachMode::Driver, AttachMode::Generic] {
            let Some(mut link) = open_xdp(&config(attach, None)) else {
                return;
            };
            let mac = link.capabilities().mac;
            let mut kernel = RawSocket::open("v0");
            kernel.tell_tags();
            let mut socket = peer.run(|| RawSocket::open("v1"));
            let plain = numbered(mac, 1, 60);
            socket.send(&with_tag(&plain, TAG.protocol, TAG.id));
            socket.send(&with_tag(&plain, TAG.protocol, 0xe000 | TAG.id));
            let (mut expected, mut received) = (Vec::new(), Vec::new());
            for (number, bytes) in (2..).zip([60, 1_514]) {
                let plain = numbered(mac, number, bytes);
                for protocol in [TAG.protocol, SERVICE_TAG.protocol] {
                    expected.push(with_tag(&plain, protocol, 0));
                    expected.push(with_tag(&plain, protocol, 0xe000));
                }
                expected.push(plain);
            }
            for frame in &expected {
                socket.send(frame);
                received.push(receive_until(&mut link, |it| Some(it.frame.to_vec())));
            }
            assert_eq!(received, expected, "as they came, tag included");
            for control in [TAG.id, 0xe000 | TAG.id] {
                let is_numbered = |frame: &[u8]| frame.get(..6) == Some(&mac.0);
                let (tag, frame) = kernel.receive_with_tag(is_numbered);
                assert_eq!((tag, frame), (Some((TAG.protocol, control)), plain.clone()));
            }
        }
    });
}

#[test]
fn a_device_that_removes_tags_is_refused_with_the_remedy() {
    in_namespace(|| {
        let _peer = connect();
        set_tag_removal("v0", true);
        let tagged = config(AttachMode::Auto, Some(TAG));
        let refused = Xdp::open_queues(&tagged).unwrap_err();
        assert!(
            matches!(refused, SetupError::VlanTagsRemoved { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("`ethtool -K v0 rxvlan off`"));
        // That is no concern of frames without a tag.
        let Some(link) = open_xdp(&config(AttachMode::Auto, None)) else {
            return;
        };
        drop(link);
        set_tag_removal("v0", false);
        let link = open_xdp(&tagged).unwrap();
        assert_eq!((link.interface(), link.device()), ("v0", "v0"));
    });
}
