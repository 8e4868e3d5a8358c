//! What opened records say: KeyUpdate, alerts, and all that a client may not say.

use super::{ALERT, DATA, HANDSHAKE, SUITES, Suite, TLS12, TLS13, refusal, refusal_of};
use crate::AlertDescription::{
    DecodeError, IllegalParameter, InternalError, NoRenegotiation, UnexpectedMessage,
};
use crate::{Alert, AlertDescription, Algorithm, Event, Inbound, KEY_UPDATE, Version};

const UPDATE: Event<'_> = Event::KeyUpdate {
    is_answer_wanted: false,
};
const UPDATE_REQUESTED: Event<'_> = Event::KeyUpdate {
    is_answer_wanted: true,
};

/// A client that sends its records in order.
struct Client {
    suite: Suite,
    number: u64,
    inbound: Inbound,
}

impl Client {
    fn new(suite: Suite) -> Self {
        Self {
            suite,
            number: 0,
            inbound: suite.inbound(),
        }
    }

    /// The verdict, application data left out.
    fn send(&mut self, type_code: u8, content: &[u8]) -> Result<Event<'static>, Alert> {
        let mut record = self.suite.record(self.number, type_code, content);
        self.number += 1;
        Ok(match self.inbound.open(&mut record)? {
            Event::Data(data) => {
                assert_eq!(data, content);
                Event::Data(b"")
            }
            Event::KeyUpdate { is_answer_wanted } => Event::KeyUpdate { is_answer_wanted },
            Event::CloseNotify => Event::CloseNotify,
            Event::Renegotiation => Event::Renegotiation,
            Event::Aborted(number) => Event::Aborted(number),
            Event::Nothing => Event::Nothing,
        })
    }

    fn rekey(&mut self) {
        self.suite.key[0] ^= 0xff;
        self.suite.iv[0] ^= 0xff;
        self.number = 0;
        self.inbound.rekey(&self.suite.traffic_key());
    }
}

/// What the first record of a connection comes to.
fn first(suite: Suite, type_code: u8, content: &[u8]) -> Result<Event<'static>, Alert> {
    Client::new(suite).send(type_code, content)
}

#[test]
fn a_key_update_changes_the_key_and_the_numbers_start_over() {
    for suite in SUITES
        .into_iter()
        .filter(|suite| suite.version == Version::Tls13)
    {
        let mut client = Client::new(suite);
        for round in 0..40 {
            assert_eq!(client.send(DATA, b"GET"), Ok(Event::Data(b"")), "{round}");
            assert_eq!(
                client.send(HANDSHAKE, &[24, 0, 0, 1, round % 2]),
                Ok(Event::KeyUpdate {
                    is_answer_wanted: round % 2 == 1,
                })
            );
            client.rekey();
        }
        assert_eq!(client.send(ALERT, &[1, 0]), Ok(Event::CloseNotify));
    }
}

#[test]
fn our_own_key_update_is_one() {
    assert_eq!(first(TLS13, HANDSHAKE, &KEY_UPDATE), Ok(UPDATE));
}

#[test]
fn a_key_update_may_be_cut_anywhere() {
    let message = [24, 0, 0, 1, 1];
    for cuts in 0..1 << 4 {
        let mut client = Client::new(TLS13);
        let mut start = 0;
        for end in 1..message.len() {
            if cuts >> (end - 1) & 1 == 1 {
                let sent = client.send(HANDSHAKE, &message[start..end]);
                assert_eq!(sent, Ok(Event::Nothing), "{cuts:b}");
                start = end;
            }
        }
        assert_eq!(
            client.send(HANDSHAKE, &message[start..]),
            Ok(UPDATE_REQUESTED),
            "{cuts:b}"
        );
        client.rekey();
        assert_eq!(client.send(DATA, b"GET"), Ok(Event::Data(b"")), "{cuts:b}");
    }
}

#[test]
fn nothing_comes_between_the_parts_of_a_message() {
    for cut in 1..5 {
        for (type_code, content) in [
            (DATA, b"GET".as_slice()),
            (DATA, b""),
            (ALERT, &[1, 0]),
            (ALERT, &[2, 80]),
            (HANDSHAKE, b""),
        ] {
            let mut client = Client::new(TLS13);
            assert_eq!(
                client.send(HANDSHAKE, &KEY_UPDATE[..cut]),
                Ok(Event::Nothing)
            );
            assert_eq!(
                refusal(client.send(type_code, content)),
                UnexpectedMessage,
                "{cut}"
            );
        }
    }
}

#[test]
fn an_unsound_key_update_is_refused() {
    for (message, expected) in [
        // Nothing, and nothing but padding.
        ([].as_slice(), UnexpectedMessage),
        // Lengths 0, 2, 257, 65537.
        (&[24, 0, 0, 0], DecodeError),
        (&[24, 0, 0, 2, 0, 0], DecodeError),
        (&[24, 0, 1, 1, 0], DecodeError),
        (&[24, 1, 0, 1, 0], DecodeError),
        // The key changes in the middle of a record.
        (&[24, 0, 0, 1, 0, 24], UnexpectedMessage),
        (&[24, 0, 0, 1, 0, 24, 0, 0, 1, 1], UnexpectedMessage),
    ] {
        assert_eq!(
            refusal(first(TLS13, HANDSHAKE, message)),
            expected,
            "{message:?}"
        );
    }
    for request in 2..=255 {
        let message = [24, 0, 0, 1, request];
        assert_eq!(
            refusal(first(TLS13, HANDSHAKE, &message)),
            IllegalParameter,
            "{request}"
        );
    }
}

#[test]
fn every_other_message_is_refused() {
    for message_type in (0..=255).filter(|&message_type| message_type != 24) {
        let message = [message_type, 0, 0, 1, 0];
        assert_eq!(
            refusal(first(TLS13, HANDSHAKE, &message)),
            UnexpectedMessage
        );
    }
}

#[test]
fn nothing_is_opened_between_a_key_update_and_the_key() {
    let mut client = Client::new(TLS13);
    assert_eq!(client.send(HANDSHAKE, &KEY_UPDATE), Ok(UPDATE));
    assert_eq!(
        refusal(client.send(DATA, b"under the old key")),
        InternalError
    );
}

/// The key that a KeyUpdate retires opens nothing more (RFC 8446 s4.6.3).
#[test]
fn a_record_under_the_old_key_is_a_forgery() {
    let mut client = Client::new(TLS13);
    assert_eq!(client.send(HANDSHAKE, &KEY_UPDATE), Ok(UPDATE));
    let record = client.suite.record(1, DATA, b"old");
    client.rekey();
    let refused = refusal_of(&mut client.inbound, record);
    assert_eq!(refused, AlertDescription::BadRecordMac);
}

#[test]
#[should_panic(expected = "a key changes on KeyUpdate only")]
fn a_key_without_a_key_update_panics() {
    Client::new(TLS13).rekey();
}

#[test]
#[should_panic(expected = "a key changes, the suite does not")]
fn a_key_of_another_suite_panics() {
    let mut client = Client::new(TLS13);
    assert_eq!(client.send(HANDSHAKE, &KEY_UPDATE), Ok(UPDATE));
    client.suite.algorithm = Algorithm::Aes256Gcm;
    client.rekey();
}

#[test]
fn application_data_may_be_empty() {
    for suite in SUITES {
        let mut client = Client::new(suite);
        for content in [b"".as_slice(), b"GET", b"", b" /"] {
            assert_eq!(
                client.send(DATA, content),
                Ok(Event::Data(b"")),
                "{suite:?}"
            );
        }
    }
}

#[test]
fn an_alert_has_two_bytes() {
    for suite in [TLS13, TLS12] {
        assert_eq!(refusal(first(suite, ALERT, &[])), UnexpectedMessage);
        assert_eq!(refusal(first(suite, ALERT, &[1])), DecodeError);
        assert_eq!(first(suite, ALERT, &[1, 0]), Ok(Event::CloseNotify));
        assert_eq!(refusal(first(suite, ALERT, &[1, 0, 0])), DecodeError);
        assert_eq!(refusal(first(suite, ALERT, &[1, 0, 1, 0])), DecodeError);
    }
}

/// tlsfuzzer's test-tls13-empty-alert: padding does not make content.
#[test]
fn tls13_an_alert_of_padding_is_empty() {
    for padding in [0, 2, 5, 30] {
        let mut inner = vec![ALERT];
        inner.resize(1 + padding, 0);
        let record = TLS13.record_tls13(0, &inner);
        let refused = refusal_of(&mut TLS13.inbound(), record);
        assert_eq!(refused, UnexpectedMessage, "{padding}");
    }
}

/// RFC 8446 s6: every alert but two ends the connection, whatever its level says.
#[test]
fn tls13_alerts_have_no_level() {
    for level in 0..=255 {
        for number in 0..=255 {
            let expected = match number {
                0 => Event::CloseNotify,
                90 => Event::Nothing,
                _ => Event::Aborted(number),
            };
            assert_eq!(
                first(TLS13, ALERT, &[level, number]),
                Ok(expected),
                "{level}"
            );
        }
    }
}

/// RFC 5246 s7.2.2: a warning leaves it to us.
#[test]
fn tls12_alerts_have_one() {
    for number in 1..=255 {
        assert_eq!(first(TLS12, ALERT, &[1, number]), Ok(Event::Nothing));
        assert_eq!(
            first(TLS12, ALERT, &[2, number]),
            Ok(Event::Aborted(number))
        );
        assert_eq!(refusal(first(TLS12, ALERT, &[0, number])), IllegalParameter);
        assert_eq!(refusal(first(TLS12, ALERT, &[3, number])), IllegalParameter);
    }
    for level in 0..=255 {
        assert_eq!(first(TLS12, ALERT, &[level, 0]), Ok(Event::CloseNotify));
    }
}

#[test]
fn a_connection_goes_on_after_a_warning() {
    for (suite, alert) in [(TLS13, [1, 90]), (TLS12, [1, 90]), (TLS12, [1, 100])] {
        let mut client = Client::new(suite);
        assert_eq!(client.send(ALERT, &alert), Ok(Event::Nothing));
        assert_eq!(client.send(DATA, b"GET"), Ok(Event::Data(b"")));
    }
}

/// RFC 8446 s6.1: what comes after a closure alert "MUST be ignored", sound or not.
#[test]
fn records_after_close_notify_or_a_fatal_alert_are_ignored() {
    for suite in [TLS13, TLS12] {
        for (alert, expected) in [([1, 0], Event::CloseNotify), ([2, 80], Event::Aborted(80))] {
            let mut client = Client::new(suite);
            assert_eq!(client.send(ALERT, &alert), Ok(expected));
            assert_eq!(client.send(DATA, b"more"), Ok(Event::Nothing));
            client.number += 1;
            assert_eq!(client.send(DATA, b"unsound"), Ok(Event::Nothing));
        }
    }
}

/// RFC 5246 s7.4.1.1 lets us say no; that is the session's to say.
#[test]
fn tls12_a_client_hello_asks_for_renegotiation() {
    let mut client = Client::new(TLS12);
    for hello in [[1].as_slice(), &[1, 0, 0, 2, 3, 3]] {
        assert_eq!(client.send(HANDSHAKE, hello), Ok(Event::Renegotiation));
    }
    assert_eq!(client.send(DATA, b"GET"), Ok(Event::Data(b"")));
    let no = Alert {
        is_fatal: false,
        description: NoRenegotiation,
    };
    assert_eq!(no.to_bytes(), [1, 100]);
}

#[test]
fn tls12_every_other_message_is_refused() {
    assert_eq!(refusal(first(TLS12, HANDSHAKE, &[])), UnexpectedMessage);
    for message_type in (0..=255).filter(|&message_type| message_type != 1) {
        let message = [message_type, 0, 0, 1, 0];
        assert_eq!(
            refusal(first(TLS12, HANDSHAKE, &message)),
            UnexpectedMessage
        );
    }
}

#[test]
fn change_cipher_spec_after_the_handshake_is_refused() {
    for suite in SUITES {
        assert_eq!(
            refusal(first(suite, 20, &[1])),
            UnexpectedMessage,
            "{suite:?}"
        );
    }
}

#[test]
fn alerts_are_the_protocols_bytes() {
    assert_eq!(Alert::CLOSE_NOTIFY.to_bytes(), [1, 0]);
    for (description, number) in [
        (AlertDescription::UnexpectedMessage, 10),
        (AlertDescription::BadRecordMac, 20),
        (AlertDescription::RecordOverflow, 22),
        (AlertDescription::IllegalParameter, 47),
        (AlertDescription::DecodeError, 50),
        (AlertDescription::ProtocolVersion, 70),
        (AlertDescription::InternalError, 80),
    ] {
        assert_eq!(Alert::fatal(description).to_bytes(), [2, number]);
    }
}
