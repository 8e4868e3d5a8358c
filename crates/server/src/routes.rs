//! Which interface the host's default route leaves by, as the kernel's tables in `/proc/net` tell.
//!
//! It refuses lines that it can't read, silently: they are no default route. Bounded by the tables.

use std::fs;

/// The interface of the host's default route: IPv4 before IPv6, the smallest metric first. `None` if
/// there is none.
pub(crate) fn default_route_interface() -> Option<String> {
    let read = |name: &str| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let v4 = default_route(&read("route"), &V4_ROUTES);
    v4.or_else(|| default_route(&read("ipv6_route"), &V6_ROUTES))
}

/// Where a table of routes of the kernel's has what; columns from 0.
struct RouteColumns {
    destination: usize,
    /// The netmask in IPv4, the length of the prefix in IPv6: zeros for a default route.
    prefix: usize,
    metric: usize,
    metric_radix: u32,
    flags: usize,
    interface: usize,
}

const V4_ROUTES: RouteColumns = RouteColumns {
    destination: 1,
    prefix: 7,
    metric: 6,
    metric_radix: 10,
    flags: 3,
    interface: 0,
};
const V6_ROUTES: RouteColumns = RouteColumns {
    destination: 0,
    prefix: 1,
    metric: 5,
    metric_radix: 16,
    flags: 8,
    interface: 9,
};

/// `RTF_UP`, and `RTF_REJECT`, which the unreachable default route of IPv6 has.
const ROUTE_IS_UP: u32 = 0x1;
const ROUTE_REJECTS: u32 = 0x200;

fn default_route(table: &str, columns: &RouteColumns) -> Option<String> {
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
        let name = (*words.get(columns.interface)?).to_owned();
        (is_usable && is_default).then_some((metric, name))
    };
    let defaults = table.lines().filter_map(parse);
    defaults
        .min_by_key(|(metric, _)| *metric)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::{V4_ROUTES, V6_ROUTES, default_route};

    #[test]
    fn the_default_route_with_the_smallest_metric_counts() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
            eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n\
            eth1\t00000000\t0100A8C0\t0003\t0\t0\t600\t00000000\t0\n\
            eth2\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\n\
            eth3\t00000000\t0100A8C0\t0002\t0\t0\t50\t00000000\t0\n\
            tun0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000080\t0\n";
        assert_eq!(default_route(v4, &V4_ROUTES).as_deref(), Some("eth2"));
        let zero = "00000000000000000000000000000000";
        let gateway = "fe800000000000000000000000000001";
        let v6 = format!(
            "fd770000000000000000000000000000 40 {zero} 00 {zero} 00000100 1 0 00000001 eth0\n\
             {zero} 00 {zero} 00 {gateway} 00000400 1 0 00000003 eth1\n\
             {zero} 00 {zero} 00 {gateway} 000000ff 1 0 00000003 eth2\n\
             {zero} 00 {zero} 00 {zero} 00000001 1 0 00200200 lo\n"
        );
        assert_eq!(default_route(&v6, &V6_ROUTES).as_deref(), Some("eth2"));
        assert_eq!(default_route("", &V6_ROUTES), None);
        assert_eq!(default_route("eth0 x\n", &V4_ROUTES), None);
    }
}
