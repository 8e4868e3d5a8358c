//! `allow` and `deny`: the networks whose clients are served. It refuses a list without networks, since
//! nobody can say what an empty `allow` was meant to be, and networks with host bits, of which one or the other
//! part is a mistake.

use std::fmt;
use std::net::IpAddr;

use sites::networks::{NETWORKS_MAX, Network, NetworkProblem, SourceFilter};

use super::{FileConfig, Keys, table};
use crate::failure::Failure;

pub(super) fn resolve_sources(keys: &Keys, file: &mut FileConfig) -> Result<SourceFilter, Failure> {
    let allowed = resolve_list(file.allow.take(), &keys.origin(&table::ALLOW))?;
    let denied = resolve_list(file.deny.take(), &keys.origin(&table::DENY))?;
    Ok(SourceFilter::new(
        allowed.as_deref(),
        &denied.unwrap_or_default(),
    ))
}

pub(super) fn resolve_list(
    texts: Option<Vec<String>>,
    origin: &dyn fmt::Display,
) -> Result<Option<Vec<Network>>, Failure> {
    let Some(texts) = texts else {
        return Ok(None);
    };
    if !(1..=NETWORKS_MAX).contains(&texts.len()) {
        return Err(Failure::refused(
            format!("{origin}: {} networks", texts.len()),
            format!("name 1 to {NETWORKS_MAX}, or leave it out"),
        ));
    }
    let networks = texts.iter().map(|text| parse_network(text, origin));
    networks.collect::<Result<_, _>>().map(Some)
}

/// `ADDRESS/BITS`, or an address alone.
fn parse_network(text: &str, origin: &dyn fmt::Display) -> Result<Network, Failure> {
    let refuse = |problem: &str, remedy: String| {
        Failure::refused(format!("{origin} {text}: {problem}"), remedy)
    };
    let syntax = || {
        refuse(
            "not a network",
            "write it like 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7".to_owned(),
        )
    };
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| syntax())?;
    let Some(bits) = bits else {
        return Ok(Network::of_address(address));
    };
    // `u8::from_str` would take "+24", which no other tool prints or accepts.
    if bits.is_empty() || !bits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(syntax());
    }
    // What is too large for a number of bits is too large for a prefix.
    let bits = bits.parse().unwrap_or(u8::MAX);
    Network::new(address, bits).map_err(|problem| match problem {
        NetworkProblem::PrefixRange => {
            let most = if address.is_ipv4() { 32 } else { 128 };
            refuse(
                "the prefix length is out of range",
                format!("use 0 to {most}"),
            )
        }
        NetworkProblem::HostBits(network) => refuse(
            "the address has bits behind the prefix",
            format!("write {network} for the network, or {address} for the address"),
        ),
    })
}
