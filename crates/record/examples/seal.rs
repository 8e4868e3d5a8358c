//! Seals a record where its content lies, seals it again as for a retransmission, and opens it.
//!
//! `cargo run -p atlas-record --example seal`

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use record::{Algorithm, ContentType, Event, Inbound, Sealer, Tag, TrafficKey, Version};

fn main() -> Result<(), record::KeyError> {
    // Out of a handshake in earnest: see the `server` room.
    let (key, iv) = ([0x42; 16], [0x17; 12]);
    let key = TrafficKey::new(Version::Tls13, Algorithm::Aes128Gcm, &key, iv)?;
    let sealer = Sealer::new(&key);

    let (sent, tag) = seal(&sealer, 0, b"what the disk just read");
    println!("{} bytes on the wire: {sent:02x?}", sent.len());
    let (again, again_tag) = seal(&sealer, 0, b"what the disk just read");
    println!(
        "lost and read again, the same: {}",
        (sent, tag) == (again.clone(), again_tag)
    );
    let (_never_sent, other_tag) = seal(&sealer, 0, b"what the disk has now..");
    println!("changed in between, and seen: {}", tag != other_tag);

    let mut record = again;
    match Inbound::new(&key, 0).open(&mut record) {
        Ok(Event::Data(content)) => println!("opened: {}", String::from_utf8_lossy(content)),
        other => println!("not opened: {other:?}"),
    }
    Ok(())
}

/// Header, content and trailer in one vector, as they will be on the wire.
fn seal(sealer: &Sealer, number: u64, content: &[u8]) -> (Vec<u8>, Tag) {
    let framing = sealer.framing();
    let (header_bytes, trailer_bytes) = (framing.header_bytes, framing.trailer_bytes);
    let mut record = vec![0; header_bytes as usize];
    record.extend_from_slice(content);
    record.resize(record.len() + trailer_bytes as usize, 0);
    let tag = sealer.seal(number, ContentType::ApplicationData, &mut record);
    (record, tag)
}
