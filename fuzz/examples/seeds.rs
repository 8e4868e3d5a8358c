//! Writes the seed corpus: sound inputs for every target, made by the code they are meant for, so
//! that they cannot grow stale and no binary file is kept.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path as FilePath;

use wire::icmpv4::{CODE_FRAGMENTATION_NEEDED, Icmpv4Message};
use wire::icmpv6::Icmpv6Message;
use wire::ipv4::{self, Ipv4Repr};
use wire::ipv6::{self, Ipv6Repr};
use wire::{
    ArpOperation, ArpRepr, HEADERS_BYTES_MAX, MacAddress, Route, SackBlocks, SeqNumber,
    TcpChecksum, TcpFlags, TcpOptions, TcpRepr, Timestamps, emit_arp, emit_echo_reply,
    emit_neighbor_solicitation, emit_tcp, emit_unsolicited_advertisement,
};

fn main() -> io::Result<()> {
    write("wire_frame", &wire_frames())?;
    write("http_request", &http_requests())?;
    write("proxy_preface", &proxy_prefaces())?;
    write("signed_links", &signed_links())?;
    write("client_hello", &client_hellos())?;
    write("record_inbound", &record_inbounds())?;
    write("stack_frames", &sim::fuzz_seeds())?;
    write("nvme_controller", &sim::controller_seeds())?;
    write("raw_store", &raw_stores())
}

/// Puts the seeds of `target` where cargo-fuzz looks for them.
fn write(target: &str, seeds: &[Vec<u8>]) -> io::Result<()> {
    let folder = FilePath::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder)?;
    for (index, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{index:02}")), seed)?;
    }
    Ok(())
}

/// Superblocks and catalogues of a store of two devices, empty and with objects, of which one was replaced.
fn raw_stores() -> Vec<Vec<u8>> {
    let geometry = volume::Geometry::new(volume::StoreId([7; 16]), vec![600, 700], 4);
    let geometry = geometry.expect("sizes that fit");
    let mut seeds = Vec::new();
    let first = volume::Commit::first(volume::Catalogue::empty(geometry));
    let mut catalogue = written(first, &mut seeds);
    for (names, size_bytes) in [
        (&["a", "b/c", "empty"][..], 5000),
        (&["a", "long"], 1_100_000),
    ] {
        let mut editor = volume::Editor::new(catalogue, &volume::Readers::default());
        for name in names {
            let content = vec![1; if *name == "empty" { 0 } else { size_bytes }];
            let mut digest = volume::ContentDigest::new();
            digest.update(&content);
            let (runs, tag) = digest.finish();
            let size_bytes = content.len() as u64;
            let extent = editor.allocate(size_bytes).expect("room");
            editor.insert(volume::Entry {
                name: (*name).into(),
                content_type: "video/mp4".into(),
                extent,
                size_bytes,
                modified: volume::Time::default(),
                added: 0,
                tag,
                runs: runs.into(),
            });
        }
        catalogue = written(editor.commit().expect("it fits"), &mut seeds);
    }
    // The last catalogue that may be: no other can follow it.
    let last = seeds.iter().rfind(|seed| seed.starts_with(b"ATLASCAT"));
    let mut last = last.expect("a catalogue").clone();
    last[32..40].copy_from_slice(&volume::SEQUENCE_MAX.to_le_bytes());
    seeds.push(last);
    seeds
}

/// What a commit writes to the first device, without the zeros behind it and without the superblock's
/// checksum, which the target computes.
fn written(mut commit: volume::Commit, seeds: &mut Vec<Vec<u8>>) -> volume::Catalogue {
    let mut encoded = Vec::new();
    loop {
        match commit.next_step() {
            volume::Step::Write {
                device: 0,
                block: 256..,
                bytes,
            } => encoded = bytes.to_vec(),
            volume::Step::Write {
                device: 0, bytes, ..
            } => {
                let superblock = volume::Superblock::decode(bytes).expect("one of ours");
                encoded.truncate(superblock.catalogue_bytes as usize);
                seeds.push(core::mem::take(&mut encoded));
                seeds.push(bytes[..104].to_vec());
            }
            volume::Step::Write { .. } | volume::Step::Flush => {}
            volume::Step::Done => return commit.into_catalogue(),
        }
    }
}

const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// One frame of every kind that is parsed.
fn wire_frames() -> Vec<Vec<u8>> {
    let mut seeds = vec![arp(), solicitation(), advertisement()];
    let ends: [(IpAddr, IpAddr); 2] = [
        (PEER_V4.into(), OUR_V4.into()),
        (PEER_V6.into(), OUR_V6.into()),
    ];
    for (source, destination) in ends {
        let route = Route {
            source_mac: PEER_MAC,
            destination_mac: OUR_MAC,
            source,
            destination,
        };
        for segment in segments() {
            seeds.push(tcp(&route, &segment, b"GET / HTTP/1.1\r\n\r\n"));
        }
        seeds.push(echo(&route));
        seeds.push(too_big(&route));
    }
    seeds
}

/// A SYN, a request, and an acknowledgment with holes.
fn segments() -> [TcpRepr; 3] {
    let plain = TcpRepr {
        source_port: 50_000,
        destination_port: 80,
        sequence: SeqNumber(u32::MAX),
        window: 65_535,
        ..TcpRepr::default()
    };
    let timestamps = Some(Timestamps { value: 1, echo: 2 });
    let mut sack = SackBlocks::default();
    for block in 0..3 {
        sack.push(SeqNumber(3000 * block), SeqNumber(3000 * block + 1448));
    }
    let syn = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps,
        ..TcpOptions::default()
    };
    let push = TcpFlags::PSH.union(TcpFlags::ACK);
    [
        TcpRepr {
            flags: TcpFlags::SYN,
            options: syn,
            ..plain
        },
        TcpRepr {
            flags: push,
            ..plain
        },
        TcpRepr {
            flags: TcpFlags::ACK,
            options: TcpOptions {
                timestamps,
                sack,
                ..TcpOptions::default()
            },
            ..plain
        },
    ]
}

fn tcp(route: &Route, segment: &TcpRepr, payload: &[u8]) -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_tcp(
        &mut buffer,
        route,
        segment,
        &[payload],
        TcpChecksum::Full,
        1,
    );
    [&buffer[..length], payload].concat()
}

fn arp() -> Vec<u8> {
    let request = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: PEER_MAC,
        sender_address: PEER_V4,
        target_mac: MacAddress::default(),
        target_address: OUR_V4,
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_arp(&mut buffer, MacAddress::BROADCAST, &request);
    buffer[..length].to_vec()
}

fn solicitation() -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_neighbor_solicitation(&mut buffer, PEER_MAC, PEER_V6, OUR_V6);
    buffer[..length].to_vec()
}

fn advertisement() -> Vec<u8> {
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let length = emit_unsolicited_advertisement(&mut buffer, PEER_MAC, PEER_V6);
    buffer[..length].to_vec()
}

/// An echo request: a reply whose message is written over.
fn echo(route: &Route) -> Vec<u8> {
    let data = b"abcdefgh";
    let (identifier, sequence) = (1, 2);
    let mut buffer = [0; 128];
    let length = emit_echo_reply(&mut buffer, route, identifier, sequence, data);
    let mut frame = buffer[..length.expect("room for eight bytes")].to_vec();
    match route.source {
        IpAddr::V4(_) => {
            Icmpv4Message::EchoRequest {
                identifier,
                sequence,
                data,
            }
            .emit(&mut frame[34..]);
        }
        IpAddr::V6(_) => {
            let request = Icmpv6Message::EchoRequest {
                identifier,
                sequence,
                data,
            };
            request.emit(&mut frame[54..], PEER_V6, OUR_V6);
        }
    }
    frame
}

/// An ICMP error about a segment of ours, on the echo's Ethernet header.
fn too_big(route: &Route) -> Vec<u8> {
    let back = Route {
        source: route.destination,
        destination: route.source,
        ..*route
    };
    let quoted = tcp(&back, &segments()[1], b"");
    let quote = &quoted[14..];
    let mut frame = echo(route);
    match route.source {
        IpAddr::V4(_) => {
            let code = CODE_FRAGMENTATION_NEEDED;
            let message = Icmpv4Message::Unreachable {
                code,
                mtu_bytes: 1400,
                quote,
            };
            frame.resize(34 + message.bytes(), 0);
            let header = Ipv4Repr {
                source: PEER_V4,
                destination: OUR_V4,
                protocol: ipv4::PROTOCOL_ICMP,
                time_to_live: 64,
                identification: 1,
                total_bytes: u16::try_from(frame.len() - 14).expect("a short frame"),
            };
            header.emit((&mut frame[14..34]).try_into().expect("twenty bytes"));
            message.emit(&mut frame[34..]);
        }
        IpAddr::V6(_) => {
            let message = Icmpv6Message::PacketTooBig {
                mtu_bytes: 1400,
                quote,
            };
            frame.resize(54 + message.bytes(), 0);
            let header = Ipv6Repr {
                source: PEER_V6,
                destination: OUR_V6,
                protocol: ipv6::PROTOCOL_ICMP,
                hop_limit: 64,
                payload_bytes: u16::try_from(message.bytes()).expect("a short frame"),
            };
            header.emit((&mut frame[14..54]).try_into().expect("forty bytes"));
            message.emit(&mut frame[54..], PEER_V6, OUR_V6);
        }
    }
    frame
}

/// Requests with every field that is acted on, each after the four bytes that say where to cut it,
/// which object it is for and what the server wants.
fn http_requests() -> Vec<Vec<u8>> {
    const WISHES: [u8; 4] = [0, 32, 2, 35];
    let field_lines = [
        "",
        "Range: bytes=0-0\r\n",
        "Range: bytes=0-1, 5-9 ,-2\r\nIf-Range: \"a\"\r\n",
        "Range: bytes=990-\r\nIf-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
        "If-None-Match: W/\"b\", \"a\"\r\nIf-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT\r\n",
        "If-Match: *\r\nIf-Unmodified-Since: Sun Nov  6 08:49:37 1994\r\n",
        "Connection: keep-alive, close\r\nExpect: 100-continue\r\nContent-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Accept-Encoding: br;q=0.5, x-gzip;q=1.000, *;q=0, identity\r\nRange: bytes=1-\r\n",
    ];
    let lines = [
        "GET /a/%2e./b%20c?d HTTP/1.1",
        "HEAD http://h/a HTTP/1.0",
        "OPTIONS * HTTP/1.1",
    ];
    let mut seeds = Vec::new();
    for line in lines {
        for fields in field_lines {
            let head = format!("{line}\r\nHost: h:80\r\n{fields}\r\n");
            seeds.push([&WISHES, head.as_bytes()].concat());
        }
    }
    seeds
}

/// Both versions of the PROXY protocol, whole and with a request behind them, each after two bytes that say where to
/// cut it.
fn proxy_prefaces() -> Vec<Vec<u8>> {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let of_version_2 = |fixed: [u8; 4], body: &[u8]| [SIGNATURE, &fixed, body].concat();
    let prefaces = [
        b"PROXY TCP4 192.0.2.7 10.0.0.2 56324 443\r\n".to_vec(),
        b"PROXY TCP6 2001:db8::7 ::1 56324 443\r\nGET / HTTP/1.1\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        of_version_2([0x20, 0, 0, 0], b""),
        of_version_2([0x21, 0x11, 0, 12], &[7; 12]),
        of_version_2([0x21, 0x21, 0, 39], &[7; 39]),
        of_version_2([0x21, 0x31, 0, 216], &[b'/'; 216]),
    ];
    let cut = |preface: &Vec<u8>| [&[0, 14], preface.as_slice()].concat();
    prefaces.iter().map(cut).collect()
}

/// Each form of link with each fault, with all that it may name and with nothing.
fn signed_links() -> Vec<Vec<u8>> {
    let choices = (0..4).flat_map(|form| (0..8).map(move |fault| (form, fault)));
    let seeds = choices.flat_map(|(form, fault)| {
        [0, 0x3f].map(|wishes| {
            let numbers = [
                form, fault, wishes, 40, 1, 0, 0, 0, 0, 0x69, 0x27, 0, 0, 0, 0, 0x0e, 0x10,
            ];
            let address = [192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
            [&numbers[..], &address, &[5], b"a/b.0", b"x=1"].concat()
        })
    });
    seeds.collect()
}

/// ClientHellos without extensions, with a name, and with each limit of records.
fn client_hellos() -> Vec<Vec<u8>> {
    let name: &[u8] = b"\0\x0c\0\0\x09localhost";
    let lists: [&[(u16, &[u8])]; 5] = [
        &[],
        &[(0, name), (16, b"\0\x0c\x02h2\x08http/1.1")],
        &[(0, name), (1, &[2])],
        &[(0xfafa, b""), (28, &[0, 64]), (0, name)],
        &[(1, &[5]), (28, &[0, 63]), (28, b"")],
    ];
    let length = |length: usize| u16::try_from(length).expect("short").to_be_bytes();
    let hello = |extensions: &[(u16, &[u8])]| {
        let each = extensions.iter().flat_map(|(kind, value)| {
            [&kind.to_be_bytes()[..], &length(value.len()), value].concat()
        });
        let extensions: Vec<u8> = each.collect();
        let mut body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
        body.extend(length(extensions.len()));
        body.extend(extensions);
        let [high, low] = length(body.len());
        [vec![1, 0, high, low], body].concat()
    };
    lists.into_iter().map(hello).collect()
}

/// Records of either version: one byte for the version, then per record whether it is sealed, its
/// type, its length and its bytes, which in TLS 1.3 end in the type that counts.
fn record_inbounds() -> Vec<Vec<u8>> {
    const SEALED: u8 = 1;
    let sealed = |type_code: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).expect("a short record");
        [&[SEALED, type_code, length], bytes].concat()
    };
    let tls13: [&[&[u8]]; 5] = [
        &[b"GET / HTTP/1.1\r\n\r\n\x17", b"\x17\0\0", b"\x01\0\x15"],
        &[
            &[24, 0, 0, 1, 1, 22],
            b"GET\x17",
            &[24, 0, 0, 1, 0, 22, 0],
            &[2, 80, 21],
        ],
        &[
            &[24, 0, 22],
            &[0, 22],
            &[1, 0, 22],
            b"GET\x17",
            &[1, 90, 21],
            &[0; 9],
        ],
        &[&[24, 22], b"GET\x17"],
        &[&[24, 0, 0, 1, 0, 24, 22]],
    ];
    let tls12: [&[(u8, &[u8])]; 3] = [
        &[(23, b"GET / HTTP/1.1\r\n\r\n"), (23, b""), (21, &[1, 0])],
        &[(22, &[1, 0, 0, 0]), (21, &[1, 100]), (21, &[2, 80])],
        &[(20, &[1])],
    ];
    let of_tls13 = tls13.into_iter().map(|records| {
        let records = records.iter().flat_map(|bytes| sealed(23, bytes));
        std::iter::once(0).chain(records).collect()
    });
    let of_tls12 = tls12.into_iter().map(|records| {
        let records = records.iter();
        let records = records.flat_map(|&(type_code, bytes)| sealed(type_code, bytes));
        std::iter::once(1).chain(records).collect()
    });
    let forged = [0, 0, 21, 2, 2, 80].to_vec();
    of_tls13.chain(of_tls12).chain([forged]).collect()
}
