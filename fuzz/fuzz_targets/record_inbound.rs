//! A client's records after the handshake: some sealed under its key, whatever they say, some
//! forged. What is opened is what was sealed, it means what a naive reader makes of it, and a
//! refusal is the end.
#![no_main]

use aes_gcm::Aes128Gcm;
use aes_gcm::aead::{Aead, KeyInit, Payload};
use libfuzzer_sys::fuzz_target;
use record::{
    Alert, AlertDescription, Algorithm, Event, HEADER_BYTES, Inbound, TrafficKey, Version,
    peek_record,
};

const KEY: [u8; 16] = [7; 16];

// One byte says which version; then per record three bytes, whether it is sealed, its type and its
// length, and its bytes: in TLS 1.3 the whole inner plaintext.
fuzz_target!(|bytes: &[u8]| {
    let Some((&version, mut rest)) = bytes.split_first() else {
        return;
    };
    let mut client = Client::new([Version::Tls13, Version::Tls12][usize::from(version % 2)]);
    while let Some((&[kind, type_code, length], behind)) = rest.split_first_chunk() {
        let (content, behind) = behind.split_at(behind.len().min(length.into()));
        if kind % 4 == 0 {
            client.crafted(type_code, content);
        } else {
            client.send(type_code, content);
        }
        rest = behind;
    }
});

struct Client {
    version: Version,
    key: TrafficKey,
    inbound: Inbound,
    /// The next record's.
    number: u64,
    /// What the naive reader has of a message that is not complete.
    message: Vec<u8>,
    /// Nothing counts any more.
    is_closed: bool,
    has_failed: bool,
}

/// What a naive reader makes of a record: an event, or the alert.
type Meaning<'a> = Result<Event<'a>, AlertDescription>;

impl Client {
    fn new(version: Version) -> Self {
        let key = TrafficKey::new(version, Algorithm::Aes128Gcm, &KEY, [0; 12]);
        let key = key.expect("a key of sixteen bytes");
        Self {
            version,
            inbound: Inbound::new(&key, 0),
            key,
            number: 0,
            message: Vec::new(),
            is_closed: false,
            has_failed: false,
        }
    }

    /// A record that nobody sealed: it is framed, and refused.
    fn crafted(&mut self, type_code: u8, content: &[u8]) {
        let mut record = [header(type_code, content.len()).as_slice(), content].concat();
        match peek_record(&record) {
            Ok(bytes) => assert_eq!(bytes, Some(record.len())),
            Err(_) => assert!(!(20..24).contains(&type_code)),
        }
        let opened = self.inbound.open(&mut record);
        if self.is_closed {
            assert_eq!(opened, Ok(Event::Nothing));
        } else {
            opened.expect_err("nobody sealed it");
            self.has_failed = true;
        }
    }

    fn send(&mut self, type_code: u8, content: &[u8]) {
        let mut record = self.seal(type_code, content);
        let expected = if self.is_closed {
            Ok(Event::Nothing)
        } else if self.has_failed {
            Err(AlertDescription::InternalError)
        } else if self.version == Version::Tls13 {
            self.read_tls13(content)
        } else {
            read_tls12(type_code, content)
        };
        assert_eq!(
            self.inbound.open(&mut record),
            expected.map_err(Alert::fatal)
        );
        self.number += 1;
        match expected {
            Ok(Event::KeyUpdate { .. }) => {
                self.inbound.rekey(&self.key);
                self.number = 0;
            }
            Ok(Event::CloseNotify | Event::Aborted(_)) => self.is_closed = true,
            Ok(_) => {}
            Err(_) => self.has_failed = true,
        }
    }

    fn seal(&self, type_code: u8, content: &[u8]) -> Vec<u8> {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        let (header, explicit, data) = match self.version {
            Version::Tls13 => {
                let header = header(23, content.len() + 16);
                (header, [].as_slice(), header.to_vec())
            }
            Version::Tls12 => {
                let number = self.number.to_be_bytes();
                let data = [number.as_slice(), &header(type_code, content.len())].concat();
                (header(type_code, content.len() + 24), &nonce[4..], data)
            }
        };
        let payload = Payload {
            msg: content,
            aad: &data,
        };
        let aead = Aes128Gcm::new(&KEY.into());
        let sealed = aead.encrypt(&nonce.into(), payload).expect("sealed");
        [header.as_slice(), explicit, &sealed].concat()
    }

    /// RFC 8446: the type is the last byte that is not zero; messages are read when five bytes,
    /// or something wrong, have come.
    fn read_tls13<'a>(&mut self, inner: &'a [u8]) -> Meaning<'a> {
        use AlertDescription::{DecodeError, IllegalParameter, UnexpectedMessage};
        let padding = inner.iter().rev().take_while(|&&byte| byte == 0).count();
        let Some((&type_code, content)) = inner[..inner.len() - padding].split_last() else {
            return Err(UnexpectedMessage);
        };
        match type_code {
            22 if !content.is_empty() => self.message.extend(content),
            23 if self.message.is_empty() => return Ok(Event::Data(content)),
            21 if self.message.is_empty() => return read_alert(content, true),
            _ => return Err(UnexpectedMessage),
        }
        let meaning = match *self.message {
            [24] | [24, 0] | [24, 0, 0] | [24, 0, 0, 1] => return Ok(Event::Nothing),
            [24, 0, 0, 1, request @ 0..=1] => Ok(Event::KeyUpdate {
                is_answer_wanted: request == 1,
            }),
            [24, 0, 0, 1, 0..=1, ..] => Err(UnexpectedMessage),
            [24, 0, 0, 1, ..] => Err(IllegalParameter),
            [24, ..] => Err(DecodeError),
            _ => Err(UnexpectedMessage),
        };
        self.message.clear();
        meaning
    }
}

fn read_tls12(type_code: u8, content: &[u8]) -> Meaning<'_> {
    match (type_code, content) {
        (23, data) => Ok(Event::Data(data)),
        (21, alert) => read_alert(alert, false),
        (22, [1, ..]) => Ok(Event::Renegotiation),
        _ => Err(AlertDescription::UnexpectedMessage),
    }
}

fn read_alert(content: &[u8], is_tls13: bool) -> Meaning<'_> {
    match *content {
        [] => Err(AlertDescription::UnexpectedMessage),
        [_, 0] => Ok(Event::CloseNotify),
        [_, 90] if is_tls13 => Ok(Event::Nothing),
        [_, number] if is_tls13 => Ok(Event::Aborted(number)),
        [1, _] => Ok(Event::Nothing),
        [2, number] => Ok(Event::Aborted(number)),
        [_, _] => Err(AlertDescription::IllegalParameter),
        _ => Err(AlertDescription::DecodeError),
    }
}

fn header(type_code: u8, following_bytes: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = u16::try_from(following_bytes)
        .expect("a short record")
        .to_be_bytes();
    [type_code, 3, 3, high, low]
}
