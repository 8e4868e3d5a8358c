//! Ethernet interfaces: what a link on each can do.

use link::InterfaceOffers;

use super::Finding;
use super::tree::Tree;

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let names = tree.names("sys/class/net");
    // Others, such as loopback and tunnels, have no Ethernet frames.
    let offers = names.into_iter().filter_map(|name| {
        let offers = link::interface_offers(&name).ok()?;
        Some(finding(&name, &offers))
    });
    offers.collect()
}

fn finding(name: &str, offers: &InterfaceOffers) -> Finding {
    let driver = offers.driver.as_deref().unwrap_or("no driver's name");
    let queues = offers.receive_queues;
    let queues = queues.map_or_else(|| "?".to_owned(), |queues| queues.to_string());
    let found = format!(
        "{driver}, MTU {}, receive queues: {queues}; {}",
        offers.mtu_bytes,
        match (offers.segments_tcp, offers.tells_when_read) {
            (true, true) =>
                "segments TCP and takes frames from slots: --link packet: or xdp+packet:",
            (true, false) =>
                "segments TCP; frames are copied, as its driver may release them early",
            (false, _) => "does not segment TCP",
        }
    );
    if offers.segments_tcp {
        return Finding::good(name, found);
    }
    Finding::less(
        name,
        found,
        format!("ethtool -K {name} tso on, if the device can"),
    )
}

#[cfg(test)]
mod tests {
    use link::InterfaceOffers;

    use super::super::Verdict;
    use super::finding;

    #[test]
    fn an_interface_that_does_not_segment_is_told_how_it_may() {
        let offers = InterfaceOffers {
            driver: Some("ice".to_owned()),
            mtu_bytes: 1500,
            segments_tcp: true,
            tells_when_read: true,
            receive_queues: Some(16),
        };
        let good = finding("eth0", &offers);
        assert_eq!(good.verdict, Verdict::Good);
        assert!(
            good.found
                .starts_with("ice, MTU 1500, receive queues: 16; segments TCP and")
        );
        let less = finding(
            "eth1",
            &InterfaceOffers {
                segments_tcp: false,
                receive_queues: None,
                ..offers
            },
        );
        assert_eq!(less.verdict, Verdict::Less);
        assert!(less.found.contains("queues: ?"), "{less:?}");
        assert!(less.remedy.unwrap().contains("ethtool -K eth1 tso on"));
    }
}
