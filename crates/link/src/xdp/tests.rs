//! What needs neither rights nor an interface of its own; the rest is in `tests/xdp.rs`.

use super::{
    AddressUse, CELLS_MAX, CELLS_MIN, PORTS_MAX, SEGMENT_BYTES_MIN, Xdp, XdpConfig,
    segmentation_bytes_max,
};
use crate::error::SetupError;

fn config() -> XdpConfig {
    XdpConfig::new("lo", &["10.0.0.1".parse().unwrap()])
}

fn refusal(config: &XdpConfig) -> SetupError {
    Xdp::open_queues(config).unwrap_err()
}

#[test]
fn bad_names_addresses_ports_and_devices_are_refused_with_their_reason() {
    let interface = |interface: &str| XdpConfig {
        interface: interface.to_owned(),
        ..config()
    };
    let refused = refusal(&interface(""));
    assert!(matches!(refused, SetupError::BadName { .. }));
    let refused = refusal(&interface("no-such-link"));
    assert!(matches!(refused, SetupError::NoInterface { .. }));
    assert!(matches!(refusal(&config()), SetupError::NotEthernet { .. }));
    for count in [0, 65] {
        let addresses = vec![config().addresses[0]; count];
        let refused = refusal(&XdpConfig {
            addresses,
            ..config()
        });
        assert_eq!(refused, SetupError::AddressCount { count, max: 64 });
    }
    let shared = |count: usize| XdpConfig {
        address_use: AddressUse::Shared {
            ports: vec![80; count],
        },
        ..config()
    };
    for count in [0, PORTS_MAX + 1] {
        let max = PORTS_MAX;
        assert_eq!(
            refusal(&shared(count)),
            SetupError::PortCount { count, max }
        );
    }
    // What comes next is checked next: the ports were taken.
    for count in [1, PORTS_MAX] {
        let refused = refusal(&shared(count));
        assert!(matches!(refused, SetupError::NotEthernet { .. }));
    }
}

#[test]
fn cells_are_powers_of_two_within_their_limits() {
    for cells in [CELLS_MIN, 2_048, CELLS_MAX] {
        for config in with_cells(cells) {
            let refused = refusal(&config);
            assert!(matches!(refused, SetupError::NotEthernet { .. }), "{cells}");
        }
    }
    for cells in [0, CELLS_MIN / 2, 2_047, CELLS_MAX * 2] {
        for config in with_cells(cells) {
            let refused = refusal(&config);
            assert!(matches!(refused, SetupError::CellCount { .. }), "{cells}");
        }
    }
}

/// So many cells of one kind and the usual number of the other.
fn with_cells(cells: u32) -> [XdpConfig; 2] {
    [
        XdpConfig {
            receive_cells: cells,
            ..config()
        },
        XdpConfig {
            transmit_cells: cells,
            ..config()
        },
    ]
}

#[test]
fn the_largest_segment_has_cells_for_all_its_frames() {
    for (cells, plain_bytes, lent_bytes) in [
        (CELLS_MIN, CELLS_MIN * SEGMENT_BYTES_MIN, 24_576),
        (128, 65_535, 49_152),
        (256, 65_535, 65_535),
        (2_048, 65_535, 65_535),
    ] {
        assert_eq!(segmentation_bytes_max(cells, false), plain_bytes);
        assert_eq!(segmentation_bytes_max(cells, true), lent_bytes);
        // A cell for each frame, and for each page of a slot.
        let lent_cells = lent_bytes.div_ceil(SEGMENT_BYTES_MIN) + lent_bytes.div_ceil(4_096);
        assert!(plain_bytes.div_ceil(SEGMENT_BYTES_MIN) <= cells && lent_cells <= cells);
    }
}

#[test]
fn errors_name_their_remedy() {
    let name = "eth0".to_owned();
    let text = |error: SetupError| error.to_string();
    let attached = SetupError::ProgramAttached { name: name.clone() };
    assert!(text(attached).contains("`ip link set dev eth0 xdp off`"));
    let queues = SetupError::ReceiveQueueCount {
        name,
        queues: 65,
        max: 64,
    };
    assert!(text(queues).contains("`ethtool -L eth0 combined 64`"));
}
