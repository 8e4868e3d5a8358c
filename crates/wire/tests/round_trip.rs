//! What is emitted parses back to the same values.
use std::net::IpAddr;
use wire::*;

fn route() -> Route {
    Route {
        source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        source: IpAddr::from([10, 0, 0, 1]),
        destination: IpAddr::from([10, 0, 0, 2]),
    }
}

#[test]
fn tcp_comes_back() {
    let segment = TcpRepr {
        source_port: 80,
        destination_port: 1234,
        sequence: SeqNumber(7),
        ..TcpRepr::default()
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_tcp(
        &mut buffer,
        &route(),
        &segment,
        &[b"abc", b"defg"],
        TcpChecksum::Full,
        3,
    );
    let mut frame = buffer[..length].to_vec();
    frame.extend_from_slice(b"abcdefg");
    let Ok(Incoming::Tcp {
        segment: parsed,
        payload,
        path,
    }) = parse_frame(&frame, ChecksumState::Unverified)
    else {
        panic!()
    };
    assert_eq!(parsed, segment);
    assert_eq!(payload, b"abcdefg");
    assert_eq!(path.reply_route().destination, route().source);
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_tcp(
        &mut buffer,
        &route(),
        &segment,
        &[b"abc", b"defg"],
        TcpChecksum::Partial,
        3,
    );
    let mut partial = buffer[..length].to_vec();
    partial.extend_from_slice(b"abcdefg");
    complete_checksum(&mut partial, route().partial_checksum());
    assert_eq!(frame, partial);
}
