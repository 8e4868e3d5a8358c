//! Any bytes as a request: the verdict does not depend on where the network cut it, what is
//! accepted is safe to look up, and the reply is whole: its length is the one it announces, its
//! ranges lie within the object.
#![no_main]

use clock::UnixTime;
use http::{
    HEAD_BYTES_MAX, Method, ObjectMeta, Parsed, Part, REPLY_TEXT_BYTES_MAX, Refusal, ReplyConfig,
    ReplyOptions, Request, TARGET_BYTES_MAX, error_reply, parse_request, redirect_reply, reply,
};
use libfuzzer_sys::fuzz_target;

// Two bytes say where to cut, one which object it is, one what the server wants; the rest is the
// request.
fuzz_target!(|bytes: &[u8]| {
    let Some((&[cut_high, cut_low, object, wishes], input)) = bytes.split_first_chunk() else {
        return;
    };
    let verdict = parse_request(input);
    let cut = usize::from(u16::from_be_bytes([cut_high, cut_low]));
    let earlier = parse_request(&input[..cut.min(input.len())]);
    assert!(
        earlier == Parsed::Incomplete || earlier == verdict,
        "cut at {cut}: {earlier:?}, whole: {verdict:?}"
    );
    let mut config = ReplyConfig {
        cors: wishes & 1 != 0,
        cache_control: wishes & 4 != 0,
        ..ReplyConfig::default()
    };
    if wishes & 8 != 0 {
        let added = config.extra_fields.push("X-Added: by the operator");
        added.expect("a field by the grammar");
    }
    let options = ReplyOptions {
        config: &config,
        unix_seconds_now: u64::from(wishes) << 32,
        keep_alive: wishes & 2 != 0,
        is_secure: wishes & 16 != 0,
    };
    match verdict {
        Parsed::Incomplete => assert!(input.len() < HEAD_BYTES_MAX),
        Parsed::Refused(refusal) => check_refusal(refusal, &options),
        Parsed::Complete {
            request,
            head_bytes,
        } => {
            assert!(head_bytes <= input.len().min(HEAD_BYTES_MAX));
            check_path(&request.path);
            check_reply(&request, object, &options);
        }
    }
});

fn check_path(path: &str) {
    assert!(path.len() <= TARGET_BYTES_MAX, "{path:?}");
    assert!(
        !path.bytes().any(|byte| byte.is_ascii_control()),
        "{path:?}"
    );
    let inner = path.strip_prefix('/').expect("an absolute path");
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let is_plain = |segment: &str| !matches!(segment, "" | "." | "..");
    assert!(
        inner.is_empty() || inner.split('/').all(is_plain),
        "{path:?}"
    );
}

fn check_refusal(refusal: Refusal, options: &ReplyOptions<'_>) {
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let made = error_reply(
        refusal.status,
        refusal.head_only,
        true,
        options,
        &mut text,
        &mut parts,
    );
    assert!(made.close);
    check_whole(&text, &parts, 0, refusal.head_only);
}

fn check_reply(request: &Request<'_>, object: u8, options: &ReplyOptions<'_>) {
    let size_bytes = [0, 1, 1000, i64::MAX.unsigned_abs()][usize::from(object % 4)];
    let meta = ObjectMeta {
        size_bytes,
        modified: UnixTime {
            seconds: 784_111_777,
            nanos: 5,
        },
        seen: UnixTime {
            seconds: 784_111_777 + i64::from(object >> 6) - 1,
            nanos: 6,
        },
        content_hash: (object & 32 != 0).then_some([0xa5; 16]),
        content_type: (object % 8 > 3).then(|| "video/mp4".into()),
    };
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let made = reply(request, &meta, options, &mut text, &mut parts);
    assert_eq!(made.close, !(request.keep_alive && options.keep_alive));
    check_whole(&text, &parts, size_bytes, request.method == Method::Head);
    if request.method != Method::Options {
        let (mut text, mut parts) = (Vec::new(), Vec::new());
        let _moved = redirect_reply(request, options, &mut text, &mut parts);
        check_whole(&text, &parts, 0, request.method == Method::Head);
    }
}

/// The parts cover the text once, and send what the head announces.
fn check_whole(text: &[u8], parts: &[Part], size_bytes: u64, head_only: bool) {
    assert!(text.len() <= REPLY_TEXT_BYTES_MAX);
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut fields);
    let head = response.parse(text).expect("a head that can be read");
    let head_bytes = head.unwrap() as u64;
    let (mut text_bytes, mut object_bytes) = (0, 0);
    for part in parts {
        match *part {
            Part::Text(length) => text_bytes += u64::from(length),
            Part::Object { start, length } => {
                assert!(length > 0 && start < size_bytes && length <= size_bytes - start);
                object_bytes += length;
            }
        }
    }
    assert_eq!(text_bytes, text.len() as u64);
    let announced = response
        .headers
        .iter()
        .find(|field| field.name == "Content-Length");
    let announced = announced.map_or(0, |field| {
        let digits = std::str::from_utf8(field.value).expect("digits");
        digits.parse().expect("a length")
    });
    let sent = text_bytes - head_bytes + object_bytes;
    assert_eq!(sent, if head_only { 0 } else { announced });
}
