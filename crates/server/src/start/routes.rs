//! Which interface the host's default route leaves by, and to which gateways, as the kernel's tables in
//! `/proc/net` tell.
//!
//! It refuses lines that it can't read, silently: they are no default route. A kernel without a family has no
//! table of it. Bounded by the tables.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The interface of the host's default route: IPv4 before IPv6, the smallest metric first. `None` if
/// there is none.
pub(crate) fn default_route_interface() -> Option<String> {
    let best = |columns: &RouteColumns| {
        let table = read(columns).unwrap_or_default();
        default_routes(&table, columns).into_iter().next()
    };
    let best = best(&V4_ROUTES).or_else(|| best(&V6_ROUTES));
    best.map(|route| route.interface)
}

/// The gateways of the default routes that leave by an interface, in each family the smallest metric first.
///
/// # Errors
/// What the kernel said.
pub(crate) fn gateways(interface: &str) -> io::Result<Vec<IpAddr>> {
    let mut routes = default_routes(&read(&V4_ROUTES)?, &V4_ROUTES);
    routes.extend(default_routes(&read(&V6_ROUTES)?, &V6_ROUTES));
    let routes = routes.iter().filter(|it| it.interface == interface);
    Ok(routes.filter_map(|route| route.gateway).collect())
}

fn read(columns: &RouteColumns) -> io::Result<String> {
    match fs::read_to_string(format!("/proc/net/{}", columns.file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        outcome => outcome,
    }
}

/// A default route.
#[derive(Debug)]
struct DefaultRoute {
    metric: u32,
    interface: String,
    gateway: Option<IpAddr>,
}

/// Where a table of routes of the kernel's has what; columns from 0.
struct RouteColumns {
    file: &'static str,
    destination: usize,
    /// The netmask in IPv4, the length of the prefix in IPv6: zeros for a default route.
    prefix: usize,
    metric: usize,
    metric_radix: u32,
    flags: usize,
    interface: usize,
    gateway: usize,
}

const V4_ROUTES: RouteColumns = RouteColumns {
    file: "route",
    destination: 1,
    prefix: 7,
    metric: 6,
    metric_radix: 10,
    flags: 3,
    interface: 0,
    gateway: 2,
};
const V6_ROUTES: RouteColumns = RouteColumns {
    file: "ipv6_route",
    destination: 0,
    prefix: 1,
    metric: 5,
    metric_radix: 16,
    flags: 8,
    interface: 9,
    gateway: 4,
};

/// `RTF_UP`, and `RTF_REJECT`, which the unreachable default route of IPv6 has.
const ROUTE_IS_UP: u32 = 0x1;
const ROUTE_REJECTS: u32 = 0x200;

/// The default routes of a table, the smallest metric first.
fn default_routes(table: &str, columns: &RouteColumns) -> Vec<DefaultRoute> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_zero = |column: usize| {
            let word = words.get(column)?;
            Some(word.bytes().all(|digit| digit == b'0'))
        };
        let flags = u32::from_str_radix(words.get(columns.flags)?, 16).ok()?;
        let metric = u32::from_str_radix(words.get(columns.metric)?, columns.metric_radix).ok()?;
        let is_usable = flags & ROUTE_IS_UP != 0 && flags & ROUTE_REJECTS == 0;
        let is_default = is_zero(columns.destination)? && is_zero(columns.prefix)?;
        let route = DefaultRoute {
            metric,
            interface: (*words.get(columns.interface)?).to_owned(),
            gateway: words
                .get(columns.gateway)
                .and_then(|word| parse_gateway(word)),
        };
        (is_usable && is_default).then_some(route)
    };
    let mut routes: Vec<DefaultRoute> = table.lines().filter_map(parse).collect();
    routes.sort_by_key(|route| route.metric);
    routes
}

/// An address in hexadecimal digits: of IPv4 a word of the machine's byte order. `None` also for zeros, which a
/// route without a gateway has.
fn parse_gateway(digits: &str) -> Option<IpAddr> {
    let address = if digits.len() == 8 {
        let word = u32::from_str_radix(digits, 16).ok()?;
        IpAddr::V4(Ipv4Addr::from(word.to_ne_bytes()))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(u128::from_str_radix(digits, 16).ok()?))
    };
    (!address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::{RouteColumns, V4_ROUTES, V6_ROUTES, default_routes, parse_gateway};

    /// The interface of the best default route.
    fn default_route(table: &str, columns: &RouteColumns) -> Option<String> {
        let mut routes = default_routes(table, columns).into_iter();
        routes.next().map(|route| route.interface)
    }

    #[test]
    fn the_default_route_with_the_smallest_metric_counts() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
            eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n\
            eth1\t00000000\t0100A8C0\t0003\t0\t0\t600\t00000000\t0\n\
            eth2\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\n\
            eth3\t00000000\t0100A8C0\t0002\t0\t0\t50\t00000000\t0\n\
            tun0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000080\t0\n";
        assert_eq!(default_route(v4, &V4_ROUTES).as_deref(), Some("eth2"));
        if cfg!(target_endian = "little") {
            let gateway = default_routes(v4, &V4_ROUTES)[0].gateway;
            assert_eq!(gateway, Some([192, 168, 0, 1].into()));
        }
        let zero = "00000000000000000000000000000000";
        let gateway = "fe800000000000000000000000000001";
        let v6 = format!(
            "fd770000000000000000000000000000 40 {zero} 00 {zero} 00000100 1 0 00000001 eth0\n\
             {zero} 00 {zero} 00 {gateway} 00000400 1 0 00000003 eth1\n\
             {zero} 00 {zero} 00 {gateway} 000000ff 1 0 00000003 eth2\n\
             {zero} 00 {zero} 00 {zero} 00000001 1 0 00200200 lo\n"
        );
        assert_eq!(default_route(&v6, &V6_ROUTES).as_deref(), Some("eth2"));
        let best = &default_routes(&v6, &V6_ROUTES)[0];
        assert_eq!(best.gateway.unwrap().to_string(), "fe80::1");
        assert_eq!(parse_gateway(zero), None);
        assert_eq!(parse_gateway("00000000"), None);
        assert_eq!(parse_gateway("x"), None);
        assert_eq!(default_route("", &V6_ROUTES), None);
        assert_eq!(default_route("eth0 x\n", &V4_ROUTES), None);
    }
}
