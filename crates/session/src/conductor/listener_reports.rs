//! Multicast listener reports (RFC 3810): that the solicited-node groups of our IPv6 addresses are wanted.
//! A switch that snoops on reports and has heard none passes no neighbour solicitation to us.
//!
//! Reports are sent with each announcement of our addresses, and after a random part of the time that a
//! query leaves. Queries that come before the answer was sent get the same answer.

use core::net::{IpAddr, Ipv6Addr};

use clock::{Duration, Instant};
use wire::ListenerReport;
use wire::icmpv6::solicited_node;

use super::Conductor;

/// Reports that are due.
#[derive(Debug, Default)]
pub(super) struct ListenerReports {
    /// When to answer the queries that came.
    pub(super) due: Option<Instant>,
    /// Queries that set the time, for its random part.
    queries: usize,
}

impl Conductor {
    /// A query for `group`, unspecified for all groups.
    pub(super) fn handle_listener_query(
        &mut self,
        now: Instant,
        group: Ipv6Addr,
        response_time_max: Duration,
    ) {
        let is_wanted = |address: &IpAddr| match address {
            IpAddr::V6(of_group) => {
                let is_asked = group.is_unspecified() || group == solicited_node(*of_group);
                is_asked && !self.is_virtual(*address)
            }
            IpAddr::V4(_) => false,
        };
        if !self.config.are_addresses_announced || !self.config.addresses.iter().any(is_wanted) {
            self.telemetry.counters.wire_foreign_frames += 1;
            return;
        }
        let reports = &mut self.listener_reports;
        if reports.due.is_none() {
            // Of 256 equal parts, one byte's worth of the seed: hosts differ in it, and that is all it is for.
            let seed = &self.config.seed;
            let part = seed[reports.queries % seed.len()];
            reports.queries += 1;
            reports.due = Some(now + response_time_max * u32::from(part) / 256);
        }
    }

    /// Answers queries whose time has come.
    pub(super) fn send_due_listener_reports(&mut self, now: Instant) {
        if self.listener_reports.due.is_some_and(|due| due <= now) {
            self.listener_reports.due = None;
            for place in 0..self.config.addresses.len() {
                self.report_listener(place, ListenerReport::Current);
            }
        }
    }

    /// Reports the group of the address at this index, if it is an IPv6 address.
    pub(super) fn report_listener(&mut self, place: usize, report: ListenerReport) {
        let addresses = &self.config.addresses;
        let Some(&IpAddr::V6(address)) = addresses.get(place) else {
            return;
        };
        if self.is_virtual(address.into()) {
            return;
        }
        let link_local = addresses.iter().find_map(|address| match address {
            IpAddr::V6(address) if address.is_unicast_link_local() => Some(*address),
            _ => None,
        });
        let (mac, source) = (self.config.mac, link_local.unwrap_or(Ipv6Addr::UNSPECIFIED));
        let group = solicited_node(address);
        self.answer_short(|buffer| wire::emit_listener_report(buffer, mac, source, group, report));
    }
}
