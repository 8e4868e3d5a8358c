//! Sites, whole: what is done with requests as clients send them.

use http::{Parsed, parse_request};

use super::*;
use links::{LinkForm, LinkKey, Links};
use networks::{Network, SourceFilter};

const CLIENT: Client = Client {
    source: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
    is_secure: true,
    unix_seconds: 1_764_155_000,
};

fn ask(sites: &Sites, url: &str, client: &Client) -> Verdict {
    let head = format!("GET {url} HTTP/1.1\r\nHost: default\r\n\r\n");
    let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
        panic!("{head}");
    };
    sites.decide(&request, client)
}

fn serve(path: Option<&str>) -> Verdict {
    Verdict::Serve(Place {
        path: path.map(str::to_owned),
        ..Place::default()
    })
}

fn rule(action: Action) -> Rule {
    Rule {
        action,
        ..Rule::default()
    }
}

fn site(names: &[&str]) -> Site {
    Site {
        names: names.iter().map(|&name| name.into()).collect(),
        ..Site::default()
    }
}

#[test]
fn without_sites_all_is_served_but_hidden_files() {
    let sites = Sites::of_replies(ReplyConfig::default());
    for url in [
        "/",
        "/a/b.m3u8",
        "/.well-known/acme-challenge/x",
        "/a.",
        "/a..b",
        "http://h/a",
    ] {
        assert_eq!(ask(&sites, url, &CLIENT), serve(None), "{url}");
    }
    for url in [
        "/.htpasswd",
        "/a/.git/config",
        "/.well-known/.x",
        "/%2ehtpasswd",
    ] {
        let verdict = ask(&sites, url, &CLIENT);
        assert_eq!(verdict, Verdict::Refuse(Status::NotFound), "{url}");
    }
    let shown = Site {
        serves_hidden: true,
        ..Site::default()
    };
    let sites = Sites::new(Vec::new(), shown).unwrap();
    assert_eq!(ask(&sites, "/.htpasswd", &CLIENT), serve(None));
}

#[test]
fn a_site_is_found_by_the_name_of_the_request() {
    let gone = Site {
        otherwise: rule(Action::Refuse(Status::Gone)),
        ..site(&["a.example", "*.b.example"])
    };
    let unknown = Site {
        otherwise: rule(Action::Refuse(Status::MisdirectedRequest)),
        ..Site::default()
    };
    let sites = Sites::new(vec![site(&["c.example"]), gone], unknown).unwrap();
    for (url, verdict) in [
        ("http://a.example/x", Verdict::Refuse(Status::Gone)),
        ("http://x.b.example:8080/x", Verdict::Refuse(Status::Gone)),
        ("http://c.example/x", serve(None)),
        (
            "http://192.0.2.1/x",
            Verdict::Refuse(Status::MisdirectedRequest),
        ),
        ("/x", Verdict::Refuse(Status::MisdirectedRequest)),
    ] {
        assert_eq!(ask(&sites, url, &CLIENT), verdict, "{url}");
    }
    let twice = Sites::new(vec![site(&["a"]), site(&["A"])], Site::default());
    let name = "A".to_owned();
    let problem = NameProblem::Twice;
    assert_eq!(twice.unwrap_err(), (1, SiteProblem::Name { name, problem }));
}

#[test]
fn plain_http_is_sent_to_https_but_not_the_challenge_of_an_authority() {
    let secure = Site {
        https: Some(Redirect::new(301, "https://$host$request_uri").unwrap()),
        ..Site::default()
    };
    let sites = Sites::new(Vec::new(), secure).unwrap();
    let plain = Client {
        is_secure: false,
        ..CLIENT
    };
    let redirect = Verdict::Redirect(Status::MovedPermanently, "https://h/a?b".into());
    assert_eq!(ask(&sites, "http://h:80/a?b", &plain), redirect);
    assert_eq!(ask(&sites, "http://h:80/a?b", &CLIENT), serve(None));
    let challenge = "/.well-known/acme-challenge/token";
    assert_eq!(ask(&sites, challenge, &plain), serve(None));
}

#[test]
fn a_rule_is_for_networks_and_for_signed_links() {
    let key = LinkKey::new(b"key").unwrap();
    let links = Links::new(LinkForm::Token("hdnts".into()), vec![key]);
    let network = Network::of_address(CLIENT.source);
    let signed = Rule {
        links: Some(links),
        networks: Some(SourceFilter::new(Some(&[network]), &[])),
        ..Rule::default()
    };
    let open = Rule {
        replies: ReplyConfig {
            cache_control: false,
            ..ReplyConfig::default()
        },
        ..Rule::default()
    };
    let rules = vec![
        (vec!["/open/**".into()], open),
        (vec!["/**".into()], signed),
    ];
    let site = Site {
        rules,
        ..Site::default()
    };
    let sites = Sites::new(Vec::new(), site).unwrap();
    // printf 'exp=1764155000~acl=/vod/*' | openssl dgst -sha256 -hmac key
    let token = "exp=1764155000~acl=/vod/*~hmac=\
                 896210064ee0306567dbb492d5d2b89c8e94d2ce00a9e7ad734189e1925e57b0";
    let forbidden = Verdict::Refuse(Status::Forbidden);
    let other = Client {
        source: std::net::Ipv4Addr::LOCALHOST.into(),
        ..CLIENT
    };
    for (url, client, verdict) in [
        ("/open/a".to_owned(), CLIENT, serve(None)),
        ("/open/a".to_owned(), other, serve(None)),
        ("/vod/a".to_owned(), CLIENT, forbidden.clone()),
        (format!("/vod/a?hdnts={token}"), CLIENT, serve(None)),
        (format!("/vod/a?hdnts={token}"), other, forbidden.clone()),
        (
            format!("/hdnts={token}/vod/a"),
            CLIENT,
            serve(Some("/vod/a")),
        ),
        (
            format!("/hdnts={token}/vod/../a"),
            CLIENT,
            forbidden.clone(),
        ),
        (
            format!("/hdnts={token}/vod/.a"),
            CLIENT,
            Verdict::Refuse(Status::NotFound),
        ),
        (
            format!("/hdnts={token}/open/a"),
            CLIENT,
            serve(Some("/open/a")),
        ),
    ] {
        assert_eq!(ask(&sites, &url, &client), verdict, "{url}");
    }
    let head = b"GET /open/a HTTP/1.1\r\nHost: h\r\n\r\n";
    let Parsed::Complete { request, .. } = parse_request(head) else {
        panic!("a whole head");
    };
    assert!(!sites.replies(&request).cache_control);
    assert!(sites.default_replies().cache_control);
}

#[test]
fn the_rule_that_was_found_last_is_not_that_of_another_path_or_name() {
    let site = |names: &[&str]| Site {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        rules: vec![(
            vec!["/closed/**".to_owned()],
            Rule {
                action: Action::Refuse(Status::Gone),
                ..Rule::default()
            },
        )],
        ..Site::default()
    };
    let sites = Sites::new(vec![site(&["a.example"])], Site::default()).unwrap();
    let mut last = LastRule::default();
    for _ in 0..2 {
        for (name, path, is_refused) in [
            ("a.example", "/closed/x", true),
            ("a.example", "/closed/x", true),
            ("a.example", "/open/x", false),
            ("b.example", "/closed/x", false),
            ("A.EXAMPLE:80", "/closed/x", true),
        ] {
            let head = format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n");
            let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
                panic!("{head}");
            };
            let found = sites.find(&request, &mut last);
            let expected = if is_refused {
                Action::Refuse(Status::Gone)
            } else {
                Action::Serve
            };
            assert_eq!(found.rule.action, expected, "{name}{path}");
        }
    }
}

#[test]
fn requests_are_counted_by_the_numbers_of_their_sites() {
    let all = ["a.example", "*.b.example", "c.example"].map(|name| site(&[name]));
    let sites = Sites::new(all.into(), Site::default()).unwrap();
    let sites = sites.with_numbers(&[SITES_COUNTED_MAX, SITES_COUNTED_MAX + 1]);
    for (name, number) in [
        ("a.example", SITES_COUNTED_MAX),
        ("A.example:80", SITES_COUNTED_MAX),
        ("x.b.example", 0),
        ("c.example", 0),
        ("d.example", 0),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
        let Parsed::Complete { request, .. } = parse_request(head.as_bytes()) else {
            panic!("{head}");
        };
        let found = sites.find(&request, &mut LastRule::default());
        assert_eq!(
            (found.number(), sites.number(&request)),
            (number, number),
            "{name}"
        );
    }
}
