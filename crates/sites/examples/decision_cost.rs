//! What sites and rules cost a request: it is parsed, decided, and the rule of its reply is found, as a session does.
//!
//! `cargo build --release -p atlas-sites --example decision_cost`, then `valgrind --tool=callgrind
//! target/release/examples/decision_cost none 100000`, and the same with 0 requests, which is what the start costs;
//! `one` has a site without rules, and `many` 200 sites with 20 rules each.

use std::error::Error;

use http::{Parsed, parse_request};
use sites::rules::Rule;
use sites::{Client, LastRule, Site, Sites};

const SITES: usize = 200;
const RULES: usize = 20;
/// A digit of the path.
const SEGMENT_AT: usize = 44;
const HEAD: &[u8] = b"GET /live/channel7/video_1080p/segment-123456.m4s HTTP/1.1\r\n\
    Host: www.site117.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\r\n\
    Accept: */*\r\nAccept-Encoding: identity\r\nOrigin: https://player.example\r\nConnection: keep-alive\r\n\r\n";

/// The last rule is the one for the path.
fn site(name: String, rules: usize) -> Site {
    let pattern = |index: usize| match index % 4 {
        0 => format!("/folder{index}/**"),
        1 => format!("*.ext{index}"),
        2 => format!("/live/*/audio_{index}/*.m4s"),
        _ => format!("/vod/{{a,b}}{index}/**/*.mp4"),
    };
    let others = (1..rules).map(|index| (vec![pattern(index)], Rule::default()));
    let last = (rules > 0).then(|| (vec!["*.m4s".to_owned()], Rule::default()));
    Site {
        names: vec![name],
        rules: others.chain(last).collect(),
        ..Site::default()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (count, rules) = match words.next().as_deref() {
        Some("none") => (0, 0),
        Some("one") => (1, 0),
        Some("many") => (SITES, RULES),
        _ => return Err("none, one or many".into()),
    };
    let requests: u32 = words.next().ok_or("how many requests")?.parse()?;
    let name = |index| match count {
        1 => "www.site117.example".to_owned(),
        _ => format!("www.site{index}.example"),
    };
    let sites = (0..count).map(|index| site(name(index), rules)).collect();
    let sites = Sites::new(sites, Site::default()).map_err(|(_, problem)| problem)?;
    let mut last = LastRule::default();
    let mut head = HEAD.to_vec();
    for number in 0..requests {
        // Each asks for another segment.
        head[SEGMENT_AT] = b'0' + u8::try_from(number % 10)?;
        let Parsed::Complete { request, .. } = parse_request(std::hint::black_box(&head)) else {
            return Err("a whole head".into());
        };
        let client = Client {
            source: sites.source(&request, [192, 0, 2, 7].into()),
            is_secure: true,
            unix_seconds: 1_764_155_000,
        };
        let found = sites.find(&request, &mut last);
        std::hint::black_box(found.decide(&request, &client));
        std::hint::black_box(sites.find(&request, &mut last).rule);
    }
    Ok(())
}
