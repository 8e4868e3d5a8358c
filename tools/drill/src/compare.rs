//! Compares packets with what a line expects, and describes both in the language of scripts.

use core::ops::Range;

use clock::Instant;
use wire::{ChecksumState, Ecn, Incoming, TcpFlags};

use crate::peer::Peer;
use crate::script::{Answer, Bits, Expected, Wanted};
use crate::server::Packet;

/// The packets of one line, as they are compared.
pub(crate) struct Matching<'a> {
    expected: &'a Expected,
    /// Where the next packet must begin; `None`: anywhere.
    cursor: Option<i64>,
    packet_bytes: u16,
    packets: usize,
}

impl<'a> Matching<'a> {
    /// `segment_bytes`: text of a full segment.
    pub(crate) fn new(expected: &'a Expected, segment_bytes: u16) -> Self {
        Self {
            expected,
            cursor: expected.sequence.as_ref().map(|it| it.start),
            packet_bytes: expected.packet_bytes.unwrap_or(segment_bytes),
            packets: 0,
        }
    }

    /// Compares the next packet. Returns whether it was the last one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn take(&mut self, peer: &Peer, packet: &Packet) -> Result<bool, String> {
        let expected = self.expected;
        self.packets += 1;
        let sequence = peer.relative(packet.segment.sequence);
        if self.cursor.is_some_and(|wanted| wanted != sequence) {
            return Err(format!("the sequence number is {sequence}"));
        }
        compare_header(expected, peer, packet)?;
        compare_options(expected, peer, packet)?;
        self.compare_age(peer, packet)?;
        let is_last = self.compare_length(sequence, packet)?;
        let has_push = packet.segment.flags.contains(TcpFlags::PSH);
        if is_last && expected.push.is_some_and(|wanted| wanted != has_push) {
            return Err(format!("PSH is {}", set_or_not(has_push)));
        }
        if is_last
            && expected
                .packets
                .is_some_and(|wanted| wanted != self.packets)
        {
            return Err(format!("there are {} packets", self.packets));
        }
        Ok(is_last)
    }

    /// What a line does not call a retransmission must be new.
    fn compare_age(&self, peer: &Peer, packet: &Packet) -> Result<(), String> {
        if peer.numbers(packet).is_empty() {
            return Ok(());
        }
        match peer.was_sent(packet) {
            None => Err("some of it was sent before and some was not".to_owned()),
            Some(true) if !self.expected.is_retransmission => Err("it was sent before".to_owned()),
            Some(false) if self.expected.is_retransmission => {
                Err("it was not sent before".to_owned())
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether the packet ends the range.
    fn compare_length(&mut self, sequence: i64, packet: &Packet) -> Result<bool, String> {
        let bytes = packet.payload.len();
        let Some(range) = self.expected.sequence.as_ref() else {
            return if bytes == 0 {
                Ok(true)
            } else {
                Err(format!("it has {bytes} bytes of text"))
            };
        };
        let end = sequence + bytes as i64;
        if end > range.end {
            return Err(format!("its text ends at {end}"));
        }
        let is_last = end == range.end;
        if !is_last && bytes != usize::from(self.packet_bytes) {
            return Err(format!(
                "the packet at {sequence} has {bytes} bytes of text, not {}",
                self.packet_bytes
            ));
        }
        if bytes > usize::from(self.packet_bytes) {
            return Err(format!(
                "the packet at {sequence} has {bytes} bytes of text, more than {}",
                self.packet_bytes
            ));
        }
        self.cursor = Some(end);
        Ok(is_last)
    }
}

const fn set_or_not(is_set: bool) -> &'static str {
    if is_set { "set" } else { "not set" }
}

fn compare_header(expected: &Expected, peer: &Peer, packet: &Packet) -> Result<(), String> {
    let segment = &packet.segment;
    let bits = expected.bits;
    for (wanted, flag) in [
        (bits.syn, TcpFlags::SYN),
        (bits.fin, TcpFlags::FIN),
        (bits.rst, TcpFlags::RST),
        (bits.ece, TcpFlags::ECE),
        (bits.cwr, TcpFlags::CWR),
    ] {
        let is_set = segment.flags.contains(flag);
        if is_set != wanted {
            return Err(format!("{flag} is {}", set_or_not(is_set)));
        }
    }
    let has_ack = segment.flags.contains(TcpFlags::ACK);
    // Only a reset may have no acknowledgment: that of a segment which had one (RFC 9293 s3.10.7.1).
    if !has_ack && (!bits.rst || expected.ack.is_some()) {
        return Err("ACK is not set".to_owned());
    }
    let ack = peer.relative_ack(segment.acknowledgment);
    if has_ack && expected.ack.is_some_and(|wanted| wanted != ack) {
        return Err(format!("the acknowledgment is {ack}"));
    }
    if expected
        .window
        .is_some_and(|wanted| wanted != segment.window)
    {
        return Err(format!("the window is {}", segment.window));
    }
    if expected.ecn.is_some_and(|wanted| wanted != packet.ecn) {
        return Err(format!("the ECN field is {:?}", packet.ecn));
    }
    Ok(())
}

fn compare_options(expected: &Expected, peer: &Peer, packet: &Packet) -> Result<(), String> {
    let options = &packet.segment.options;
    option("MSS", expected.mss, options.mss)?;
    option("window scale", expected.scale, options.window_scale)?;
    let permitted = options.sack_permitted.then_some(());
    option("SACK permitted", expected.sack_permitted, permitted)?;
    let stamps = peer.stamps(packet);
    option("TSval", expected.stamp, stamps.map(|(value, _)| value))?;
    let echo = stamps.map(|(_, echo)| echo);
    if expected.echo.is_some() && expected.echo != echo {
        return Err(format!("TSecr is {echo:?}"));
    }
    Ok(())
}

fn option<T: PartialEq + core::fmt::Debug>(
    name: &str,
    wanted: Wanted<T>,
    seen: Option<T>,
) -> Result<(), String> {
    let is_right = match &wanted {
        Wanted::Any => true,
        Wanted::Absent => seen.is_none(),
        Wanted::Is(value) => seen.as_ref() == Some(value),
    };
    if is_right {
        Ok(())
    } else {
        Err(match seen {
            None => format!("the option {name} is absent"),
            Some(value) => format!("the option {name} is {value:?}"),
        })
    }
}

/// Describes packets; those that continue each other at one moment are one.
pub(crate) fn runs<'a>(
    peer: &Peer,
    packets: impl Iterator<Item = &'a Packet>,
) -> impl Iterator<Item = (Instant, String)> {
    let mut runs: Vec<(Instant, Range<i64>, usize, &Packet, bool)> = Vec::new();
    for packet in packets {
        let numbers = peer.numbers(packet);
        let was_sent = peer.was_sent(packet) == Some(true) && !numbers.is_empty();
        let control = TcpFlags::SYN.union(TcpFlags::FIN).union(TcpFlags::RST);
        let is_plain = !packet.segment.flags.intersects(control) && !packet.payload.is_empty();
        match runs.last_mut() {
            Some((at, range, count, last, repeated))
                if *at == packet.at
                    && is_plain
                    && !last.segment.flags.intersects(control)
                    && range.end == numbers.start
                    && !range.is_empty()
                    && *repeated == was_sent =>
            {
                range.end = numbers.end;
                *count += 1;
                *last = packet;
            }
            _ => runs.push((packet.at, numbers, 1, packet, was_sent)),
        }
    }
    let described: Vec<(Instant, String)> = runs
        .into_iter()
        .map(|(at, range, count, last, repeated)| {
            let mut text = describe(peer, last, &range);
            if repeated {
                text.push_str(" retrans");
            }
            if count > 1 {
                text.push_str(&format!(" packets {count}"));
            }
            (at, text)
        })
        .collect();
    described.into_iter()
}

/// A packet in the language of scripts, with the numbers of its whole run.
fn describe(peer: &Peer, packet: &Packet, numbers: &Range<i64>) -> String {
    let segment = &packet.segment;
    let mut text = flag_words(segment.flags);
    let control = i64::from(segment.flags.contains(TcpFlags::SYN))
        + i64::from(segment.flags.contains(TcpFlags::FIN));
    let end = numbers.end - control;
    if end > numbers.start {
        text.push_str(&format!("seq {}..{end}", numbers.start));
    } else {
        text.push_str(&format!("seq {}", numbers.start));
    }
    if segment.flags.contains(TcpFlags::ACK) {
        let ack = peer.relative_ack(segment.acknowledgment);
        text.push_str(&format!(" ack {ack}"));
    }
    text.push_str(&format!(" win {}", segment.window));
    if segment.flags.contains(TcpFlags::PSH) {
        text.push_str(" psh");
    }
    text.push_str(ecn_word(packet.ecn));
    if let Some(mss) = segment.options.mss {
        text.push_str(&format!(" mss {mss}"));
    }
    if let Some(scale) = segment.options.window_scale {
        text.push_str(&format!(" scale {scale}"));
    }
    if segment.options.sack_permitted {
        text.push_str(" sackok");
    }
    if let Some((value, echo)) = peer.stamps(packet) {
        text.push_str(&format!(" ts {value} ecr {echo}"));
    }
    text
}

/// The word for an ECN field; none for Not-ECT.
const fn ecn_word(ecn: Ecn) -> &'static str {
    match ecn {
        Ecn::NotEct => "",
        Ecn::Ect0 => " ect",
        Ecn::Ect1 => " (ECT 1)",
        Ecn::Ce => " ce",
    }
}

fn flag_words(flags: TcpFlags) -> String {
    let mut text = String::new();
    for (flag, word) in [
        (TcpFlags::SYN, "syn "),
        (TcpFlags::FIN, "fin "),
        (TcpFlags::RST, "rst "),
        (TcpFlags::ECE, "ece "),
        (TcpFlags::CWR, "cwr "),
    ] {
        if flags.contains(flag) {
            text.push_str(word);
        }
    }
    text
}

/// What the peer sends, in the language of scripts.
pub(crate) fn describe_sent(peer: &Peer, frame: &[u8]) -> String {
    let Ok(Incoming::Tcp {
        segment,
        ecn,
        payload,
        ..
    }) = wire::parse_frame(frame, ChecksumState::Unverified)
    else {
        return "a frame that cannot be parsed".to_owned();
    };
    let mut text = flag_words(segment.flags);
    let start = peer.relative_ack(segment.sequence);
    text.push_str(&format!("seq {start}"));
    if !payload.is_empty() {
        text.push_str(&format!("..{}", start + payload.len() as i64));
    }
    if segment.flags.contains(TcpFlags::ACK) {
        text.push_str(&format!(" ack {}", peer.relative(segment.acknowledgment)));
    }
    text.push_str(&format!(" win {} (raw)", segment.window));
    for (index, block) in segment.options.sack.as_slice().iter().enumerate() {
        text.push_str(if index == 0 { " sack " } else { "," });
        let (left, right) = (peer.relative(block.0), peer.relative(block.1));
        text.push_str(&format!("{left}..{right}"));
    }
    text.push_str(ecn_word(ecn));
    text
}

/// An answer of the disk, in the language of scripts.
pub(crate) fn describe_answer(answer: Answer, which: Option<&Range<u64>>) -> String {
    let mut text = match answer {
        Answer::Done => "disk = done".to_owned(),
        Answer::Failed => "disk = failed".to_owned(),
        Answer::Changed => "disk = changed".to_owned(),
        Answer::Short(bytes) => format!("disk = short {bytes}"),
    };
    if let Some(range) = which {
        text.push_str(&format!(" {}..{}", range.start, range.end));
    }
    text
}

/// A read, in the language of scripts.
pub(crate) fn describe_read(range: &Range<u64>) -> String {
    format!("read {}..{}", range.start, range.end)
}

/// What a line expects, completed by what goes without saying.
pub(crate) fn describe_expected(expected: &Expected) -> String {
    let Bits {
        syn,
        fin,
        rst,
        ece,
        cwr,
    } = expected.bits;
    let mut words: Vec<String> = Vec::new();
    for (is_set, word) in [
        (syn, "syn"),
        (fin, "fin"),
        (rst, "rst"),
        (ece, "ece"),
        (cwr, "cwr"),
    ] {
        if is_set {
            words.push(word.to_owned());
        }
    }
    let mut has_text = false;
    match &expected.sequence {
        Some(range) if range.is_empty() => words.push(format!("seq {}", range.start)),
        Some(range) => {
            has_text = true;
            words.push(format!("seq {}..{}", range.start, range.end));
        }
        None => {}
    }
    if let Some(ack) = expected.ack {
        words.push(format!("ack {ack}"));
    }
    if let Some(window) = expected.window {
        words.push(format!("win {window}"));
    }
    match expected.ecn {
        Some(Ecn::NotEct) => words.push("-ect".to_owned()),
        Some(ecn) => words.push(ecn_word(ecn).trim().to_owned()),
        None => {}
    }
    if expected.is_retransmission {
        words.push("retrans".to_owned());
    } else if has_text {
        words.push("(new)".to_owned());
    }
    words.join(" ")
}
