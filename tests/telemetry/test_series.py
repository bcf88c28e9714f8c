"""Our counters, gauges and histograms give the same output as prometheus_client's own."""

from __future__ import annotations

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from omni_actors.telemetry.series import Counter, Gauge, Histogram

BOUNDS = (0.1, 1.0, 2.5)
VALUES = st.sampled_from([0.0, 0.05, 0.1, 0.100001, 1.0, 2.5, 2.6, 1e9])
LABELS = st.sampled_from(["a", "b"])


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples without the times of creation, which ours do not report."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(st.lists(st.tuples(VALUES, LABELS)))
def test_a_histogram(observed: list[tuple[float, str]]) -> None:
    """A value at a bucket's upper end belongs to the bucket."""
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    known = prometheus_client.Histogram("it", "doc", ["kind"], registry=theirs, buckets=BOUNDS)
    made = Histogram("it", "doc", BOUNDS, ("kind",))
    ours.register(made)
    for value, kind in observed:
        known.labels(kind).observe(value)
        made.observe(value, kind)
    assert samples(ours) == samples(theirs)


@given(st.lists(st.tuples(VALUES, LABELS)), st.integers(0, 3))
def test_a_counter_and_a_gauge(added: list[tuple[float, str]], taken: int) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    known = prometheus_client.Counter("many", "doc", ["kind"], registry=theirs)
    level = prometheus_client.Gauge("level", "doc", registry=theirs)
    counter, gauge = Counter("many", "doc", ("kind",)), Gauge("level", "doc")
    ours.register(counter)
    ours.register(gauge)
    for value, kind in added:
        known.labels(kind).inc(value)
        counter.add(value, kind)
        level.inc()
        gauge.inc()
    for _ in range(taken):
        level.dec()
        gauge.dec()
    assert samples(ours) == samples(theirs)
