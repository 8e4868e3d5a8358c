//! Any bytes as a request: the verdict does not depend on where the network cut it, what is
//! accepted is safe to look up, and the reply is whole: its length is the one it announces, its
//! ranges lie within the object.
#![no_main]

use std::sync::LazyLock;

use clock::UnixTime;
use http::{
    Cmcd, Coding, Cors, HEAD_BYTES_MAX, HeadText, Method, ObjectMeta, Parsed, Part, REPLY_TEXT_BYTES_MAX, Refusal,
    ReplyConfig, ReplyOptions, Request, Status, TARGET_BYTES_MAX, coded_reply, directory_reply,
    error_page_reply, error_reply, parse_request,
};
use libfuzzer_sys::fuzz_target;
use sites::links::{LinkForm, LinkKey, Links};
use sites::rules::Rule;
use sites::{Client, Site, Sites, Verdict};

// Two bytes say where to cut, one which object it is, one what the server wants; the rest is the
// request.
fuzz_target!(|bytes: &[u8]| {
    let Some((&[cut_high, cut_low, object, wishes], input)) = bytes.split_first_chunk() else {
        return;
    };
    if let Some(Cmcd { session, .. }) = Cmcd::find(&HeadText::find(input)) {
        assert!(session.is_none_or(|session| session.len() <= 64));
    }
    let verdict = parse_request(input);
    let cut = usize::from(u16::from_be_bytes([cut_high, cut_low]));
    let earlier = parse_request(&input[..cut.min(input.len())]);
    assert!(
        earlier == Parsed::Incomplete || earlier == verdict,
        "cut at {cut}: {earlier:?}, whole: {verdict:?}"
    );
    let mut config = ReplyConfig {
        cors: if wishes & 1 != 0 {
            Cors::AnyOrigin
        } else {
            Cors::Off
        },
        cache_control: wishes & 4 != 0,
        ..ReplyConfig::default()
    };
    if wishes & 32 != 0 {
        config.precompressed = Coding::ALL.to_vec();
    }
    if wishes & 8 != 0 {
        let added = config.extra_fields.push("X-Added: by the operator");
        added.expect("a field by the grammar");
    }
    let options = ReplyOptions {
        config: &config,
        unix_seconds_now: u64::from(wishes) << 32,
        keep_alive: wishes & 2 != 0,
        is_secure: wishes & 16 != 0,
        origin: None,
        is_private: wishes & 32 != 0,
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
            check_verdict(&request, &options);
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

/// Without a key nobody gets what is behind signed links, and what is served is a path.
fn check_verdict(request: &Request<'_>, options: &ReplyOptions<'_>) {
    static SITES: LazyLock<Sites> = LazyLock::new(|| {
        let key = LinkKey::new(b"nobody's").expect("a key");
        let signed = Rule {
            links: Some(Links::new(LinkForm::Token("hdnts".into()), vec![key])),
            ..Rule::default()
        };
        let open = (vec!["/open/**".into(), "*.m3u8".into()], Rule::default());
        let rules = vec![open, (vec!["/**".into()], signed)];
        let names = vec!["a.example".into(), "*.b.example".into()];
        let site = Site {
            names,
            rules,
            ..Site::default()
        };
        Sites::new(
            vec![site.clone()],
            Site {
                names: Vec::new(),
                ..site
            },
        )
        .expect("sites")
    });
    let client = Client {
        source: [192, 0, 2, 7].into(),
        is_secure: options.is_secure,
        unix_seconds: options.unix_seconds_now,
    };
    if let Verdict::Serve(place) = SITES.decide(request, &client) {
        let path = place.path.as_deref().unwrap_or(&request.path);
        check_path(path);
        assert!(
            path.starts_with("/open/") || path.ends_with(".m3u8"),
            "{path:?}"
        );
    }
    let _ = SITES.replies(request);
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
    let codings = request.preferred(&options.config.precompressed);
    for (place, coding) in codings.iter().enumerate() {
        let is_again = codings[..place].contains(coding);
        assert!(coding.is_none() || !is_again, "{codings:?}");
    }
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let made = coded_reply(codings[0], request, &meta, options, &mut text, &mut parts);
    assert_eq!(made.close, !(request.keep_alive && options.keep_alive));
    check_whole(&text, &parts, size_bytes, request.method == Method::Head);
    if request.method != Method::Options {
        let (mut text, mut parts) = (Vec::new(), Vec::new());
        let page = ("/404.html", &meta);
        let status = Status::NotFound;
        let _made = error_page_reply(status, page, request, options, &mut text, &mut parts);
        check_whole(&text, &parts, size_bytes, request.method == Method::Head);
        let (mut text, mut parts) = (Vec::new(), Vec::new());
        let _moved = directory_reply(request, options, &mut text, &mut parts);
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
