"""Numbers from samples: percentiles within a run, medians over repeats."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from omni_actors.entrypoints.bench.load import Run

LATENCIES = ("ttft", "ttfp", "ttfi", "tpot", "e2el", "rtf", "underrun")
PERCENTILES = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that ``percent`` of the values do not exceed. ``values`` must not be empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summarise(run: Run) -> dict[str, float]:
    """Return one run's numbers by name (``ttft_p50`` and so on), in seconds; failed requests count
    only in ``failed``."""
    good = [sample for sample in run.samples if sample.error is None]
    numbers: dict[str, float] = {
        "requests": len(run.samples),
        "failed": len(run.samples) - len(good),
        "wall_s": run.wall,
        "requests_per_s": len(good) / run.wall,
        "output_tokens_per_s": sum(sample.tokens for sample in good) / run.wall,
        "audio_s_per_s": sum(sample.audio_seconds for sample in good) / run.wall,
        "images_per_s": sum(sample.pictures for sample in good) / run.wall,
        "steps_per_s": sum(sample.steps for sample in good) / run.wall,
    }
    for name in LATENCIES:
        values = [value for sample in good if (value := getattr(sample, name)) is not None]
        if not values:
            continue
        numbers[f"{name}_mean"] = statistics.fmean(values)
        for percent in PERCENTILES:
            numbers[f"{name}_p{percent}"] = percentile(values, percent)
        if name == "underrun":
            numbers["underrun_requests"] = sum(value > 0 for value in values)
    return numbers


def aggregate(runs: Sequence[Run]) -> dict[str, Any]:
    """Return one level's result: the median of each number over the repeats, each repeat's own numbers, and the
    failures."""
    each = [summarise(run) for run in runs]
    names = dict.fromkeys(name for numbers in each for name in numbers)
    median = {name: statistics.median(numbers[name] for numbers in each if name in numbers) for name in names}
    errors = Counter(sample.error for run in runs for sample in run.samples if sample.error is not None)
    return {
        "level": runs[0].level.label,
        "concurrency": runs[0].level.concurrency,
        "rate": runs[0].level.rate,
        "median": median,
        "repeats": each,
        "errors": dict(errors.most_common()),
    }
