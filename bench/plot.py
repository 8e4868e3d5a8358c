#!/usr/bin/env python3
"""Draws the figures out of the JSON of `cargo xtask bench figures`.

Usage: plot.py REPORT.json DIRECTORY

Each plot is written as SVG and PNG, and stands beside the paper's figure of the same number.
Points are medians of the rounds, bars the 95 % confidence interval of the mean; one round has
none. A plot with no point is drawn empty and says so.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# The same look for a server in every plot, whatever else is in the run.
LOOKS = {
    "atlas": ("#c0392b", "o"),
    "atlas-emulated": ("#e67e22", "s"),
    "nginx-sendfile": ("#7fb3d5", "^"),
    "nginx-sendfile-threads": ("#1f4e79", "v"),
    "nginx-directio": ("#76d7c4", "<"),
    "nginx-directio-threads": ("#117a65", ">"),
    "h2o": ("#8e44ad", "D"),
    "lighttpd": ("#7d6608", "P"),
}
STRANGER = ("#566573", "x")

# What the figures show: how they are measured, and what is read off the axis.
THROUGHPUT = ("gbps", 1.0, "Gb/s of bodies")
CPU = ("server_core_busy", 100.0, "server's core busy, %")
CACHES = [("cold", "0 % BC (from disk)"), ("warm", "100 % BC (from cache)")]

# What the paper says of its own machine, to be seen under each plot.
PAPER = {
    "figure-1": "Paper (8 cores, 2 x 40 GbE): from SSD stock 39, Netflix 72 Gb/s",
    "figure-2": "Paper: Netflix 47 Gb/s at 0 % BC, ~68 at 100 % BC, CPU full",
    "figure-11a": "Paper: Atlas ~73 Gb/s on 4 cores, Netflix up to the same on 8",
    "figure-11b": "Paper: Atlas' 4 cores against Netflix' 8",
    "figure-13a": "Paper: Atlas ~72 Gb/s on 4 cores, Netflix 47 (0 % BC) on 8",
    "figure-13b": "Paper: Atlas' 4 cores against Netflix' 8",
}


def look(server):
    return LOOKS.get(server, STRANGER)


def spread(points, figure, scale):
    """Medians, and how far the ends of the confidence intervals are from them."""
    medians, below, above = [], [], []
    for point in points:
        it = point[figure]
        half = it["confidence_95"] or 0.0
        mean = it["mean"] if half else it["median"]
        medians.append(scale * it["median"])
        below.append(scale * max(0.0, it["median"] - (mean - half)))
        above.append(scale * max(0.0, mean + half - it["median"]))
    return medians, [below, above]


def by_cache(axes, points, servers, figure, connections):
    """Groups of bars: one group for each cache, one bar for each server."""
    name, scale, label = figure
    width = 0.8 / max(len(servers), 1)
    for group, (cache, _) in enumerate(CACHES):
        own = [p for p in points if p["connections"] == connections and p["cache"] == cache]
        own.sort(key=lambda p: servers.index(p["server"]))
        medians, errors = spread(own, name, scale)
        axes.bar(
            [group + (i + 0.5 - len(own) / 2) * width for i in range(len(own))],
            medians,
            width,
            yerr=errors,
            error_kw={"elinewidth": 0.8, "capsize": 2},
            color=[look(p["server"])[0] for p in own],
        )
    for server in servers:
        axes.bar([0], [0], color=look(server)[0], label=server)
    axes.set_xticks(range(len(CACHES)), [text for _, text in CACHES], fontsize=9)
    axes.set_ylabel(label)


def by_connections(axes, points, servers, figure):
    """A line for each server."""
    name, scale, _ = figure
    for server in servers:
        own = [p for p in points if p["server"] == server]
        own.sort(key=lambda p: p["connections"])
        if not own:
            continue
        medians, errors = spread(own, name, scale)
        color, marker = look(server)
        axes.errorbar(
            [p["connections"] for p in own],
            medians,
            yerr=errors,
            elinewidth=0.8,
            capsize=2,
            color=color,
            marker=marker,
            markersize=5,
            linewidth=2 if server == "atlas" else 1.2,
            label=server,
        )
    axes.set_xlabel("connections")


def mark_connections(axes, points):
    """The numbers that were measured, and where the clients' distance begins."""
    axes.set_xscale("log")
    ticks = sorted({p["connections"] for p in points})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=45, fontsize=8)
    axes.minorticks_off()
    near = [p["connections"] for p in points if not p["is_distant"]]
    far = [p["connections"] for p in points if p["is_distant"]]
    if not far:
        return
    if near:
        # In the middle between the last near one and the first distant one, as the axis counts.
        begin = (max(near) * min(far)) ** 0.5
        axes.axvline(begin, color="#566573", linewidth=0.8, linestyle=":")
    else:
        begin = min(far)
    axes.annotate(
        "clients 10-40 ms away \N{RIGHTWARDS ARROW}",
        (begin, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, 3),
        textcoords="offset points",
        fontsize=7,
        color="#566573",
    )


def finish(figure, axes, title, name, directory):
    """Legend, caption, both files."""
    for each in axes:
        each.set_ylim(bottom=0)
        each.grid(axis="y", alpha=0.3)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
        if not each.has_data():
            each.text(0.5, 0.5, "not measured", transform=each.transAxes, ha="center")
    looks = {}
    for each in axes:
        looks.update((label, handle) for handle, label in zip(*each.get_legend_handles_labels()))
    order = [server for server in LOOKS if server in looks]
    order += [server for server in looks if server not in LOOKS]
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    if order:
        figure.legend(
            [looks[server] for server in order],
            order,
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            frameon=False,
            fontsize=8,
        )
    figure.text(0.01, -0.03, PAPER[name], fontsize=8, color="#566573")
    for suffix in ("svg", "png"):
        # No date in the file: the same figures give the same bytes.
        metadata = {"Date": None} if suffix == "svg" else None
        figure.savefig(
            directory / f"{name}.{suffix}", bbox_inches="tight", dpi=150, metadata=metadata
        )
    plt.close(figure)


def draw(report, directory):
    """All six."""
    measured = [point for point in report["points"] if point["runs"]]
    kinds = {
        security: [p for p in measured if p["security"] == security] for security in ("plain", "tls")
    }
    plots = [("plain", "figure-1", "figure-11", "plaintext"), ("tls", "figure-2", "figure-13", "TLS")]
    for security, bars, lines, title in plots:
        points = kinds[security]
        # As many connections as the nearest there is to the paper's middle.
        counts = sorted({p["connections"] for p in points})
        connections = min(counts, key=lambda n: abs(n - 8_000), default=0)
        here = list(dict.fromkeys(p["server"] for p in points if p["connections"] == connections))
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
        by_cache(axes[0], points, here, THROUGHPUT, connections)
        by_cache(axes[1], points, here, CPU, connections)
        finish(figure, axes, f"{title}, {connections:,} connections", bars, directory)
        servers = list(dict.fromkeys(p["server"] for p in points))
        for letter, what in (("a", THROUGHPUT), ("b", CPU)):
            figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
            for each, (cache, text) in zip(axes, CACHES):
                own = [p for p in points if p["cache"] == cache]
                by_connections(each, own, servers, what)
                mark_connections(each, own)
                each.set_title(text, fontsize=9, pad=14)
            axes[0].set_ylabel(what[2])
            finish(figure, axes, f"{title}: {what[2]} by connections", lines + letter, directory)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    report = json.loads(Path(sys.argv[1]).read_text())
    directory = Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "atlas"
    # Text stays text: it can be searched, and read aloud.
    matplotlib.rcParams["svg.fonttype"] = "none"
    draw(report, directory)


if __name__ == "__main__":
    main()
