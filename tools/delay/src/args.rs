//! The command line of `atlas-bench delay`.

use clap::Args;
use clock::Duration;

use crate::bands::Bands;
use crate::middlebox::Config;

/// What follows `atlas-bench delay --help`.
const NOTES: &str = "\
Examples:
On the client's end of a veth pair (c0), in its network namespace; the server's end is not touched:
  ip link add hold0 type veth peer name hold1
  ip link set hold0 arp off up && ip link set hold1 arp off up
  tc qdisc add dev c0 clsact
  tc filter add dev c0 egress protocol all u32 match u32 0 0 \\
    action mirred egress redirect dev hold0
  atlas-bench delay --from hold1 --to c0
All that leaves c0 is redirected to hold1, held, and sent out of c0 past the filter. With the
filter in place, nothing leaves c0 while atlas-bench delay is not running; this removes the filter:
  tc qdisc del dev c0 clsact
Make hold0 and hold1 with the MTU of c0, and IPv6 off (net.ipv6.conf.hold0.disable_ipv6=1).

On a veth pair, have the server's end (s0) hand its frames to the server's core (MASK), as a NIC
would; or else the server's kernel works on them in the time of atlas-bench delay:
  echo MASK > /sys/class/net/s0/queues/rx-0/rps_cpus

Between two links, in0 to the clients and out0 to the server, neither with an address:
  tc qdisc add dev out0 ingress
  tc filter add dev out0 parent ffff: protocol all u32 match u32 0 0 \\
    action mirred egress redirect dev in0
  atlas-bench delay --from in0 --to out0
or for small rates, without tc: atlas-bench delay --from in0 --to out0 --both-ways

Output:
  stderr  one line when frames begin to pass: ready from=... to=... bands=... seed=...
  stdout  the report at the end (SIGINT, SIGTERM, --seconds)

Rights: CAP_NET_RAW; CAP_NET_ADMIN for larger buffers; CAP_SYS_NICE for --realtime.";

/// Holds what clients send, each flow for a constant time
///
/// Between two interfaces, from one to the other: each flow (addresses, protocol, ports) is given
/// one of the bands by a hash, and each of its frames is held for just that time. Order is kept
/// inside a flow. What has no flow, like ARP, passes at once.
#[derive(Args, Clone, Debug)]
#[command(after_help = NOTES)]
pub struct DelayArgs {
    /// Interface that the clients' frames arrive on
    #[arg(long, value_name = "IFACE")]
    pub from: String,

    /// Interface they leave by, to the server
    #[arg(long, value_name = "IFACE")]
    pub to: String,

    /// Delays in milliseconds: 20, or 10,20,40, or LOW-HIGH, or LOW-HIGH/STEP (step 1 unless said)
    #[arg(long, value_name = "MS", default_value = "10-40")]
    pub bands: Bands,

    /// Decides which flow has which band, which frames are lost, and which are overtaken
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Frames lost, in thousandths
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub loss: u16,

    /// Frames held for longer than their flow's others, which overtake them, in thousandths
    #[arg(long, value_name = "PERMILLE", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub reorder: u16,

    /// How much longer those are held
    #[arg(long, value_name = "MS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub reorder_by: u64,

    /// Most memory for the frames of one band; what exceeds it is dropped
    #[arg(long, value_name = "MIB", default_value_t = 16,
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub band_mib: u64,

    /// Least time from one busy round to the next: frames leave up to that much later than wanted
    #[arg(long, value_name = "US", default_value_t = 200,
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub round_us: u64,

    /// Pass the other direction on as well, at once
    #[arg(long)]
    pub both_ways: bool,

    /// Send through the queueing discipline and tc filters of the interface
    ///
    /// Not where such a filter is what turns the frames aside: they would go round in a circle.
    /// Needed for a device that cannot cut large TCP frames itself.
    #[arg(long)]
    pub qdisc: bool,

    /// Run before every ordinary process of the core, whenever a frame is due
    ///
    /// Where the core is shared with a busy client, frames otherwise leave milliseconds late now
    /// and then (the report says). Needs CAP_SYS_NICE.
    #[arg(long)]
    pub realtime: bool,

    /// End after this many seconds
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,

    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

impl DelayArgs {
    /// What the direction from the clients does.
    pub(crate) fn config(&self) -> Config {
        Config {
            bands: self.bands.clone(),
            seed: self.seed,
            loss_permille: self.loss,
            reorder_permille: self.reorder,
            reorder_by: Duration::from_millis(self.reorder_by),
            band_bytes_max: self.band_mib << 20,
        }
    }
}
