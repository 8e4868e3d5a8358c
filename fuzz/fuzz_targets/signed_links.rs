//! Signed links: one that is made for a path, a time and an address opens that path then and there. One of which a bit was
//! changed, or that is for something else, gets 403, and so does whatever was made without a key. The signer here shares no
//! code with the server's.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use aws_lc_rs::hmac;
use http::{Parsed, Status, parse_request};
use libfuzzer_sys::fuzz_target;
use md5::{Digest as _, Md5};
use sites::links::{Expression, LinkForm, LinkKey, Links};
use sites::rules::Rule;
use sites::{Client, Site, Sites, Verdict};

/// The first two open links.
const KEYS: [&[u8]; 3] = [b"the old key", b"the new key", b"nobody's key"];
/// Bytes of a path, none of which means something in a pattern of a token.
const PATH_BYTES: &[u8; 12] = b"abXY019_-./=";
/// What begins a proof, or a part of one, where else it stands.
const NAMES: [&[u8]; 3] = [b"hdnts=", b"md5=", b"expires="];

static SITES: LazyLock<Sites> = LazyLock::new(|| {
    let signed = |form| {
        let keys = KEYS[..2].iter().map(|key| LinkKey::new(key));
        let keys = keys.map(|key| key.expect("a key")).collect();
        Rule {
            links: Some(Links::new(form, keys)),
            ..Rule::default()
        }
    };
    let expression = Expression::parse("$secure_link_expires$uri$remote_addr $key");
    let secure = LinkForm::SecureLink {
        hash_name: "md5".into(),
        expires_name: "expires".into(),
        expression: expression.expect("an expression"),
    };
    let token = || LinkForm::Token("hdnts".into());
    let rules = vec![
        (vec!["/s/**".into()], signed(secure)),
        (vec!["/**".into()], signed(token())),
    ];
    let site = Site {
        rules,
        ..Site::default()
    };
    Sites::new(Vec::new(), site).expect("a site")
});

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    InQuery,
    InPath,
    InCookie,
    Secure,
}

/// What is wrong with a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Bit { at: usize, bit: u8 },
    OtherPath,
    OtherAddress,
    TooLate,
    TooEarly,
    OtherKey,
    Forged,
}

/// What is signed, and who asks.
struct Case<'a> {
    form: Form,
    fault: Fault,
    path: String,
    has_address: bool,
    has_start: bool,
    key: &'a [u8],
    now: u64,
    expires: u64,
    address: IpAddr,
    /// What else the request has.
    rest: &'a [u8],
}

// 34 bytes say what is signed and what is wrong with it; then a path as long as the last of them says, and what else is
// in the query or the cookie.
fuzz_target!(|bytes: &[u8]| {
    let Some((choices, input)) = bytes.split_first_chunk::<34>() else {
        return;
    };
    let &[form, fault, wishes, at, bit, ..] = choices;
    let number = |from: usize| u64::from_be_bytes(std::array::from_fn(|it| choices[from + it]));
    let address: [u8; 16] = std::array::from_fn(|it| choices[17 + it]);
    let path_bytes = usize::from(choices[33] % 64).min(input.len());
    let (path, rest) = input.split_at(path_bytes);
    let form = [Form::InQuery, Form::InPath, Form::InCookie, Form::Secure][usize::from(form % 4)];
    let now = number(5);
    let case = Case {
        form,
        fault: match fault % 8 {
            0 => Fault::None,
            1 => Fault::Bit {
                at: at.into(),
                bit: bit % 8,
            },
            2 => Fault::OtherPath,
            3 => Fault::OtherAddress,
            4 => Fault::TooLate,
            5 => Fault::TooEarly,
            6 => Fault::OtherKey,
            _ => Fault::Forged,
        },
        path: path_of(form, path),
        has_address: wishes & 1 != 0,
        has_start: wishes & 2 != 0,
        key: KEYS[usize::from(wishes & 4 != 0)],
        now,
        expires: now.saturating_add(number(13) >> 32),
        address: if wishes & 8 != 0 {
            Ipv6Addr::from(address).into()
        } else {
            Ipv4Addr::new(address[0], address[1], address[2], address[3]).into()
        },
        rest,
    };
    let is_head = wishes & 16 != 0;
    let is_encoded = wishes & 32 != 0;
    check(&case, is_head, is_encoded);
});

fn check(case: &Case<'_>, is_head: bool, is_encoded: bool) {
    let (proof, is_right) = proof(case);
    let path = match case.fault {
        Fault::OtherPath => format!("{}x", case.path),
        _ => case.path.clone(),
    };
    let target = if is_encoded {
        path.replace('a', "%61")
    } else {
        path.clone()
    };
    let (mut query, mut cookie, mut front) = (Vec::new(), Vec::new(), Vec::new());
    match case.form {
        Form::InQuery | Form::Secure => query = [case.rest, b"&", &proof].concat(),
        Form::InCookie => cookie = [case.rest, b"; ", &proof].concat(),
        Form::InPath => {
            front = [b"/", &proof[..]].concat();
            query = case.rest.to_vec();
        }
    }
    let method = if is_head { "HEAD " } else { "GET " };
    let head = [
        method.as_bytes(),
        &front,
        target.as_bytes(),
        b"?",
        &query,
        b" HTTP/1.1\r\nHost: a\r\nCookie: ",
        &cookie,
        b"\r\n\r\n",
    ]
    .concat();
    let Parsed::Complete { request, .. } = parse_request(&head) else {
        return;
    };
    let is_as_sent = request.query.unwrap_or_default() == query
        && request.cookie.unwrap_or_default() == cookie
        && request.path.as_bytes() == [&front[..], path.as_bytes()].concat();
    let (unix_seconds, source, is_right) = asked_by(case, is_right);
    let client = Client {
        source,
        is_secure: true,
        unix_seconds,
    };
    match SITES.decide(&request, &client) {
        Verdict::Serve(place) => {
            assert!(is_right, "it opened {path}");
            assert_eq!(place.path.as_deref().unwrap_or(&request.path), path);
            let is_bound = case.has_address || matches!(case.form, Form::InCookie | Form::Secure);
            assert_eq!(place.is_private, is_bound);
        }
        Verdict::Refuse(Status::Forbidden) => {
            // The first of two proofs counts.
            let is_hindered = names_a_proof(case.rest) || !is_as_sent;
            assert!(!is_right || is_hindered, "it did not open {path}");
        }
        // What stands for a token made the path hidden.
        Verdict::Refuse(Status::NotFound) => assert!(!is_right),
        Verdict::Refuse(_) | Verdict::Redirect(..) => unreachable!("no rule says so"),
    }
}

/// Who asks when, and whether the link is right for him.
fn asked_by(case: &Case<'_>, is_right: bool) -> (u64, IpAddr, bool) {
    let is_bound = case.has_address || case.form == Form::Secure;
    let has_start = case.has_start && case.form != Form::Secure;
    match case.fault {
        Fault::OtherAddress => (case.now, other(case.address), is_right && !is_bound),
        Fault::TooLate => match case.expires.checked_add(1) {
            Some(late) => (late, case.address, false),
            None => (case.expires, case.address, is_right),
        },
        Fault::TooEarly => match case.now.checked_sub(1) {
            Some(early) => (early, case.address, is_right && !has_start),
            None => (case.now, case.address, is_right),
        },
        _ => (case.now, case.address, is_right),
    }
}

/// The link's proof, with its fault, and whether it is right all the same.
fn proof(case: &Case<'_>) -> (Vec<u8>, bool) {
    let key = match case.fault {
        Fault::OtherKey => KEYS[2],
        _ => case.key,
    };
    let signed = match case.form {
        Form::Secure => secure_link(case, key),
        Form::InQuery | Form::InPath | Form::InCookie => token(case, key),
    };
    let name_bytes = signed.find('=').map_or(0, |equals| equals + 1);
    let digits_from = signed.len().saturating_sub(64);
    let mut proof = signed.into_bytes();
    let is_right = match case.fault {
        Fault::Bit { at, bit } => {
            // Parameters' names are found in any case, so the name is left as it is.
            let at = name_bytes + at % (proof.len() - name_bytes);
            let before = proof[at];
            proof[at] ^= 1 << bit;
            // So are hexadecimal digits.
            let is_digit = case.form != Form::Secure && at >= digits_from;
            let is_name = case.form == Form::Secure && at >= name_bytes + 22;
            let is_letter = before.eq_ignore_ascii_case(&proof[at]);
            is_letter && (is_digit || is_name && before.is_ascii_alphabetic())
        }
        Fault::OtherPath | Fault::OtherKey => false,
        Fault::Forged => {
            proof.truncate(name_bytes);
            proof.extend(case.rest);
            false
        }
        Fault::None | Fault::OtherAddress | Fault::TooLate | Fault::TooEarly => true,
    };
    (proof, is_right)
}

fn token(case: &Case<'_>, key: &[u8]) -> String {
    let mut fields = format!("exp={}~acl={}", case.expires, case.path);
    if case.has_start {
        fields = format!("st={}~{fields}", case.now);
    }
    if case.has_address {
        fields = format!("{fields}~ip={}", case.address);
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let digest = hmac::sign(&key, fields.as_bytes());
    let digits: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("hdnts={fields}~hmac={digits}")
}

fn secure_link(case: &Case<'_>, key: &[u8]) -> String {
    let text = format!("{}{}{} ", case.expires, case.path, case.address);
    let hash = Md5::new().chain_update(text).chain_update(key).finalize();
    format!("md5={}&expires={}", base64url(&hash), case.expires)
}

/// RFC 4648 s5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let part = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = part(0) << 16 | part(1) << 8 | part(2);
        for digit in 0..=three.len() {
            let six = bits >> (18 - 6 * digit) & 63;
            text.push(char::from(ALPHABET[six as usize]));
        }
    }
    text
}

fn other(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() ^ 1).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() ^ 1).into(),
    }
}

/// A path without parts that are empty, relative or hidden.
fn path_of(form: Form, bytes: &[u8]) -> String {
    let mut path = String::from(if form == Form::Secure { "/s/" } else { "/t/" });
    for &byte in bytes {
        let next = char::from(PATH_BYTES[usize::from(byte) % PATH_BYTES.len()]);
        let begins = path.ends_with('/');
        path.push(if begins && matches!(next, '/' | '.') {
            'a'
        } else {
            next
        });
    }
    path
}

fn names_a_proof(text: &[u8]) -> bool {
    let is_there = |name: &&[u8]| {
        let mut places = text.windows(name.len());
        places.any(|place| place.eq_ignore_ascii_case(name))
    };
    NAMES.iter().any(is_there)
}
