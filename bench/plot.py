#!/usr/bin/env python3
"""Draws the figures out of the JSON of `cargo xtask bench figures`.

Usage: plot.py REPORT.json DIRECTORY

Each plot is written as SVG and PNG, and stands beside the paper's figure of the same number.
A plot with no point is drawn empty and says so.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# Ours in one colour, whatever is in the run; rivals in the rest of the palette.
OURS = {"atlas": "#c0392b", "atlas-emulated": "#e59866"}
RIVALS = ["#1f4e79", "#2e86c1", "#7fb3d5", "#76448a", "#117a65", "#7d6608", "#566573"]
MARKERS = "osv^D*Xp"

# What the figures show: how they are measured, and what is read off the axis.
THROUGHPUT = ("gbps", 1.0, "Gb/s of bodies")
CPU = ("server_core_busy", 100.0, "server's core busy, %")
CACHES = [("cold", "0 % BC"), ("warm", "100 % BC")]

# What the paper says of its own machine, to be seen under each plot.
PAPER = {
    "figure-1": "Paper (8 cores, 2 x 40 GbE): from SSD stock 39, Netflix 72 Gb/s",
    "figure-2": "Paper: Netflix 47 Gb/s at 0 % BC, ~68 at 100 % BC, CPU full",
    "figure-11a": "Paper: Atlas ~73 Gb/s on 4 cores, Netflix up to the same on 8",
    "figure-11b": "Paper: Atlas' 4 cores against Netflix' 8",
    "figure-13a": "Paper: Atlas ~72 Gb/s on 4 cores, Netflix 47 (0 % BC) on 8",
    "figure-13b": "Paper: Atlas' 4 cores against Netflix' 8",
}


class Style:
    """The same look for a server in all plots."""

    def __init__(self, servers):
        rivals = [name for name in servers if name not in OURS]
        self.colors = dict(OURS)
        self.colors.update((name, RIVALS[i % len(RIVALS)]) for i, name in enumerate(rivals))
        self.markers = {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(servers)}


def spread(points, figure, scale):
    """Medians, and how far the least and the greatest are from them."""
    medians = [scale * point[figure]["median"] for point in points]
    below = [m - scale * p[figure]["min"] for m, p in zip(medians, points)]
    above = [scale * p[figure]["max"] - m for m, p in zip(medians, points)]
    return medians, [below, above]


def by_cache(axes, points, style, servers, figure, connections):
    """Groups of bars: one group for each cache, one bar for each server."""
    name, scale, label = figure
    width = 0.8 / max(len(servers), 1)
    for i, server in enumerate(servers):
        for group, (cache, _) in enumerate(CACHES):
            own = [
                p
                for p in points
                if p["server"] == server
                and p["cache"] == cache
                and p["connections"] == connections
            ]
            if not own:
                continue
            medians, errors = spread(own, name, scale)
            axes.bar(
                group - 0.4 + (i + 0.5) * width,
                medians,
                width,
                yerr=errors,
                capsize=2,
                color=style.colors[server],
                label=server if server not in axes.get_legend_handles_labels()[1] else None,
            )
    axes.set_xticks(range(len(CACHES)), [text for _, text in CACHES])
    axes.set_ylabel(label)


def by_connections(axes, points, style, servers, figure):
    """A line for each server and cache: full for cold, dashed for warm."""
    name, scale, label = figure
    for server in servers:
        for cache, text in CACHES:
            own = [p for p in points if p["server"] == server and p["cache"] == cache]
            own.sort(key=lambda p: p["connections"])
            if not own:
                continue
            medians, errors = spread(own, name, scale)
            axes.errorbar(
                [p["connections"] for p in own],
                medians,
                yerr=errors,
                capsize=2,
                color=style.colors[server],
                marker=style.markers[server],
                markersize=4,
                linestyle="-" if cache == "cold" else "--",
                label=f"{server}, {text}",
            )
    axes.set_xscale("log")
    ticks = sorted({p["connections"] for p in points})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("connections")
    axes.set_ylabel(label)


def finish(figure, axes, title, name, directory):
    """Legend, caption, both files."""
    for each in axes:
        each.set_ylim(bottom=0)
        each.grid(axis="y", alpha=0.3)
        if not each.has_data():
            each.text(0.5, 0.5, "not measured", transform=each.transAxes, ha="center")
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8
        )
    figure.suptitle(title, fontsize=11)
    figure.text(0.01, -0.02, PAPER[name], fontsize=8, color="#566573")
    figure.tight_layout()
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
    style = Style(list(dict.fromkeys(p["server"] for p in measured)))
    plots = [("plain", "figure-1", "figure-11", "plaintext"), ("tls", "figure-2", "figure-13", "TLS")]
    for security, bars, lines, title in plots:
        points = kinds[security]
        servers = list(dict.fromkeys(p["server"] for p in points))
        # As many connections as the nearest there is to the paper's middle.
        counts = sorted({p["connections"] for p in points})
        connections = min(counts, key=lambda n: abs(n - 8_000), default=0)
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
        by_cache(axes[0], points, style, servers, THROUGHPUT, connections)
        by_cache(axes[1], points, style, servers, CPU, connections)
        finish(figure, axes, f"{title}, {connections:,} connections", bars, directory)
        for letter, what in (("a", THROUGHPUT), ("b", CPU)):
            figure, axes = plt.subplots(figsize=(7, 4))
            by_connections(axes, points, style, servers, what)
            finish(figure, [axes], f"{title}: {what[2]} by connections", lines + letter, directory)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    report = json.loads(Path(sys.argv[1]).read_text())
    directory = Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "atlas"
    draw(report, directory)


if __name__ == "__main__":
    main()
