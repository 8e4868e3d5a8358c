//! Files byte for byte, and both ends of every bound.

use std::io::{self, Write};

use clock::Instant;
use wire::{Offload, Outgoing};

use super::{CaptureConfig, CaptureCounters, Captured};
use crate::sim::{SimConfig, SimLink, SimPort, pair};
use crate::{Link, Sent, TransmitError};

const NOW: Instant = Instant::from_micros(2_000_001);

/// Bytes that stop being taken after some number of writes.
#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    fails_after_bytes: Option<usize>,
    flushes: usize,
}

impl Write for &mut Output {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self
            .fails_after_bytes
            .is_some_and(|limit| self.bytes.len() + buffer.len() > limit)
        {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushes += 1;
        Ok(())
    }
}

fn captured(
    output: &mut Output,
    config: CaptureConfig,
) -> (Captured<SimLink, &mut Output>, SimPort) {
    let (link, port) = pair(SimConfig::default(), 1);
    (Captured::new(link, output, config).unwrap(), port)
}

fn transmit(link: &mut impl Link, bytes: usize) -> Result<Sent, TransmitError> {
    let (headers, rest) = ([0xaa; 14], vec![0xbb; bytes - 14]);
    let (first, second) = rest.split_at(rest.len() / 2);
    link.transmit(
        NOW,
        &Outgoing {
            headers: &headers,
            payload: &[first, second],
            offload: Offload::default(),
        },
    )
}

#[test]
fn the_file_has_the_documented_format_byte_for_byte() {
    let mut output = Output::default();
    let config = CaptureConfig {
        snap_bytes: 16,
        bytes_max: 1_000,
        epoch_nanos: 3 * super::NANOS_PER_SECOND,
    };
    let (mut link, mut port) = captured(&mut output, config);
    transmit(&mut link, 18).unwrap();
    port.send(NOW, vec![0xcc; 15]);
    let mut seen = Vec::new();
    let handed = link.receive(NOW, 8, &mut |received| seen.push(received.frame.to_vec()));
    assert_eq!((handed, seen), (Ok(1), vec![vec![0xcc; 15]]));
    drop(link);

    let mut expected = vec![0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    expected.extend_from_slice(&[16, 0, 0, 0, 1, 0, 0, 0]);
    // 5 s and 1,000 ns, 16 of 18 bytes kept
    expected.extend_from_slice(&[5, 0, 0, 0, 0xe8, 3, 0, 0, 16, 0, 0, 0, 18, 0, 0, 0]);
    expected.extend_from_slice(&[[0xaa; 14].as_slice(), &[0xbb; 2]].concat());
    expected.extend_from_slice(&[5, 0, 0, 0, 0xe8, 3, 0, 0, 15, 0, 0, 0, 15, 0, 0, 0]);
    expected.extend_from_slice(&[0xcc; 15]);
    assert_eq!(output.bytes, expected);
    assert_eq!(output.flushes, 1, "at the end");
}

#[test]
fn an_idle_link_flushes_once() {
    let mut output = Output::default();
    let (mut link, _port) = captured(&mut output, CaptureConfig::default());
    for _ in 0..3 {
        assert_eq!(link.receive(NOW, 8, &mut |_| ()), Ok(0));
    }
    drop(link);
    assert_eq!(output.flushes, 1);
}

#[test]
fn a_frame_the_link_did_not_take_is_not_written() {
    let mut output = Output::default();
    let (mut link, mut port) = captured(&mut output, CaptureConfig::default());
    port.set_link_up(NOW, false);
    assert_eq!(
        transmit(&mut link, 60),
        Err(TransmitError::Lost(libc::ENETDOWN))
    );
    assert_eq!(link.capture_counters(), CaptureCounters::default());
}

#[test]
fn the_byte_limit_is_kept_to_the_byte() {
    for (bytes_max, written_frames) in [(24 + 2 * 76, 2), (24 + 2 * 76 - 1, 1), (24, 0)] {
        let mut output = Output::default();
        let config = CaptureConfig {
            bytes_max,
            ..CaptureConfig::default()
        };
        let (mut link, _port) = captured(&mut output, config);
        for _ in 0..3 {
            assert_eq!(transmit(&mut link, 60), Ok(Sent::Copied));
        }
        let expected = CaptureCounters {
            written_frames,
            missed_frames: 3 - written_frames,
            write_errors: 0,
        };
        assert_eq!(link.capture_counters(), expected);
        drop(link);
        assert_eq!(output.bytes.len() as u64, 24 + written_frames * 76);
    }
}

#[test]
fn a_write_error_ends_the_capture_and_not_the_link() {
    let mut output = Output {
        fails_after_bytes: Some(24 + 76),
        ..Output::default()
    };
    let (mut link, mut port) = captured(&mut output, CaptureConfig::default());
    for _ in 0..3 {
        assert_eq!(transmit(&mut link, 60), Ok(Sent::Copied));
    }
    let expected = CaptureCounters {
        written_frames: 1,
        missed_frames: 2,
        write_errors: 1,
    };
    assert_eq!(link.capture_counters(), expected);
    assert_eq!(std::iter::from_fn(|| port.receive(NOW)).count(), 3);

    let mut output = Output {
        fails_after_bytes: Some(23),
        ..Output::default()
    };
    let (link, _port) = pair(SimConfig::default(), 1);
    let refused = Captured::new(link, &mut output, CaptureConfig::default());
    assert!(
        refused.is_err(),
        "a capture that cannot begin is an error at start"
    );
}
