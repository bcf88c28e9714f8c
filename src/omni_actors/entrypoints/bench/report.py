"""Results for people (a table, a plot) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich.box
import rich.table

ROWS = (
    # heading, name of the number, factor, digits
    ("TTFT ms", "ttft", 1e3, 0),
    ("TTFP ms", "ttfp", 1e3, 0),
    ("TTFI ms", "ttfi", 1e3, 0),
    ("TPOT ms", "tpot", 1e3, 1),
    ("E2EL ms", "e2el", 1e3, 0),
    ("RTF", "rtf", 1, 3),
    ("underrun s", "underrun", 1, 2),
)
RATES = (
    ("requests/s", "requests_per_s", 2),
    ("tokens/s", "output_tokens_per_s", 1),
    ("audio s/s", "audio_s_per_s", 2),
    ("images/s", "images_per_s", 2),
    ("steps/s", "steps_per_s", 1),
)


def table(results: Sequence[dict[str, Any]]) -> rich.table.Table:
    """Return a table with a column per level; numbers that no level has are left out. Latencies are p50 / p99."""
    medians = [result["median"] for result in results]
    made = rich.table.Table(caption="latencies: p50 / p99", box=rich.box.SIMPLE, caption_justify="left")
    made.add_column("")
    for result in results:
        made.add_column(result["level"], justify="right")
    made.add_row("whole replies", *(f"{m['requests'] - m['failed']:g} of {m['requests']:g}" for m in medians))
    for heading, name, factor, digits in ROWS:
        pairs = [[m.get(f"{name}_p{percent}") for percent in (50, 99)] for m in medians]
        if any(value is not None for pair in pairs for value in pair):
            made.add_row(heading, *(" / ".join(_cell(value, factor, digits) for value in pair) for pair in pairs))
    for heading, name, digits in RATES:
        if any(m.get(name) for m in medians):
            made.add_row(heading, *(_cell(m.get(name), 1, digits) for m in medians))
    return made


def _cell(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:.{digits}f}"


def write_json(path: Path, settings: dict[str, Any], results: Sequence[dict[str, Any]]) -> None:
    path.write_text(json.dumps({"settings": settings, "results": list(results)}, indent=2) + "\n")


def require_plotting() -> None:
    """Raise :class:`ImportError`, with the package to install, if plotting is not possible."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib (it is in the extra 'dev')") from None


def write_plot(path: Path, title: str, results: Sequence[dict[str, Any]]) -> None:
    """Plot latency (p50, p99) and throughput against the level, as PNG, SVG or PDF by the file's name. Levels without a
    successful request are gaps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    panels = [
        ("first output (ms)", [("TTFT", "ttft", 1e3), ("TTFP", "ttfp", 1e3), ("TTFI", "ttfi", 1e3)]),
        ("time per output token (ms)", [("TPOT", "tpot", 1e3)]),
        ("end to end (ms)", [("E2EL", "e2el", 1e3)]),
        ("real-time factor, underrun (s)", [("RTF", "rtf", 1.0), ("underrun", "underrun", 1.0)]),
    ]
    medians = [result["median"] for result in results]
    shown = [
        (label, [(name, key, factor) for name, key, factor in lines if any(f"{key}_p50" in m for m in medians)])
        for label, lines in panels
    ]
    shown = [(label, lines) for label, lines in shown if lines]
    closed = results[0]["concurrency"] is not None
    levels = [float(result["concurrency"] if closed else result["rate"]) for result in results]

    size = (4.2 * (len(shown) + 1), 3.6)
    figure, (axes,) = pyplot.subplots(1, len(shown) + 1, figsize=size, layout="constrained", squeeze=False)
    for axis, (label, lines) in zip(axes, shown, strict=False):
        for name, key, factor in lines:
            for percent, style in ((50, "o-"), (99, "v:")):
                points = [(m.get(f"{key}_p{percent}", float("nan"))) * factor for m in medians]
                axis.plot(levels, points, style, label=f"{name} p{percent}")
        axis.set_title(label)
    for name, key, _ in RATES:
        if any(m.get(key) for m in medians):
            axes[-1].plot(levels, [m.get(key, float("nan")) for m in medians], "o-", label=name)
    axes[-1].set_title("throughput (1/s)")
    for axis in axes:
        axis.set_xlabel("requests in flight" if closed else "requests per second")
        if all(level.is_integer() for level in levels):  # half a request is never in flight
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
