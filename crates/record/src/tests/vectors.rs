//! RFC 8448 s3, "Simple 1-RTT Handshake": the records after the handshake, byte for byte.

use super::{Suite, TLS13, by_ring, seal};
use crate::{ContentType, Event};

const SERVER_KEY: &str = "9f02283b6c9c07efc26bb9f2ac92e356";
const SERVER_IV: &str = "cf782b88dd83549aadf1e984";
const CLIENT_KEY: &str = "17422dda596ed5d9acd890e3c63f5051";
const CLIENT_IV: &str = "5b78923dee08579033e523d9";

/// Record 1 of the server's: 0 was its NewSessionTicket.
const SERVER_DATA: &str = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d\
    90e6dffc602dcb501a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
const SERVER_CLOSE: &str = "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9";
const CLIENT_DATA: &str = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5\
    b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
const CLIENT_CLOSE: &str = "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3";

fn bytes(text: &str) -> Vec<u8> {
    let digit = |character: u8| char::from(character).to_digit(16).unwrap();
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::try_from(digit(pair[0]) << 4 | digit(pair[1])).unwrap())
        .collect()
}

fn suite(key: &str, iv: &str) -> Suite {
    let mut suite = TLS13;
    suite.key[..16].copy_from_slice(&bytes(key));
    suite.iv.copy_from_slice(&bytes(iv));
    suite
}

#[test]
fn the_servers_records_are_sealed() {
    let suite = suite(SERVER_KEY, SERVER_IV);
    let data: Vec<u8> = (0..50).collect();
    for sealer in [suite.sealer(), by_ring(suite).sealer()] {
        let record = seal(&sealer, 1, ContentType::ApplicationData, &data);
        assert_eq!(record, bytes(SERVER_DATA));
        let record = seal(&sealer, 2, ContentType::Alert, &[1, 0]);
        assert_eq!(record, bytes(SERVER_CLOSE));
    }
}

#[test]
fn the_clients_records_are_opened() {
    let mut inbound = suite(CLIENT_KEY, CLIENT_IV).inbound();
    let data: Vec<u8> = (0..50).collect();
    assert_eq!(
        inbound.open(&mut bytes(CLIENT_DATA)),
        Ok(Event::Data(&data))
    );
    assert_eq!(
        inbound.open(&mut bytes(CLIENT_CLOSE)),
        Ok(Event::CloseNotify)
    );
}
