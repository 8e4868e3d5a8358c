use std::net::IpAddr;
use std::path::Path;

use http::{Parsed, parse_request};
use sites::{Client, LastRule, Verdict};

use super::super::tests::with_file;
use super::*;

const TLS: &str = "https = 443\ncertificate = [{ cert = \"c\", key = \"k\" }]\n";
const CLIENT: Client = Client {
    source: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
    is_secure: false,
    unix_seconds: 1_764_155_000,
};

fn sites(text: &str) -> Sites {
    let settings = with_file(text).unwrap();
    let key = |_: &LinkSettings| Ok(vec![LinkKey::new(b"secret").unwrap()]);
    compile(&settings, &directories(&settings), key).unwrap()
}

/// What is done with a request, and what a reply to it would say.
fn ask<'a>(sites: &'a Sites, url: &str) -> (Verdict, &'a ReplyConfig) {
    ask_as(sites, url, &CLIENT)
}

fn ask_as<'a>(sites: &'a Sites, url: &str, client: &Client) -> (Verdict, &'a ReplyConfig) {
    let head = format!("GET {url} HTTP/1.1\r\nHost: other\r\n\r\n");
    let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
        panic!("{head}");
    };
    (sites.decide(&request, client), sites.replies(&request))
}

fn serve(path: Option<&str>) -> Verdict {
    Verdict::Serve(sites::Place {
        path: path.map(str::to_owned),
        ..sites::Place::default()
    })
}

fn fields(sites: &Sites, url: &str) -> String {
    let (_, replies) = ask(sites, url);
    format!("{:?}", replies.extra_fields)
}

#[test]
fn what_a_rule_says_is_laid_over_the_sites_and_that_over_the_servers() {
    let sites = sites(
        "header = [\"X-A: server\", \"X-B: server\", \"X-C: server\"]\ncors = true\n\
         [[site]]\nnames = [\"a.example\"]\nheader = [\"x-a: site\"]\nremove_header = [\"X-B\"]\n\
         cache_control = false\n\
         [[site.rule]]\npaths = [\"*.m3u8\"]\nheader = [\"X-A: rule\"]\n\
         cors = [\"https://p.example\"]\ncredentials = true\n",
    );
    let of_site = fields(&sites, "http://a.example/x");
    assert!(
        of_site.contains("x-a: site") && of_site.contains("X-C: server"),
        "{of_site}"
    );
    assert!(
        !of_site.contains("X-B") && !of_site.contains("X-A: server"),
        "{of_site}"
    );
    let of_rule = fields(&sites, "http://a.example/b/x.m3u8");
    assert!(
        of_rule.contains("X-A: rule") && of_rule.contains("X-C: server"),
        "{of_rule}"
    );
    assert!(!of_rule.contains("site"), "{of_rule}");
    let (_, replies) = ask(&sites, "http://a.example/x.m3u8");
    assert!(matches!(replies.cors, Cors::Origins(_)) && !replies.cache_control);
    let (verdict, replies) = ask(&sites, "/x");
    assert_eq!(verdict, Verdict::Refuse(Status::MisdirectedRequest));
    assert_eq!(replies.cors, Cors::AnyOrigin);
}

#[test]
fn directories_beside_path_have_numbers_and_those_of_the_start_only() {
    let text = "[[site]]\nnames = [\"a.example\"]\ndirectory = \"/srv/z\"\nroot = \"/a\"\n\
                [[site.rule]]\npaths = [\"/old/**\"]\ndirectory = \"/srv/b\"\n\
                [[site.rule]]\npaths = [\"/new/**\"]\nroot = \"/n\"\n\
                [[site]]\nroot = \"/path\"\n";
    let sites = sites(text);
    let of = |directory, path: Option<&str>| {
        let path = path.map(str::to_owned);
        Verdict::Serve(sites::Place {
            directory,
            path,
            ..sites::Place::default()
        })
    };
    for (url, verdict) in [
        ("http://a.example/x", of(2, Some("/a/x"))),
        ("http://a.example/old/x", of(1, None)),
        ("http://a.example/new/x", of(2, Some("/n/new/x"))),
        ("/x", of(0, Some("/path/x"))),
    ] {
        assert_eq!(ask(&sites, url).0, verdict, "{url}");
    }
    let settings = with_file(text).unwrap();
    let opened = directories(&settings);
    assert_eq!(opened, [Path::new("/srv/b"), Path::new("/srv/z")]);
    let key = |_: &LinkSettings| Ok(vec![LinkKey::new(b"secret").unwrap()]);
    let refusal = compile(&settings, &opened[..1], key)
        .unwrap_err()
        .to_string();
    assert!(
        refusal.contains("directory /srv/z: not one of those"),
        "{refusal}"
    );
    let relative = with_file("[[site]]\ndirectory = \"z\"\n").unwrap_err();
    assert!(
        relative
            .to_string()
            .contains("directory z: not an absolute path")
    );
    for (count, is_right) in [(DIRECTORIES_MAX, true), (DIRECTORIES_MAX + 1, false)] {
        let site = |n| format!("[[site]]\nnames = [\"{n}.example\"]\ndirectory = \"/{n}\"\n");
        let text: String = (0..count).map(site).collect();
        assert_eq!(with_file(&text).is_ok(), is_right);
    }
}

#[test]
fn codings_rates_and_bodies_of_errors_are_the_sites_and_the_rules() {
    let sites = sites(
        "[[site]]\nroot = \"/r\"\nprecompressed = [\"zstd\", \"br\"]\n\
         error_pages = { 404 = \"/404.html\", \"403\" = \"/no/403.html\" }\n\
         [[site.rule]]\npaths = [\"/a/**\"]\nprecompressed = []\nrate = \"80kbit/s\"\nrate_after = \"1KiB\"\n",
    );
    let head = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    for (path, codings, rate) in [
        ("/x", &[Coding::Zstandard, Coding::Brotli][..], None),
        ("/a/x", &[], Some((10_000, 1024))),
    ] {
        let head = head(path);
        let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
            panic!("{head}");
        };
        let rule = sites.find(&request, &mut LastRule::default()).rule;
        assert_eq!(rule.replies.precompressed, codings);
        let found = rule
            .rate
            .map(|rate| (rate.bytes_per_second, rate.after_bytes));
        assert_eq!(found, rate);
        let page = |status| {
            let page = sites.error_page(&request, status)?;
            page.path.clone()
        };
        assert_eq!(page(Status::NotFound).as_deref(), Some("/r/404.html"));
        assert_eq!(page(Status::Forbidden).as_deref(), Some("/r/no/403.html"));
        assert_eq!(page(Status::Gone), None);
    }
}

#[test]
fn a_site_without_names_answers_what_names_no_other() {
    let both = sites(
        "[[site]]\n[[site]]\nnames = [\"a.example\"]\n[[site.rule]]\npaths = [\"/**\"]\nstatus = 410\n",
    );
    assert_eq!(ask(&both, "/x").0, serve(None));
    assert_eq!(
        ask(&both, "http://a.example/x").0,
        Verdict::Refuse(Status::Gone)
    );
    let refused = with_file("[[site]]\n[[site]]\n").unwrap_err();
    assert!(
        refused.starts_with("atlas.toml: site 2: a second site without names"),
        "{refused}"
    );
}

#[test]
fn a_site_is_sent_to_https_at_its_port() {
    for (port, location) in [(443, "https://a/x"), (8443, "https://a:8443/x")] {
        let tls = TLS.replace("443", &port.to_string());
        let sites = sites(&format!("{tls}[[site]]\nredirect_to_https = true\n"));
        let redirect = Verdict::Redirect(Status::MovedPermanently, location.into());
        assert_eq!(ask(&sites, "http://a/x").0, redirect);
    }
    let refused = with_file("[[site]]\nredirect_to_https = true\n").unwrap_err();
    assert!(refused.contains("https is off"), "{refused}");
}

#[test]
fn a_rule_redirects_refuses_and_lets_networks_in() {
    let rule = |keys: &str| {
        sites(&format!(
            "[[site]]\n[[site.rule]]\npaths = [\"/**\"]\n{keys}\n"
        ))
    };
    let verdict = |keys: &str| ask(&rule(keys), "/x").0;
    let forbidden = Verdict::Refuse(Status::Forbidden);
    assert_eq!(verdict("allow = [\"192.0.2.0/24\"]"), serve(None));
    assert_eq!(verdict("allow = [\"192.0.3.0/24\"]"), forbidden);
    assert_eq!(verdict("deny = [\"192.0.2.7\"]"), forbidden);
    assert_eq!(verdict("status = 404"), Verdict::Refuse(Status::NotFound));
    assert_eq!(
        verdict("redirect = \"/y\""),
        Verdict::Redirect(Status::Found, "/y".into())
    );
    assert_eq!(
        verdict("redirect = \"/new/$1\""),
        Verdict::Redirect(Status::Found, "/new/x".into())
    );
    assert_eq!(
        verdict("redirect = \"https://b$request_uri\"\nstatus = 308"),
        Verdict::Redirect(Status::PermanentRedirect, "https://b/x".into())
    );
    assert_eq!(verdict("link = { keys = \"f\" }"), forbidden);
}

#[test]
fn paths_are_looked_up_in_the_sites_folder_or_the_rules() {
    let sites = sites(
        "[[site]]\nnames = [\"a\"]\nroot = \"/a.example\"\n\
         [[site.rule]]\npaths = [\"/shows/**\"]\nroot = \"/archive\"\nstrip_prefix = \"/shows\"\n\
         [[site.rule]]\npaths = [\"/x/**\"]\n[[site]]\n",
    );
    for (url, looked_up) in [
        ("http://a/", Some("/a.example/")),
        ("http://a/b", Some("/a.example/b")),
        ("http://a/x/b", Some("/a.example/x/b")),
        ("http://a/shows/b", Some("/archive/b")),
        ("http://b/shows/b", None),
    ] {
        let verdict = serve(looked_up);
        assert_eq!(ask(&sites, url).0, verdict, "{url}");
    }
    let refused = with_file("[[site]]\nroot = \"a/../b\"\n").unwrap_err();
    assert!(
        refused.starts_with("atlas.toml: site 1: root \"a/../b\": not an absolute path"),
        "{refused}"
    );
}

#[test]
fn a_sites_bandwidth_is_for_all_of_it_but_for_rules_with_their_own() {
    let sites = sites(
        "[[site]]\nnames = [\"a\"]\nbandwidth = \"2Gbit/s\"\n\
         [[site.rule]]\npaths = [\"/own/**\"]\nbandwidth = 10_000\n\
         [[site.rule]]\npaths = [\"/sites/**\"]\n[[site]]\n",
    );
    let bandwidth = |url: &str| {
        let head = format!("GET {url} HTTP/1.1\r\nHost: h\r\n\r\n");
        let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
            panic!("{head}");
        };
        let found = sites.find(&request, &mut LastRule::default());
        found.rule.bandwidth.clone()
    };
    let of_site = bandwidth("http://a/x").unwrap();
    assert_eq!(of_site, Bandwidth::new(250_000_000));
    assert!(bandwidth("http://a/sites/x").unwrap().is_same(&of_site));
    assert_eq!(bandwidth("http://a/own/x"), Some(Bandwidth::new(10_000)));
    assert_eq!(bandwidth("http://b/x"), None);
}

/// The block of TOML of a page with this number, resolved.
fn example_of(page: &str, number: usize) -> Sites {
    let block = page.split("```toml\n").nth(number).unwrap();
    sites(block.split("```").next().unwrap())
}

#[test]
fn the_examples_of_the_documents_do_what_is_said_of_them() {
    let page = include_str!("../../../../../docs/run/sites.md");
    let example = example_of(page, 1);
    let moved = |status, to: &str| Verdict::Redirect(status, to.into());
    let secure = Client {
        is_secure: true,
        ..CLIENT
    };
    for (url, verdict) in [
        ("http://a.video.example/x", serve(Some("/video.example/x"))),
        (
            "http://video.example/films/x",
            Verdict::Refuse(Status::Forbidden),
        ),
        (
            "http://video.example/shows/x",
            moved(Status::MovedPermanently, "https://archive.example/series/x"),
        ),
        (
            "http://video.example/raw/x",
            serve(Some("/video.example/raw/x")),
        ),
        (
            "http://other.example/x",
            Verdict::Refuse(Status::MisdirectedRequest),
        ),
    ] {
        assert_eq!(ask_as(&example, url, &secure).0, verdict, "{url}");
    }
    assert!(format!("{:?}", example_of(page, 2)).contains("connections: Some(4)"));
    let one = example_of(page, 4);
    for (path, codings, rate) in [
        ("/vod/7/1.m4s", 0, Some((2_000_000, 20_000_000))),
        ("/vod/7/index.m3u8", 2, None),
        ("/live/1.m4s", 0, None),
    ] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
            panic!("{head}");
        };
        let rule = one.find(&request, &mut LastRule::default()).rule;
        let found = rule
            .rate
            .map(|rate| (rate.bytes_per_second, rate.after_bytes));
        assert_eq!((rule.replies.precompressed.len(), found), (codings, rate));
        let page = one.error_page(&request, Status::NotFound).unwrap();
        assert_eq!(page.path.as_deref(), Some("/errors/404.html"));
    }
    let many = example_of(page, 5);
    let beside = |directory, path: &str| {
        Verdict::Serve(sites::Place {
            directory,
            path: (!path.is_empty()).then(|| path.to_owned()),
            ..sites::Place::default()
        })
    };
    for (url, verdict) in [
        ("http://www.a.example/x", beside(0, "/a.example/x")),
        ("http://x.b.example/x", beside(2, "")),
        ("http://b.example/2019/x", beside(1, "/x")),
        ("http://c.example/x", Verdict::Refuse(Status::NotFound)),
    ] {
        assert_eq!(ask_as(&many, url, &secure).0, verdict, "{url}");
    }
    assert!(many.awaits_preface([10, 0, 0, 7].into()));
    let example = example_of(include_str!("../../../../../docs/run/from-nginx.md"), 1);
    for (url, verdict) in [
        (
            "http://video.example/x",
            moved(Status::MovedPermanently, "https://video.example/x"),
        ),
        (
            "http://old.example/x?y",
            moved(Status::Found, "https://video.example/archive/x?y"),
        ),
        ("http://192.0.2.1/x", serve(Some("/public/x"))),
        ("http://192.0.2.1/raw/x", serve(Some("/public/raw/x"))),
    ] {
        assert_eq!(ask(&example, url).0, verdict, "{url}");
    }
    let films = ask_as(&example, "http://video.example/films/x", &secure).0;
    assert_eq!(films, Verdict::Refuse(Status::Forbidden));
    assert!(fields(&example, "http://video.example/x.m3u8").contains("Cache-Control: max-age=1"));
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (keys, message) in [
        ("", "paths: there are none"),
        ("paths = [\"/[a\"]", "write globs, like"),
        (
            "paths = [\"/a/*\"]\nredirect = \"https://$1\"",
            "would be a part of the host",
        ),
        (
            "paths = [\"/a/*\", \"/b\"]\nredirect = \"/$1\"",
            "\"/b\" has 0 wildcards",
        ),
        (
            "paths = [\"/a\"]\nbandwidth = 9_999",
            "bandwidth 9999: no rate, or out of range",
        ),
        (
            "paths = [\"/a\"]\nbandwidth = \"2G\"",
            "bandwidth 2G: no rate, or out of range",
        ),
        (
            "paths = [\"/a\"]\nstatus = 200",
            "status 200; use 403, 404 or 410",
        ),
        ("paths = [\"/a\"]\nredirect = \"b.example\"", "not a URI"),
        (
            "paths = [\"/a\"]\nredirect = \"/b\"\nstatus = 404",
            "not a status of a redirect",
        ),
        ("paths = [\"/a\"]\nallow = []", "allow: 0 networks"),
        (
            "paths = [\"/a\"]\nrate = 9_999",
            "rate or rate_after: no rate and size",
        ),
        (
            "paths = [\"/a\"]\nrate = 100_000_000_001",
            "rate or rate_after: no rate and size",
        ),
        (
            "paths = [\"/a\"]\nrate_after = 1",
            "rate_after without rate",
        ),
        (
            "paths = [\"/a\"]\nprecompressed = [\"br\", \"br\"]",
            "precompressed \"br\": unknown, or named twice",
        ),
        (
            "paths = [\"/a\"]\ncors = [\"a.example\"]",
            "cors: \"a.example\" is not an origin;",
        ),
        (
            "paths = [\"/a\"]\ncors = [\"https://b.example\", \"https://a.example/\"]",
            "cors: \"https://a.example/\" is not an origin, since it ends in a slash",
        ),
        (
            "paths = [\"/a\"]\ncors = true\ncredentials = true",
            "credentials for pages of any origin",
        ),
        (
            "paths = [\"/a\"]\nheader = [\"Date: x\"]",
            "the server writes this field itself",
        ),
        ("paths = [\"/a\"]\nlink = {}", "link: keys is missing"),
        (
            "paths = [\"/a\"]\nlink = { keys = \"f\", form = \"x\" }",
            "link.form \"x\": unknown",
        ),
        (
            "paths = [\"/a\"]\nlink = { keys = \"f\", name = \"a=b\" }",
            "link.name \"a=b\": no name",
        ),
        (
            "paths = [\"/a\"]\nlink = { keys = \"f\", expression = \"x\" }",
            "link.expression means nothing",
        ),
        (
            "paths = [\"/a\"]\nlink = { keys = \"f\", form = \"secure_link\", expression = \"$uri\" }",
            "$uri or $key is missing",
        ),
    ] {
        let text = format!(
            "[[site]]\nnames = [\"a\"]\n[[site]]\n[[site.rule]]\npaths=[\"/x\"]\n[[site.rule]]\n{keys}\n"
        );
        let refused = with_file(&text).unwrap_err();
        assert!(refused.starts_with("atlas.toml: site 2"), "{refused}");
        assert!(refused.contains(message), "{keys}: {refused}");
    }
    for pages in [
        "{ 502 = \"/a\" }",
        "{ 404 = \"a\" }",
        "{ 404 = \"\" }",
        "{ 404 = \"/a/../b\" }",
    ] {
        let refused = with_file(&format!("[[site]]\nerror_pages = {pages}\n")).unwrap_err();
        assert!(refused.contains("site 1: error_pages"), "{refused}");
    }
    let twice = "[[site]]\nnames = [\"a\"]\n[[site]]\nnames = [\"b\", \"A\"]\n";
    let refused = with_file(twice).unwrap_err();
    assert!(
        refused.starts_with("atlas.toml: site 2: names: \"A\": two sites have this name"),
        "{refused}"
    );
    for (name, problem) in [
        (
            "a:80",
            "names: \"a:80\": a name and a port, and names have none; write it without",
        ),
        (
            "::1",
            "names: \"::1\": an IPv6 address without brackets; write an IPv6 address in",
        ),
        (
            "a b",
            "names: \"a b\": not the name of a host; write it like \"video.example\"",
        ),
    ] {
        let refused = with_file(&format!("[[site]]\nnames = [\"{name}\"]\n")).unwrap_err();
        let expected = format!("atlas.toml: site 1: {problem}");
        assert!(refused.starts_with(&expected), "{refused}");
    }
}

#[test]
fn a_file_of_keys_has_one_in_each_line() {
    let settings = |form: &str| {
        let text = format!(
            "[[site]]\n[[site.rule]]\npaths = [\"/**\"]\nlink = {{ keys = \"f\"{form} }}\n"
        );
        with_file(&text).unwrap().sites.remove(0).links.remove(0)
    };
    let token = settings("");
    let secure_link = settings(", form = \"secure_link\"");
    assert_eq!(token.file(), Path::new("f"));
    let keys = token
        .parse_keys(b"# the new one\n00ff\n\n  0a0B \n")
        .unwrap();
    assert_eq!(
        keys,
        [
            LinkKey::new(&[0, 255]).unwrap(),
            LinkKey::new(&[10, 11]).unwrap()
        ]
    );
    let keys = secure_link.parse_keys(b"secret\r\n").unwrap();
    assert_eq!(keys, [LinkKey::new(b"secret").unwrap()]);
    for (text, message) in [
        ("", "0 keys"),
        ("# none\n", "0 keys"),
        ("00\n01\n02\n03\n04\n", "5 keys"),
        ("00\nsecret\n", "line 2 is no key"),
    ] {
        let refused = token.parse_keys(text.as_bytes()).unwrap_err().to_string();
        assert!(
            refused.contains(message) && !refused.contains("secret"),
            "{refused}"
        );
    }
}
