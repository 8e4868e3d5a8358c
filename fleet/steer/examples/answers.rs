//! How many answers a second one core computes, by the number of members: `cargo run --release --package atlas-steer
//! --example answers`. Without the network and HTTP.

#![allow(clippy::print_stdout, reason = "it prints what it finds")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use placement::Member;
use registry::{Freshness, View};
use steer::request::Question;
use steer::settings::Settings;
use steer::steering::Steering;

fn main() {
    let settings = Settings::parse("[registry]\nkind = \"file\"\npath = \"x\"\n");
    let steering = Steering::new(&settings.expect("these are right")).expect("these are right");
    for count in [10_u32, 100, 1_000, 10_000] {
        let member = |number: u32| Member {
            capacity_bytes: 8_000_000_000_000,
            load: 0.25,
            ..Member::new(
                format!("edge-{number:05}"),
                format!("https://edge-{number:05}.example"),
            )
        };
        steering.take(&View {
            members: Arc::new((0..count).map(member).collect()),
            freshness: Freshness::Current,
            refused: Arc::default(),
        });
        let (start, mut answers, mut bytes) = (Instant::now(), 0_u32, 0);
        while start.elapsed() < Duration::from_secs(2) {
            let question = Question {
                path: format!("/film-{answers}/master.m3u8"),
                ..Question::default()
            };
            let client = IpAddr::V4(Ipv4Addr::from_bits(answers));
            bytes = steering.manifest(&question, Some(client)).to_json().len();
            answers += 1;
        }
        let rate = f64::from(answers) / start.elapsed().as_secs_f64();
        println!("{count} members: {rate:.0} manifests a second, of {bytes} bytes");
    }
}
