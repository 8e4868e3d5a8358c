//! Our addresses while the server runs: those of a host that come and go, and virtual ones.
//!
//! A **virtual address** is one that another station answers ARP and neighbour discovery for: a load balancer
//! that sends us the packets to it (direct server return), or a router that has a route to it (anycast). We
//! say nothing about it, since an answer or a question from it would take it from the other station. What is
//! sent from it goes to a gateway ([`Conductor::set_gateways`]), because the load balancer, where the
//! packets come from, takes none that are from its own address.
//!
//! Connections of an address that goes are reset: to its clients it is on another host now, or nowhere.

use core::net::IpAddr;

use clock::Instant;
use wire::MacAddress;

use super::Conductor;
use crate::address::Defense;

impl Conductor {
    /// Takes these addresses in place of those it had, which stay in the order of the caller. Returns how many
    /// connections are reset because their address is none of them; TIME-WAIT states expire as ever.
    pub fn set_addresses(&mut self, addresses: &[IpAddr], virtual_addresses: &[IpAddr]) -> usize {
        self.config.addresses = addresses.to_vec();
        self.config.virtual_addresses = virtual_addresses.to_vec();
        self.defense = Defense::new(addresses.len());
        let is_gone = |local: IpAddr| !addresses.contains(&local);
        self.connections
            .remove_half_opens(|it| is_gone(it.tuple().local.ip()));
        let before = self.outgoing.resets.len();
        for index in self.connections.clients.indexes() {
            let client = self.connections.clients.entry(index);
            let gone = client.filter(|client| is_gone(client.tcp.tuple().local.ip()));
            let token = gone.map(|client| client.token(index));
            self.outgoing.resets.extend(token);
        }
        self.outgoing.resets.len() - before
    }

    /// The gateways of our link, the best first, and their MAC addresses. Without one, what is sent from a
    /// virtual address goes where the packets to it come from.
    pub fn set_gateways(&mut self, now: Instant, gateways: &[(IpAddr, MacAddress)]) {
        for (address, from, to) in self.next_hops.gateways.set(gateways) {
            self.move_clients(now, address, from, to);
        }
    }

    pub(super) fn is_ours(&self, address: IpAddr) -> bool {
        self.config.addresses.contains(&address)
    }

    /// Whether we answer ARP or neighbour solicitations for this address of ours.
    pub(super) fn is_answered(&self, address: IpAddr) -> bool {
        self.is_ours(address) && !self.is_virtual(address)
    }

    pub(super) fn is_virtual(&self, address: IpAddr) -> bool {
        self.config.virtual_addresses.contains(&address)
    }
}
