//! Answers the request on standard input as if it asked for an object of 1000 bytes:
//!
//! `printf 'GET /a.mp4 HTTP/1.1\r\nHost: h\r\nRange: bytes=0-9,-1\r\n\r\n' | cargo run -q -p
//! atlas-http --example answer`

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::io::Read;

use clock::UnixTime;
use http::{ObjectMeta, Parsed, Part, ReplyConfig, ReplyOptions, error_reply, parse_request};

fn main() -> std::io::Result<()> {
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let config = ReplyConfig {
        cors: http::Cors::AnyOrigin,
        ..ReplyConfig::default()
    };
    let options = ReplyOptions {
        config: &config,
        unix_seconds_now: 1_700_000_000,
        keep_alive: true,
        is_secure: false,
        origin: None,
        is_private: false,
    };
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let reply = match parse_request(&input) {
        Parsed::Incomplete => {
            println!("(the head is not complete)");
            return Ok(());
        }
        Parsed::Refused(refusal) => {
            let (status, head_only) = (refusal.status, refusal.head_only);
            error_reply(status, head_only, true, &options, &mut text, &mut parts)
        }
        Parsed::Complete { request, .. } => {
            let object = ObjectMeta {
                size_bytes: 1000,
                modified: UnixTime {
                    seconds: 1_600_000_000,
                    nanos: 0,
                },
                seen: UnixTime {
                    seconds: 1_700_000_000,
                    nanos: 0,
                },
                content_hash: None,
                content_type: None,
            };
            http::reply(&request, &object, &options, &mut text, &mut parts)
        }
    };
    let text = String::from_utf8_lossy(&text);
    let mut rest = text.as_ref();
    for part in parts {
        match part {
            Part::Text(bytes) => {
                let (now, later) = rest.split_at(bytes as usize);
                print!("{now}");
                rest = later;
            }
            Part::Object { start, length } => println!("({length} bytes from {start})"),
        }
    }
    println!(
        "({:?}, {})",
        reply.status,
        if reply.close { "close" } else { "keep alive" }
    );
    Ok(())
}
