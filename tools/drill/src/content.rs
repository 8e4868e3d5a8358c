//! The bytes of both directions: requests of a fixed length, and replies whose head has a fixed
//! length too, so that a script's sequence numbers do not depend on HTTP.
//!
//! It refuses replies that are not 200: every reply is the head and then the whole object.

use clock::UnixTime;
use http::{ExtraFields, ObjectMeta, ReplyConfig};
use session::Object;

use crate::script::Setup;
use crate::server;

/// The path of the only object.
pub(crate) const OBJECT_PATH: &str = "/object";
/// The wall clock in every script.
pub(crate) const UNIX_SECONDS: u64 = 1_700_000_000;
/// Bytes of a request.
pub(crate) const REQUEST_BYTES: usize = 100;
/// Largest read, bytes: a slot.
const READ_BYTES_MAX: u32 = 65_536;
/// The field that makes a head as long as the script says.
const FILLER: &str = "X-Filler: ";

/// What the stream from the server must consist of: replies, each a head and the object.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    object_bytes: u64,
    head_bytes: u64,
    config: ReplyConfig,
    /// The head, as far as it was seen.
    head: Vec<Option<u8>>,
}

impl Content {
    /// # Errors
    /// The head cannot have this length.
    pub(crate) fn new(setup: &Setup) -> Result<Self, String> {
        let natural = head_of(setup, &ReplyConfig::default()).len();
        let wanted = setup.head_bytes as usize;
        let line_end = "\r\n".len();
        let filler = wanted
            .checked_sub(natural + FILLER.len() + line_end)
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| format!("a head has more than {natural} bytes, {wanted} are too few"))?;
        let mut extra_fields = ExtraFields::default();
        extra_fields
            .push(&format!("{FILLER}{}", "f".repeat(filler)))
            .map_err(|problem| format!("a head of {wanted} bytes: {problem}"))?;
        let config = ReplyConfig {
            extra_fields,
            ..ReplyConfig::default()
        };
        debug_assert_eq!(head_of(setup, &config).len(), wanted);
        Ok(Self {
            object_bytes: setup.object_bytes,
            head_bytes: u64::from(setup.head_bytes),
            config,
            head: vec![None; wanted],
        })
    }

    pub(crate) fn reply_config(&self) -> ReplyConfig {
        self.config.clone()
    }

    /// Checks text of the server that begins at this offset of its stream.
    ///
    /// # Errors
    /// A byte is not what it must be.
    pub(crate) fn check(&mut self, offset: u64, text: &[u8]) -> Result<(), String> {
        for (&byte, at) in text.iter().zip(offset..) {
            let place = at % (self.head_bytes + self.object_bytes);
            if let Some(offset) = place.checked_sub(self.head_bytes) {
                let wanted = object_byte(offset);
                if byte != wanted {
                    return Err(format!(
                        "byte {offset} of the object is {byte:#04x}, not {wanted:#04x}"
                    ));
                }
                continue;
            }
            let index = usize::try_from(place).unwrap_or(usize::MAX);
            let seen = *self.head[index].get_or_insert(byte);
            if byte != seen {
                return Err(format!(
                    "byte {place} of the head is {byte:#04x} and was {seen:#04x} before"
                ));
            }
        }
        Ok(())
    }
}

/// The object's byte at an offset.
#[expect(clippy::cast_possible_truncation, reason = "the lowest byte")]
pub(crate) const fn object_byte(offset: u64) -> u8 {
    (offset.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// One request, [`REQUEST_BYTES`] long.
pub(crate) fn request(setup: &Setup) -> Vec<u8> {
    let connection = if setup.closes { "close" } else { "keep-alive" };
    let start =
        format!("GET {OBJECT_PATH} HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\nX-Filler: ");
    let end = "\r\n\r\n";
    let filler = "f".repeat(REQUEST_BYTES - start.len() - end.len());
    format!("{start}{filler}{end}").into_bytes()
}

fn unix_time(unix_seconds: u64) -> UnixTime {
    UnixTime {
        seconds: unix_seconds.cast_signed(),
        nanos: 0,
    }
}

/// The object as the store has it.
pub(crate) fn object(setup: &Setup) -> Object {
    Object {
        handle: server::OBJECT,
        meta: ObjectMeta {
            size_bytes: setup.object_bytes,
            modified: unix_time(UNIX_SECONDS - 1000),
            seen: unix_time(UNIX_SECONDS),
            content_hash: None,
            content_type: None,
        },
        block_bytes: setup.block_bytes,
        read_bytes_max: READ_BYTES_MAX,
        device: server::device(),
    }
}

/// The head of the reply to a script's request.
fn head_of(setup: &Setup, config: &ReplyConfig) -> Vec<u8> {
    let text = request(setup);
    let http::Parsed::Complete { request, .. } = http::parse_request(&text) else {
        unreachable!("the request of a script is a request");
    };
    let options = http::ReplyOptions {
        config,
        unix_seconds_now: UNIX_SECONDS,
        keep_alive: true,
        is_secure: false,
        origin: None,
        is_private: false,
    };
    let (mut head, mut parts) = (Vec::new(), Vec::new());
    let meta = object(setup).meta;
    let _ = http::reply(&request, &meta, &options, &mut head, &mut parts);
    head
}
