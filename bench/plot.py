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
    "figure-6": "Paper (NVMe): full throughput at a window of ~128 with < 1 ms, 3 ms at 512",
    "figure-8": "Paper: diskmap is faster than aio and pread",
    "figure-9": "Paper: diskmap is faster than aio and pread",
    "figure-10": "Paper: batching amortises the system call",
    "figure-11a": "Paper: Atlas ~73 Gb/s on 4 cores, Netflix up to the same on 8",
    "figure-11b": "Paper: Atlas' 4 cores against Netflix' 8",
    "figure-13a": "Paper: Atlas ~72 Gb/s on 4 cores, Netflix 47 (0 % BC) on 8",
    "figure-13b": "Paper: Atlas' 4 cores against Netflix' 8",
}

# Ways to read, as the tool calls them: ours as above, the others as people know them, each with
# what fio calls it.
BACKENDS = {
    "diskmap": ("diskmap", "#c0392b", "o", "fio, diskmap's way"),
    "uring": ("io_uring", "#1f4e79", "s", "fio io_uring"),
    "aio": ("native aio", "#117a65", "v", "fio libaio"),
    "pread": ("pread, threads", "#7d6608", "^", "fio psync"),
}

# Reads in flight where latency is looked at, and where throughput and cost are.
ALONE, FULL = 1, 128


def look(server):
    return LOOKS.get(server, STRANGER)


def spread(points, figure, scale):
    """Medians, and how far the ends of the confidence intervals are from them."""
    medians, below, above = [], [], []
    # Nothing is busy for more than all the time.
    most = 1.0 if figure == CPU[0] else float("inf")
    for point in points:
        it = point[figure]
        half = it["confidence_95"] or 0.0
        mean = it["mean"] if half else it["median"]
        medians.append(scale * it["median"])
        below.append(scale * max(0.0, it["median"] - (mean - half)))
        above.append(scale * max(0.0, min(mean + half, most) - it["median"]))
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


def extremes(points, figure, scale):
    """Medians, and how far the least and the greatest round are from them."""
    values = [point[figure] for point in points]
    medians = [scale * it["median"] for it in values]
    below = [scale * (it["median"] - it["min"]) for it in values]
    above = [scale * (it["max"] - it["median"]) for it in values]
    return medians, [below, above]


def log_ticks(axes, ticks, label):
    """An axis that doubles, with a mark for each value measured."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_xlabel(label)


def by_window(disks, directory):
    """Figure 6: a panel for each disk; latency on the left, throughput on the right."""
    figure, panels = plt.subplots(1, len(disks), figsize=(5.5 * len(disks), 3.8), squeeze=False)
    for axes, disk in zip(panels[0], disks):
        axes.set_title(disk["name"], fontsize=10)
        rows = [row for row in disk["rows"] if row["series"] == "window"]
        if not rows:
            continue
        windows = [row["window"] for row in rows]
        right = axes.twinx()
        blue, red = "#1f4e79", "#c0392b"
        beside = [row["fio"] for row in rows if row["fio"]]
        lines = [
            (axes, rows, "latency_p50_us", 1e-3, blue, "-", "latency, median"),
            (axes, rows, "latency_p99_us", 1e-3, blue, ":", "latency, 99 %"),
            (right, rows, "gigabits_per_second", 1.0, red, "-", "throughput"),
            (right, beside, "gigabits_per_second", 1.0, "#e59866", "--", "throughput, fio"),
        ]
        for on, own, name, scale, color, dash, label in lines:
            if len(own) < len(rows):
                continue
            medians, errors = extremes(own, name, scale)
            line = {"color": color, "linestyle": dash, "marker": "o", "markersize": 3}
            on.errorbar(windows, medians, yerr=errors, elinewidth=0.8, capsize=2, **line)
            # The legend asks the left side only.
            axes.plot([], [], label=label, **line)
        log_ticks(axes, windows, "reads in flight (I/O window)")
        axes.set_ylabel("latency, ms", color=blue)
        right.set_ylabel("throughput, Gb/s", color=red)
        right.set_ylim(bottom=0)
    title = "diskmap: 16 KiB reads by I/O window"
    finish(figure, list(panels[0]), title, "figure-6", directory)


def ways_to_read(axes, disk, window, name, scale, label, fio):
    """A line for each way to read by read size; what fio found is dashed."""
    rows = [r for r in disk["rows"] if r["series"] == "size" and r["window"] == window]
    axes.set_title(f"{disk['name']}, {window} in flight", fontsize=10)
    axes.set_ylabel(label)
    for backend, (title, color, marker, fio_title) in BACKENDS.items():
        own = [row for row in rows if row["backend"] == backend]
        beside = [{**row["fio"], "read_bytes": row["read_bytes"]} for row in own if row["fio"]]
        # fio does not know everything.
        beside = [point for point in beside if point[name]]
        ours = {"linestyle": "-", "marker": marker, "label": title}
        theirs = {"linestyle": "--", "linewidth": 0.8, "marker": marker, "fillstyle": "none"}
        sets = [(own, ours), (beside if fio else [], {**theirs, "label": fio_title})]
        for points, style in sets:
            if not points:
                continue
            medians, errors = extremes(points, name, scale)
            sizes = [p["read_bytes"] >> 10 for p in points]
            axes.errorbar(
                sizes, medians, yerr=errors, capsize=2, color=color, markersize=4, **style
            )
    if rows:
        log_ticks(axes, sorted({r["read_bytes"] >> 10 for r in rows}), "read size, KiB")


def by_read_size(disks, directory):
    """Figures 8 to 10: a panel for each disk; latency alone and among many."""
    many = [
        ("figure-8", "throughput", [FULL], ("gigabits_per_second", 1.0, "throughput, Gb/s")),
        ("figure-9", "median latency", [ALONE, FULL], ("latency_p50_us", 1.0, "latency, µs")),
        ("figure-10", "CPU time", [FULL], ("cpu_seconds_per_gb", 1.0, "CPU seconds per GB")),
    ]
    for name, title, windows, what in many:
        size = (5 * len(disks), 3.4 * len(windows))
        figure, panels = plt.subplots(len(windows), len(disks), figsize=size, squeeze=False)
        for row, window in zip(panels, windows):
            for axes, disk in zip(row, disks):
                ways_to_read(axes, disk, window, *what, fio=len(windows) == 1)
        title = f"Ways to read: {title} by read size"
        finish(figure, list(panels.flat), title, name, directory)


def draw(report, directory):
    """All ten."""
    disks = report["disks"]
    if disks:
        by_window(disks, directory)
        by_read_size(disks, directory)
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
