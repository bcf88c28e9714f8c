"""Counters, gauges and histograms for a single thread: an update costs an entry of a dictionary.

The classes of prometheus_client may be updated by any thread, and pay for that with a lock and a search for the labels
on each update: a quarter of the serving process's cost of a short request. Its registry collects the classes here all
the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class _Series:
    _family: type[CounterMetricFamily] | type[GaugeMetricFamily]

    def __init__(self, name: str, doc: str, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._doc = doc
        self._labels = labels
        self._values: defaultdict[Labels, float] = defaultdict(float)
        if not labels:
            self._values[()] = 0.0  # a series without labels exists before its first update

    def inc(self, *labels: str) -> None:
        self._values[labels] += 1

    def add(self, amount: float, *labels: str) -> None:
        self._values[labels] += amount

    def collect(self) -> Iterator[Metric]:
        family = self._family(self._name, self._doc, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Counter(_Series):
    """A counter, which only grows. ``labels`` are given by value, in the order of their declaration."""

    _family = CounterMetricFamily


class Gauge(_Series):
    """A gauge. ``labels`` are given by value, in the order of their declaration."""

    _family = GaugeMetricFamily

    def dec(self, *labels: str) -> None:
        self._values[labels] -= 1


class Histogram:
    """A histogram. ``bounds`` are the buckets' inclusive upper ends; values over the last bound are in one more
    bucket."""

    def __init__(self, name: str, doc: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self._name = name
        self._doc = doc
        self._labels = labels
        self._bounds = bounds
        self._ends = [*map(floatToGoString, bounds), "+Inf"]
        self._counts: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * len(self._ends))
        self._sums: defaultdict[Labels, float] = defaultdict(float)

    def observe(self, value: float, *labels: str) -> None:
        self._counts[labels][bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._doc, labels=self._labels)
        for labels, counts in self._counts.items():
            total, buckets = 0, []
            for end, count in zip(self._ends, counts, strict=True):
                total += count
                buckets.append((end, total))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family
