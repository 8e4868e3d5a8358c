//! Links of all forms, right ones and every way they may be wrong.

use hmac::{Hmac, Mac as _};
use md5::{Digest as _, Md5};
use proptest::prelude::*;
use sha2::Sha256;

use super::*;

const NOW: u64 = 1_764_155_000;
const KEY: &[u8] = b"a key of the operator's";

fn key(bytes: &[u8]) -> LinkKey {
    LinkKey::new(bytes).unwrap()
}

fn token(fields: &str, key: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    let digest = mac.chain_update(fields).finalize().into_bytes();
    format!("{fields}~hmac={digest:x}")
}

fn asked(path: &str) -> Asked<'_> {
    Asked {
        path,
        path_token: None,
        query: b"",
        cookie: b"",
        source: "192.0.2.7".parse().unwrap(),
        unix_seconds: NOW,
    }
}

fn tokens() -> Links {
    let keys = vec![key(b"another key"), key(KEY)];
    Links::new(LinkForm::Token("hdnts".into()), keys)
}

fn secure_links() -> Links {
    let form = LinkForm::SecureLink {
        hash_name: "md5".into(),
        expires_name: "expires".into(),
        expression: Expression::parse("$secure_link_expires$uri$remote_addr $key").unwrap(),
    };
    Links::new(form, vec![key(b"new"), key(KEY)])
}

fn allows(path: &str, token: &str) -> bool {
    let query = format!("a=b&hdnts={token}&c=d");
    let query = query.as_bytes();
    let asked = Asked {
        query,
        ..asked(path)
    };
    tokens().audience(&asked).is_some()
}

#[test]
fn a_token_is_for_paths_times_and_a_client() {
    for (fields, path, is_allowed) in [
        (format!("exp={NOW}~acl=/vod/*"), "/vod/a/b.m4s", true),
        (format!("exp={}~acl=/vod/*", NOW - 1), "/vod/a", false),
        (format!("st={NOW}~exp={NOW}~acl=/vod/*"), "/vod/a", true),
        (
            format!("st={}~exp={}~acl=/*", NOW + 1, NOW + 9),
            "/vod/a",
            false,
        ),
        (format!("exp={NOW}~acl=/vod/*"), "/live/a", false),
        (format!("exp={NOW}~acl=/vod/*"), "/vod", false),
        (format!("exp={NOW}~acl=/live/*!/vod/a"), "/vod/a", true),
        (format!("ip=192.0.2.7~exp={NOW}~acl=/*"), "/a", true),
        (format!("ip=192.0.2.8~exp={NOW}~acl=/*"), "/a", false),
        (format!("exp={NOW}~acl=/*~id=viewer~data=x=y"), "/a", true),
        (format!("exp={NOW}"), "/a", false),
        ("acl=/*".into(), "/a", false),
        (format!("exp={NOW}~exp={}~acl=/*", NOW + 9), "/a", false),
        (format!("exp=+{NOW}~acl=/*"), "/a", false),
        (format!("exp={NOW}~acl=/*~url=/a"), "/a", false),
        (format!("exp={NOW}~acl=/*~x"), "/a", false),
    ] {
        assert_eq!(
            allows(path, &token(&fields, KEY)),
            is_allowed,
            "{fields} {path}"
        );
    }
}

#[test]
fn a_token_of_no_key_of_ours_opens_nothing() {
    let fields = format!("exp={NOW}~acl=/*");
    assert!(allows("/a", &token(&fields, KEY)));
    assert!(allows("/a", &token(&fields, b"another key")));
    assert!(!allows("/a", &token(&fields, b"a key of somebody's")));
    for wrong in [
        "",
        "~hmac=",
        &fields,
        &format!("{fields}~hmac="),
        &format!("{fields}~hmac=00"),
    ] {
        assert!(!allows("/a", wrong), "{wrong}");
    }
    let reordered = token(&fields, KEY).replace(&fields, &format!("acl=/*~exp={NOW}"));
    assert!(!allows("/a", &reordered));
}

#[test]
fn a_token_may_be_encoded_before_it_is_signed_or_after_and_once() {
    let plain = token(&format!("exp={NOW}~acl=/vod/*"), KEY);
    let encode = |text: &str| {
        text.replace('~', "%7E")
            .replace('/', "%2f")
            .replace('*', "%2A")
    };
    let after = encode(&plain);
    assert!(allows("/vod/a", &after));
    assert!(allows(
        "/vod/a",
        &token(&format!("exp={NOW}~acl=%2fvod%2f*"), KEY)
    ));
    assert!(!allows("/vod/a", &after.replace('%', "%25")));
    assert!(!allows("/vod/a", &format!("{plain}%")));
}

#[test]
fn a_token_is_found_in_the_path_the_query_and_the_cookie() {
    let token = token(&format!("exp={NOW}~acl=/vod/*"), KEY);
    let whole = format!("/hdnts={token}/vod/a");
    let (in_path, rest) = split_path(&whole, "hdnts").unwrap();
    assert_eq!((in_path, rest), (token.as_str(), "/vod/a"));
    let cookie = format!("a=b; hdnts={token}; c=d");
    let (old, query) = ("hdnts=exp=1~acl=/*~hmac=00", format!("hdnts={token}"));
    let asked = asked("/vod/a");
    for (path_token, query, cookie, is_allowed) in [
        (Some(token.as_str()), "", "", true),
        (None, query.as_str(), "", true),
        (None, "", cookie.as_str(), true),
        // A player goes on with a link that has expired, and has a new cookie.
        (Some("x"), old, cookie.as_str(), true),
        (None, "", "", false),
        (None, "xhdnts=1", "hdnts", false),
    ] {
        let (query, cookie) = (query.as_bytes(), cookie.as_bytes());
        let asked = Asked {
            path_token,
            query,
            cookie,
            ..asked
        };
        assert_eq!(tokens().audience(&asked).is_some(), is_allowed, "{asked:?}");
    }
    for other in [
        "/vod/a",
        "/hdnts=x/vod/a",
        "/xhdnts=1/a",
        &format!("/hdnts={token}"),
        "",
    ] {
        assert_eq!(split_path(other, "hdnts"), None, "{other}");
    }
}

#[test]
fn what_a_cookie_or_an_address_opened_is_for_that_client_only() {
    let anybodys = token(&format!("exp={NOW}~acl=/*"), KEY);
    let clients = token(&format!("ip=192.0.2.7~exp={NOW}~acl=/*"), KEY);
    let in_query = |token: &str| format!("hdnts={token}").into_bytes();
    let (open, bound) = (in_query(&anybodys), in_query(&clients));
    for (path_token, query, cookie, audience) in [
        (None, &open[..], &b""[..], Audience::Url),
        (Some(anybodys.as_str()), b"", b"", Audience::Url),
        (None, b"", &open, Audience::Client),
        // The URL alone would have opened it.
        (None, &open, &open, Audience::Url),
        (None, b"hdnts=x", &open, Audience::Client),
        (None, &bound, b"", Audience::Client),
        (Some(clients.as_str()), b"", b"", Audience::Client),
    ] {
        let asked = Asked {
            path_token,
            query,
            cookie,
            ..asked("/a")
        };
        assert_eq!(tokens().audience(&asked), Some(audience), "{asked:?}");
    }
    for (text, audience) in [
        ("$key$uri", Audience::Url),
        ("$key$uri$remote_addr", Audience::Client),
    ] {
        let hash = Md5::digest(
            text.replace("$key", "k")
                .replace("$uri", "/a")
                .replace("$remote_addr", "192.0.2.7"),
        );
        let hash = secure_link::base64url(hash.into());
        let expression = Expression::parse(text).unwrap();
        let found = expression.audience(&hash, b"", &[key(b"k")], &asked("/a"));
        assert_eq!(found, Some(audience), "{text}");
    }
}

/// A clock that is set back opens what has not begun before, and one that is set on closes what is over: each request
/// is judged by the time it has, and nothing of an earlier one.
#[test]
fn a_clock_that_steps_is_believed() {
    let token = token(&format!("st={NOW}~exp={}~acl=/*", NOW + 10), KEY);
    let (links, query) = (tokens(), format!("hdnts={token}"));
    for (unix_seconds, is_allowed) in [
        (NOW - 1, false),
        (NOW, true),
        (NOW + 10, true),
        (NOW + 11, false),
        (NOW + 5, true),
        (0, false),
        (u64::MAX, false),
        (NOW, true),
    ] {
        let asked = Asked {
            query: query.as_bytes(),
            unix_seconds,
            ..asked("/a")
        };
        assert_eq!(
            links.audience(&asked).is_some(),
            is_allowed,
            "{unix_seconds}"
        );
    }
}

/// `verify_slice` of the crate `hmac` and `ct_eq` of `subtle` compare all of a digest. That all of it is given to them
/// shows in that each wrong digit closes the link, and so does each one too few or too many.
#[test]
fn every_digit_of_a_digest_counts() {
    let right = token(&format!("exp={NOW}~acl=/*"), KEY);
    assert!(allows("/a", &right));
    for at in right.len() - 64..right.len() {
        for digit in "0123456789abcdef".chars() {
            let mut wrong = right.clone();
            wrong.replace_range(at..=at, &digit.to_string());
            assert_eq!(allows("/a", &wrong), wrong == right, "{wrong}");
        }
        assert!(!allows("/a", &right[..at]), "{at}");
    }
    assert!(!allows("/a", &format!("{right}0")) && !allows("/a", &format!("{right}00")));
    let expression = Expression::parse("$key$uri").unwrap();
    let opens = |hash: &[u8]| {
        let audience = expression.audience(hash, b"", &[key(b"k")], &asked("/a"));
        audience.is_some()
    };
    let right = secure_link::base64url(Md5::digest("k/a").into());
    assert!(opens(&right));
    for at in 0..right.len() {
        for bit in 0..8 {
            let mut wrong = right;
            wrong[at] ^= 1 << bit;
            assert!(!opens(&wrong), "{at} {bit}");
        }
        assert!(!opens(&right[..at]), "{at}");
    }
    assert!(!opens(&[&right[..], b"A"].concat()));
}

/// `echo -n '2147483647/s/link127.0.0.1 secret' | openssl md5 -binary | openssl base64 | tr +/ -_ | tr -d =`, the
/// example of nginx's documentation.
#[test]
fn a_secure_link_is_that_of_nginx() {
    let expression = Expression::parse("$secure_link_expires$uri$remote_addr $key").unwrap();
    let form = LinkForm::SecureLink {
        hash_name: "md5".into(),
        expires_name: "expires".into(),
        expression,
    };
    let links = Links::new(form, vec![key(b"new"), key(b"secret")]);
    let allows = |path, query: &str, source: &str, unix_seconds| {
        let asked = Asked {
            query: query.as_bytes(),
            source: source.parse().unwrap(),
            unix_seconds,
            ..asked(path)
        };
        links.audience(&asked).is_some()
    };
    let right = "md5=_e4Nc3iduzkWRm01TBBNYw&expires=2147483647";
    let (last, here) = (2_147_483_647, "127.0.0.1");
    assert!(allows("/s/link", right, here, last));
    assert!(!allows("/s/link", right, here, last + 1));
    assert!(!allows("/s/other", right, here, NOW));
    assert!(!allows("/s/link", right, "127.0.0.2", NOW));
    assert!(!allows("/s/link", &right.replace("647", "648"), here, NOW));
    assert!(!allows("/s/link", &right.replace("_e4", "_e5"), here, NOW));
    assert!(!allows("/s/link", "", here, NOW));
    for (query, is_allowed) in [
        // Names in any case, and the first of two.
        ("MD5=_e4Nc3iduzkWRm01TBBNYw&Expires=2147483647", true),
        ("md5=x&MD5=_e4Nc3iduzkWRm01TBBNYw&expires=2147483647", false),
        ("amd5=_e4Nc3iduzkWRm01TBBNYw&expires=2147483647", false),
        ("md5x=_e4Nc3iduzkWRm01TBBNYw&expires=2147483647", false),
        ("md5&expires=2147483647", false),
        // Padding of up to two, and nothing behind it.
        ("md5=_e4Nc3iduzkWRm01TBBNYw=&expires=2147483647", true),
        ("md5=_e4Nc3iduzkWRm01TBBNYw==&expires=2147483647", true),
        ("md5=_e4Nc3iduzkWRm01TBBNYw%3D%3D&expires=2147483647", true),
        ("md5=_e4Nc3iduzkWRm01TBBNYw===&expires=2147483647", false),
        ("md5=_e4Nc3iduzkWRm01TBBNYw==a&expires=2147483647", false),
        ("md5=_e5Nc3iduzkWRm01TBBNYw==&expires=2147483647", false),
        ("md5=_e4Nc3iduzkWRm01TBBNY==&expires=2147483647", false),
        ("md5===&expires=2147483647", false),
        // The hash has letters of two cases.
        ("md5=_E4Nc3iduzkWRm01TBBNYw&expires=2147483647", false),
    ] {
        assert_eq!(allows("/s/link", query, here, NOW), is_allowed, "{query}");
    }
}

#[test]
fn an_expression_has_the_path_and_the_key() {
    assert!(Expression::parse("$key$uri").is_ok());
    for (text, problem) in [
        ("", ExpressionProblem::Missing),
        ("$uri secret", ExpressionProblem::Missing),
        ("$key$remote_addr", ExpressionProblem::Missing),
        ("$key$uri$arg_x", ExpressionProblem::Variable),
        ("$key$uri$", ExpressionProblem::Variable),
        (&"$key$uri".repeat(9), ExpressionProblem::TooLong),
    ] {
        assert_eq!(Expression::parse(text), Err(problem), "{text}");
    }
}

#[test]
fn keys_have_a_length() {
    assert!(LinkKey::new(b"").is_none());
    assert!(LinkKey::new(&[1; KEY_BYTES_MAX]).is_some());
    assert!(LinkKey::new(&[1; KEY_BYTES_MAX + 1]).is_none());
    assert_eq!(LinkKey::from_hex("00fF"), LinkKey::new(&[0, 255]));
    for wrong in ["", "0", "0g", "é"] {
        assert_eq!(LinkKey::from_hex(wrong), None, "{wrong}");
    }
}

proptest! {
    #[test]
    fn changed_tokens_are_refused(at in 0_usize..100, bit in 0_u32..8) {
        let right = token(&format!("exp={NOW}~acl=/*"), KEY);
        let mut bytes = right.clone().into_bytes();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        // Digits of a digest have two cases.
        let is_same = bytes.eq_ignore_ascii_case(right.as_bytes()) && at > right.len() - 65;
        let asked = Asked { path_token: None, ..asked("/a") };
        prop_assert_eq!(token::audience(&bytes, &[key(KEY)], &asked).is_some(), is_same);
    }

    #[test]
    fn what_a_signer_may_have_signed_panics_nowhere(
        fields in "((exp|st|acl|ip|id|url)?=?[0-9a-f/:.*?!%]{0,12}~?){0,5}",
        path in "/[a-f/]{0,12}",
    ) {
        let token = token(&fields, KEY);
        let is_for_now = fields.contains("exp=") && fields.contains("acl=");
        let audience = token::audience(token.as_bytes(), &[key(KEY)], &asked(&path));
        prop_assert!(is_for_now || audience.is_none());
    }

    #[test]
    fn a_link_is_for_its_path_time_and_address_in_every_place(
        place in 0..4,
        path in "/[a-z0-9/.]{0,20}",
        source: [u8; 16],
        is_v6: bool,
        now: u64,
        seconds in 0_u64..1 << 32,
        at: usize,
        bit in 0_u32..8,
    ) {
        let source = if is_v6 {
            IpAddr::from(source)
        } else {
            IpAddr::from([source[0], source[1], source[2], source[3]])
        };
        let expires = now.saturating_add(seconds);
        let (links, proof) = if place == 3 {
            let hash = Md5::new().chain_update(format!("{expires}{path}{source} ")).chain_update(KEY);
            let hash = secure_link::base64url(hash.finalize().into());
            (secure_links(), [&hash[..], format!("&expires={expires}").as_bytes()].concat())
        } else {
            let fields = format!("exp={expires}~acl={path}~ip={source}");
            (tokens(), token(&fields, KEY).into_bytes())
        };
        let opens = |proof: &[u8], change: &dyn Fn(&mut Asked<'_>)| {
            let name: &[u8] = if place == 3 { b"md5=" } else { b"hdnts=" };
            let named = [name, proof].concat();
            let mut asked = Asked { source, unix_seconds: now, ..asked(&path) };
            match place {
                1 => asked.path_token = std::str::from_utf8(proof).ok(),
                2 => asked.cookie = &named,
                _ => asked.query = &named,
            }
            change(&mut asked);
            links.audience(&asked).is_some()
        };
        prop_assert!(opens(&proof, &|_| ()));
        prop_assert!(!opens(&proof, &|asked| asked.path = "/another/path/longer than any"));
        let other_source = IpAddr::from([192, 0, 2, u8::from(source == IpAddr::from([192, 0, 2, 0]))]);
        prop_assert!(!opens(&proof, &|asked| asked.source = other_source));
        if let Some(late) = expires.checked_add(1) {
            prop_assert!(!opens(&proof, &|asked| asked.unix_seconds = late));
        }
        let mut changed = proof.clone();
        let at = at % proof.len();
        changed[at] ^= 1 << bit;
        // Digits of a token's digest, and names of parameters, have two cases.
        let is_same = changed.eq_ignore_ascii_case(&proof)
            && if place == 3 { at >= 22 } else { at >= proof.len() - 64 };
        prop_assert_eq!(opens(&changed, &|_| ()), is_same);
    }

    #[test]
    fn no_bytes_panic(query in ".{0,60}", cookie in ".{0,60}", path in "/.{0,60}") {
        let asked = Asked { query: query.as_bytes(), cookie: cookie.as_bytes(), ..asked(&path) };
        prop_assert!(tokens().audience(&asked).is_none());
        prop_assert!(split_path(&path, "hdnts").is_none());
    }
}
