//! Where frames to clients go when a station on our link is replaced by another ([`crate::next_hops`]).
//!
//! What one worker learns of a station, it tells the others by the road of strays: ARP and neighbour
//! discovery reach one of them only.

use core::net::IpAddr;

use clock::Instant;
use wire::{ArpRepr, Incoming, MacAddress, Path};

use super::Conductor;
use crate::next_hops::{ADDRESSES_ASKED_MAX, Learned, Question};

/// Retransmission timeouts in a row after which the next hop may have failed: one may be a lost tail.
const TIMEOUTS_UNTIL_ASKED: u32 = 2;

/// What a station said of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Statement {
    /// The address that it has.
    pub(super) address: IpAddr,
    /// Where it is.
    pub(super) mac: MacAddress,
    /// Whether it was said to one of our addresses, and not to all stations.
    pub(super) is_to_us: bool,
}

impl Conductor {
    /// Takes what ARP or a neighbour message says of its sender.
    pub(super) fn note_sender(&mut self, now: Instant, incoming: &Incoming<'_>) {
        let statement = match *incoming {
            Incoming::Arp(arp) => self.statement_of_arp(&arp),
            Incoming::NeighborAdvertisement {
                path,
                target,
                target_link,
                is_override,
            } => self.statement_of_advertisement(&path, target.into(), target_link, is_override),
            // RFC 4861 s7.2.3: the sender of a solicitation says where it is.
            Incoming::NeighborSolicitation {
                path,
                target,
                source_link: Some(mac),
            } if self.is_ours(IpAddr::V6(target)) => Some(Statement {
                address: path.source,
                mac,
                is_to_us: true,
            }),
            _ => None,
        };
        if let Some(statement) = statement {
            self.tell_predecessor(&statement);
            self.apply_statement(now, &statement);
        }
    }

    /// RFC 4861 s7.2.5: without the flag an advertisement changes no address that is known, but in answer to a
    /// question; and one without an address of the link says only that the station is there.
    fn statement_of_advertisement(
        &self,
        path: &Path,
        address: IpAddr,
        link_address: Option<MacAddress>,
        is_override: bool,
    ) -> Option<Statement> {
        let neighbors = &self.next_hops.neighbors;
        let is_to_us = self.is_ours(path.destination);
        let is_answer = is_to_us && neighbors.is_asked(address);
        let mac = link_address.unwrap_or(path.source_mac);
        let may_change = link_address.is_some() && (is_override || is_answer);
        (may_change || neighbors.is_at(address, mac)).then_some(Statement {
            address,
            mac,
            is_to_us,
        })
    }

    fn statement_of_arp(&self, arp: &ArpRepr) -> Option<Statement> {
        let (sender, target) = (arp.sender_address, arp.target_address);
        let is_to_us = self.is_ours(IpAddr::V4(target));
        // A probe says nothing of its sender; and another's question to another is not for us, although
        // RFC 826 would have us listen to it.
        let is_statement = !sender.is_unspecified() && (is_to_us || sender == target);
        is_statement.then_some(Statement {
            address: sender.into(),
            mac: arp.sender_mac,
            is_to_us,
        })
    }

    /// The same for what another worker was told.
    pub(super) fn apply_statement(&mut self, now: Instant, statement: &Statement) {
        let Statement {
            address,
            mac,
            is_to_us,
        } = *statement;
        // Who claims one of our addresses is a conflict; and a switch may send us our own frames.
        if self.is_ours(address) || mac == self.config.mac || !mac.is_station() {
            return;
        }
        let neighbors = &mut self.next_hops.neighbors;
        match neighbors.learn(now, address, mac, is_to_us) {
            Learned::Nothing => return,
            Learned::New | Learned::Confirmed => {}
            Learned::Moved(from) => self.move_clients(now, address, from, mac),
            Learned::Announced => self.try_announced(now, mac),
        }
        self.tell_other_workers(statement);
    }

    /// A station announced an address that we do not know. If it took over from a router that does not
    /// answer any more, frames that wait for the router go to it.
    fn try_announced(&mut self, now: Instant, mac: MacAddress) {
        for index in self.connections.indexes() {
            let other = self.other_next_hop(now, index);
            if other == Some(mac) {
                self.move_client(now, index, mac);
            }
        }
    }

    /// Where to send to a client instead, if what was sent to it was not answered [`TIMEOUTS_UNTIL_ASKED`]
    /// times in a row, or once if its next hop is gone, and another router may be the way. There is none to a
    /// client on our link.
    fn other_next_hop(&self, now: Instant, index: u32) -> Option<MacAddress> {
        let client = self.connections.clients.entry(index)?;
        let (peer, hop) = (client.route.destination, client.route.destination_mac);
        let is_gone = |mac| self.next_hops.is_gone(now, mac);
        let timeouts = client.tcp.timeouts_in_a_row();
        if timeouts < TIMEOUTS_UNTIL_ASKED && !(timeouts > 0 && is_gone(hop)) {
            return None;
        }
        if hop != client.heard_from && !is_gone(client.heard_from) {
            // It was a guess, and is not the way either.
            return Some(client.heard_from);
        }
        (!self.next_hops.neighbors.knows(peer))
            .then(|| self.next_hops.other_than(now, hop))
            .flatten()
    }

    /// The station that has `address` is at another MAC address now. The frames of its own connections
    /// follow, and those of clients behind it, whose addresses are on no station of our link.
    pub(super) fn move_clients(
        &mut self,
        now: Instant,
        address: IpAddr,
        from: MacAddress,
        to: MacAddress,
    ) {
        for index in self.connections.indexes() {
            let Some(client) = self.connections.clients.entry(index) else {
                continue;
            };
            let peer = client.route.destination;
            let is_behind =
                || peer.is_ipv4() == address.is_ipv4() && !self.next_hops.neighbors.knows(peer);
            let (hop, heard_from) = (client.route.destination_mac, client.heard_from);
            if ![hop, heard_from].contains(&from) || !(peer == address || is_behind()) {
                continue;
            }
            if hop == from {
                self.move_client(now, index, to);
            }
            // Also if its frames went to a guess meanwhile: nothing goes back to where the address was.
            if heard_from == from
                && let Some(client) = self.connections.clients.entry_mut(index)
            {
                client.heard_from = to;
            }
        }
    }

    /// Sends the frames of a client to another station from now on.
    fn move_client(&mut self, now: Instant, index: u32, to: MacAddress) {
        let Some(client) = self.connections.clients.entry_mut(index) else {
            return;
        };
        client.route.destination_mac = to;
        client.tcp.on_next_hop_changed(now);
        self.telemetry.counters.tcp_next_hop_change_count += 1;
        self.update_queues_and_timers(now, index);
    }

    /// A retransmission of a client's was not answered in time. If that happened
    /// [`TIMEOUTS_UNTIL_ASKED`] times in a row, the station that its frames go to may be gone: it is asked
    /// for, and another router that brings segments is tried meanwhile.
    pub(super) fn doubt_next_hop(&mut self, now: Instant, index: u32) {
        let Some(client) = self.connections.clients.entry(index) else {
            return;
        };
        let route = client.route;
        let is_doubted = client.tcp.timeouts_in_a_row() >= TIMEOUTS_UNTIL_ASKED;
        // A question from a virtual address would claim it.
        if is_doubted && !self.is_virtual(route.source) {
            let neighbors = &mut self.next_hops.neighbors;
            let mut asked = [None; ADDRESSES_ASKED_MAX];
            let questions = neighbors.ask(now, route.destination_mac, route.source);
            for (place, question) in asked.iter_mut().zip(questions) {
                *place = Some(question);
            }
            asked
                .into_iter()
                .flatten()
                .for_each(|it| self.send_question(it));
        }
        if let Some(other) = self.other_next_hop(now, index) {
            self.move_client(now, index, other);
        }
    }

    /// Repeats the questions that were not answered in time.
    pub(super) fn ask_again(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        while is_due(self.next_hops.neighbors.ask_again_at) {
            let question = self.next_hops.neighbors.ask_again(now);
            // The address that asked may have become another's.
            if let Some(question) = question.filter(|it| self.is_answered(it.from)) {
                self.send_question(question);
            }
        }
    }

    fn send_question(&mut self, question: Question) {
        self.telemetry.counters.wire_neighbor_request_frames += 1;
        let mac = self.config.mac;
        self.answer_short(|buffer| match (question.from, question.address) {
            (IpAddr::V4(ours), IpAddr::V4(address)) => {
                wire::emit_arp_request(buffer, mac, ours, address)
            }
            (IpAddr::V6(ours), IpAddr::V6(address)) => {
                wire::emit_neighbor_solicitation(buffer, mac, ours, address)
            }
            (ours, address) => unreachable!("{ours} and {address} are of one family"),
        });
    }
}
