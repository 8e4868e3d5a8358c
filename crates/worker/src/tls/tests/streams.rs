//! After the handshake: the keys handed over are those the client has, now and after updates.

use std::io::{Read as _, Write as _};

use record::{ContentType, Event, KEY_UPDATE, TrafficKey};
use rustls::client::ClientConnection;
use rustls::version::{TLS12, TLS13};
use session::{Direction, TlsAnswer, TlsPlan, TlsToken};

use super::{Handshaker, records_of, sealers};
use super::{NAME, Streaming, TOKEN, client_of, connect, establish, give, handshake, handshaker};

impl Streaming {
    /// One record, sealed as the session does it; each library seals the same.
    pub(super) fn seal(&mut self, content_type: ContentType, content: &[u8]) -> Vec<u8> {
        let [aws_lc, ring] = self.sealers.each_ref().map(|sealer| {
            let framing = sealer.framing();
            let header = vec![0; usize::try_from(framing.header_bytes).unwrap()];
            let trailer = vec![0; usize::try_from(framing.trailer_bytes).unwrap()];
            let mut record = [header.as_slice(), content, &trailer].concat();
            sealer.seal(self.number, content_type, &mut record);
            record
        });
        assert!(aws_lc == ring, "the libraries seal other bytes");
        self.number += 1;
        aws_lc
    }

    /// The client reads what we seal, and we what it seals.
    pub(super) fn talk(mut self, client: &mut ClientConnection) {
        self.assert_sends(client, b"from the server");
        self.assert_sends(client, &[7; 16_384]);
        client.writer().write_all(b"from the client").unwrap();
        self.rest.extend(records_of(client));
        self.assert_receives(b"from the client");
    }

    fn assert_sends(&mut self, client: &mut ClientConnection, text: &[u8]) {
        let record = self.seal(ContentType::ApplicationData, text);
        give(client, &record).unwrap();
        let mut received = vec![0; text.len()];
        client.reader().read_exact(&mut received).unwrap();
        assert!(received == text, "other bytes than were sealed");
    }

    /// The client's next records are this text.
    pub(super) fn assert_receives(&mut self, text: &[u8]) {
        let mut received = Vec::new();
        while received.len() < text.len() {
            let mut record = self.rest.remove(0);
            match self.inbound.open(&mut record) {
                Ok(Event::Data(data)) => received.extend_from_slice(data),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(received, text);
    }

    /// The client's last record says that it is.
    pub(super) fn assert_closed(&mut self) {
        let mut record = self.rest.remove(0);
        assert_eq!(self.inbound.open(&mut record), Ok(Event::CloseNotify));
        assert!(self.rest.is_empty());
    }
}

fn next_key(handshaker: &mut Handshaker, direction: Direction) -> TrafficKey {
    let plan = TlsPlan::NextKey {
        token: TOKEN,
        direction,
    };
    match handshaker.handle(plan) {
        Some((TOKEN, TlsAnswer::NextKey { key })) => key,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn our_key_changes_as_the_client_expects() {
    let mut handshaker = handshaker();
    let mut client = connect(&client_of(&TLS13), NAME);
    let mut streaming = establish(&mut handshaker, &mut client, TOKEN).unwrap();
    for _ in 0..3 {
        streaming.assert_sends(&mut client, b"before");
        let update = streaming.seal(ContentType::Handshake, &KEY_UPDATE);
        give(&mut client, &update).unwrap();
        streaming.sealers = sealers(&next_key(&mut handshaker, Direction::Send));
        streaming.number = 0;
        streaming.assert_sends(&mut client, b"after");
    }
    streaming.talk(&mut client);
}

#[test]
fn a_key_update_changes_the_clients_key() {
    let mut handshaker = handshaker();
    let mut client = connect(&client_of(&TLS13), NAME);
    let mut streaming = establish(&mut handshaker, &mut client, TOKEN).unwrap();
    for _ in 0..3 {
        client.refresh_traffic_keys().unwrap();
        client.writer().write_all(b"after").unwrap();
        let mut records = records_of(&mut client);
        let event = streaming.inbound.open(&mut records[0]).unwrap();
        assert!(matches!(event, Event::KeyUpdate { .. }), "{event:?}");
        let key = next_key(&mut handshaker, Direction::Receive);
        streaming.inbound.rekey(&key);
        streaming.rest = records.split_off(1);
        streaming.assert_receives(b"after");
    }
    streaming.talk(&mut client);
}

#[test]
fn a_connection_without_a_next_key_gets_an_error() {
    let mut handshaker = handshaker();
    let plan = |serial, direction| {
        let token = TlsToken { serial, ..TOKEN };
        TlsPlan::NextKey { token, direction }
    };
    let assert_fails = |handshaker: &mut Handshaker, serial, reason| {
        for direction in [Direction::Send, Direction::Receive] {
            let answer = handshaker.handle(plan(serial, direction));
            assert!(matches!(answer, Some((_, TlsAnswer::Failed))), "{reason}");
        }
    };
    assert_fails(&mut handshaker, 1, "nobody");
    let mut client = connect(&client_of(&TLS12), NAME);
    let token = TlsToken { serial: 1, ..TOKEN };
    establish(&mut handshaker, &mut client, token).unwrap();
    assert_fails(&mut handshaker, 1, "TLS 1.2 has none");
    handshaker.handle(TlsPlan::Forget { token });
    let mut client = connect(&client_of(&TLS13), NAME);
    let token = TlsToken { serial: 2, ..TOKEN };
    let hello = records_of(&mut client).remove(0);
    let TlsAnswer::Continue { flight } = handshake(&mut handshaker, token, hello) else {
        panic!("a hello is answered");
    };
    assert_fails(&mut handshaker, 2, "still in its handshake");
    give(&mut client, &flight).unwrap();
    establish(&mut handshaker, &mut client, token).unwrap();
    assert_fails(&mut handshaker, 3, "somebody else");
    assert!(matches!(
        handshaker.handle(plan(2, Direction::Send)),
        Some((_, TlsAnswer::NextKey { .. }))
    ));
}

#[test]
fn a_completed_handshake_refuses_another() {
    for version in [&TLS13, &TLS12] {
        let mut handshaker = handshaker();
        let mut client = connect(&client_of(version), NAME);
        establish(&mut handshaker, &mut client, TOKEN).unwrap();
        let hello = records_of(&mut connect(&client_of(version), NAME)).remove(0);
        let answer = handshake(&mut handshaker, TOKEN, hello);
        assert!(matches!(answer, TlsAnswer::Failed), "{answer:?}");
    }
}
