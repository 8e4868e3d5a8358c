//! What a connection does over TLS that it does not do without: the handshake, records in, records out.
//!
//! It refuses what [`super::tls`] refuses. Bounds: those of [`super::tls`], and what was sent and is
//! not acknowledged.

use clock::Instant;
use wire::TcpFlags;

use crate::filter::SEEN_BYTES;

use super::reply::{Piece, Reply};
use super::tls::{Followed, Found, Handshake, Opened, Stage, Tls};
use super::{Connection, Event, Fault, State, TlsFault, Transmit, World};

/// Most bytes of text in a segment.
const TEXT_BYTES_MAX: usize = 1400;

impl Connection {
    /// Sends the first flight of a handshake.
    pub(super) fn begin_handshake(
        &mut self,
        now: Instant,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        self.state = State::Handshaking;
        world.follow(self.receive_next);
        let mut flight = Vec::new();
        let handshake = world.tls().map(|tls| Handshake::new(tls, &mut flight));
        let handshake = match handshake {
            Some(Ok(handshake)) => handshake,
            Some(Err((fault, text))) => {
                world.explain(text);
                return Err(fault);
            }
            None => return Err(Fault::Tls(TlsFault::Handshake)),
        };
        let mut tls = Box::new(Tls {
            unacknowledged: Vec::new(),
            stage: Stage::Handshake(Box::new(handshake)),
        });
        self.send_sealed(now, &flight, None, &mut tls, world);
        self.tls = Some(tls);
        Ok(())
    }

    /// Takes bytes of TLS.
    pub(super) fn consume_records(
        &mut self,
        now: Instant,
        piece: Piece<'_>,
        tls: &mut Tls,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let is_whole = piece.seen.len() == usize::try_from(piece.bytes).unwrap_or(usize::MAX);
        match &mut tls.stage {
            Stage::Over => Err(Fault::Tls(TlsFault::Handshake)),
            Stage::Handshake(_) if !is_whole => Err(Fault::Tls(TlsFault::Unseen)),
            Stage::Handshake(_) => self.consume_handshake(now, piece.seen, tls, world),
            Stage::Followed(keys, followed) => {
                if !matches!(self.reply, Reply::Body { .. }) {
                    let is_asked = matches!(self.reply, Reply::Head(_));
                    let found = followed.take_head(keys, piece, is_asked)?;
                    if matches!(found, Found::Begun | Found::Head(_, true)) {
                        world.on(Event::FirstByte(now.since(self.asked_at)));
                    }
                    let Found::Head(head, _) = found else {
                        return Ok(());
                    };
                    self.take_head(head, world)?;
                    world.shorten(self.receive_next);
                }
                let progress = followed.count(keys, world.watched(), self.receive_next)?;
                if progress.has_alert {
                    self.state = State::Closing;
                }
                world.on(Event::Records(progress.records));
                let Reply::Body { left_bytes, .. } = self.reply else {
                    return Ok(());
                };
                // All that is left, or one byte less at most.
                let most = left_bytes - u64::from(!progress.is_complete).min(left_bytes);
                let bytes = if progress.is_complete {
                    left_bytes
                } else {
                    progress.body_bytes
                };
                if left_bytes > 0 || progress.is_complete {
                    self.consume_body(now, bytes.min(most), world)?;
                }
                Ok(())
            }
            Stage::Opened(..) if !is_whole => Err(Fault::Tls(TlsFault::Unseen)),
            Stage::Opened(keys, opened) => {
                opened.take(piece.seen);
                while let Some(text) = opened.next(keys)? {
                    world.on(Event::Records(1));
                    let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
                    self.compare(0, &text, world)?;
                    self.consume_text(now, Piece { bytes, seen: &text }, world)?;
                }
                Ok(())
            }
        }
    }

    fn consume_handshake(
        &mut self,
        now: Instant,
        bytes: &[u8],
        tls: &mut Tls,
        world: &mut impl World,
    ) -> Result<(), Fault> {
        let Stage::Handshake(handshake) = &mut tls.stage else {
            return Ok(());
        };
        let mut flight = Vec::new();
        let outcome = handshake.take(bytes, &mut flight);
        self.send_sealed(now, &flight, None, tls, world);
        let mut explain = |(fault, text)| {
            world.explain(text);
            fault
        };
        let is_over = outcome.map_err(&mut explain)?;
        if !is_over {
            return Ok(());
        }
        let Stage::Handshake(handshake) = std::mem::replace(&mut tls.stage, Stage::Over) else {
            return Ok(());
        };
        let finished = handshake.finish();
        let (keys, records, rest) = finished.map_err(explain)?;
        let rest_bytes = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let base = self.receive_next.wrapping_add(rest_bytes.wrapping_neg());
        tls.stage = if self.is_sampled {
            Stage::Opened(keys, Opened::default())
        } else {
            Stage::Followed(keys, Followed::new(base, records))
        };
        self.state = State::Established;
        world.on(Event::Secured);
        let piece = Piece {
            bytes: rest_bytes,
            seen: &rest,
        };
        self.consume_records(now, piece, tls, world)
    }

    /// Before a request that is not the first: chooses whether the reply's frames come whole and its records are opened, or
    /// its records are followed by their headers.
    pub(super) fn choose_frames(&self, tls: &mut Tls, world: &mut impl World) {
        let is_whole = self.is_sampled && world.is_reply_whole(self.replies);
        let stage = std::mem::replace(&mut tls.stage, Stage::Over);
        tls.stage = match stage {
            Stage::Followed(keys, followed) if is_whole && !followed.has_kept() => {
                world.lengthen();
                Stage::Opened(keys, Opened::default())
            }
            Stage::Opened(keys, opened) if !is_whole && !opened.has_kept() => {
                let watched = world.watched();
                // A record that the program has counted and that was not read yet is opened first.
                if watched.lost.is_none() && watched.next_header == self.receive_next {
                    Stage::Followed(keys, Followed::new(self.receive_next, watched.records))
                } else {
                    Stage::Opened(keys, opened)
                }
            }
            other => other,
        };
        if matches!(tls.stage, Stage::Followed(..)) {
            world.shorten(self.receive_next.wrapping_add(SEEN_BYTES));
        }
    }

    /// Sends records, and keeps them until they are acknowledged.
    pub(super) fn send_sealed(
        &mut self,
        now: Instant,
        bytes: &[u8],
        request: Option<u32>,
        tls: &mut Tls,
        world: &mut impl World,
    ) {
        if bytes.is_empty() {
            return;
        }
        for text in bytes.chunks(TEXT_BYTES_MAX) {
            let transmit = self.segment(now, TcpFlags::ACK.union(TcpFlags::PSH));
            world.send(Transmit {
                request,
                sealed: Some(text.into()),
                ..transmit
            });
            let sent = u32::try_from(text.len()).unwrap_or(0);
            self.send_next = self.send_next.wrapping_add(sent);
        }
        tls.unacknowledged.extend_from_slice(bytes);
        self.expect_answer(now, 1);
    }
}
