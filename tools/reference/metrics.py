"""The page of the Prometheus metrics, made of their own HELP texts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tools.reference.markdown import documented, page, table

from omni_actors.protocol.status import AdmissionLoad, ResumeCounts
from omni_actors.telemetry.engine_counters import ENGINE_COUNTERS
from omni_actors.telemetry.metrics import Metrics

INTRODUCTION = """\
`GET /metrics` answers with the server's metrics in the text format of Prometheus. Names follow vLLM's, with the prefix
`omni_actors_`. A request is counted once, with one outcome, however it ends. When the server is idle, every gauge of
requests is 0. A histogram has the series `…_bucket`, `…_sum` and `…_count`."""

OF_WORKERS = """\
The workers report these numbers themselves, with the labels `stage` and `replica`. A metric exists only where a stage's
engine reports it. Names that end in `_total` are counters, all others are gauges. Where several engines run in one
worker, the engine's name stands before its own numbers, as in `omni_actors_stage_talker_steps_total`. Engines of
plug-ins may report more."""

LABELS = {
    "cause": "why the worker ended, or why no connection could be accepted",
    "method": "the HTTP method, or `other`",
    "outcome": "how the request, or the fetch, ended",
    "reason": "why the request was refused, or the connection ended",
    "replica": "the replica's index, counted from 0",
    "route": "the path of the route, with placeholders",
    "stage": "the stage's name",
    "state": "the replica's state",
    "status": "the HTTP status, or `client_gone`",
    "task": "what the client asked for: `chat`, `completion`, `speech`, `transcription`, …",
}


def make() -> str:
    """Return the page.

    Raises:
        Undocumented: A metric has no HELP text.
    """
    own = sorted(_families(), key=lambda it: it.name)
    rows = [(f"`{_name(it)}`", it.type, _labels(it), documented(it.name, it.documentation)) for it in own]
    engines = [(f"`omni_actors_stage_{name}`", documented(name, text)) for name, text in ENGINE_COUNTERS.items()]
    used = sorted({label for it in own for label in _label_names(it)} | {"replica"})
    return page(
        "Metrics",
        INTRODUCTION,
        "## The server",
        table(("metric", "type", "labels", "meaning"), rows),
        "## Workers",
        OF_WORKERS,
        table(("metric", "meaning"), engines),
        "## Labels",
        table(("label", "value"), [(f"`{label}`", LABELS[label]) for label in used]),
    )


def _families() -> Iterator[Metric]:
    """Yield every metric of a server in which everything has happened once."""
    metrics = Metrics()
    for series in list(metrics.registry._collector_to_names):
        if labels := getattr(series, "_labels", ()):
            series.observe(0.0, *labels) if hasattr(series, "observe") else series.inc(*labels)  # type: ignore[attr-defined]
    one = {"any": 1}
    load = AdmissionLoad(running=one, waiting=one, waiting_bytes=1, stages=one, refused=one)
    resumes = ResumeCounts(resumed=one, poisoned=1, waiting=1, pauses=1, paused_s=1.0)
    text = metrics.render({}, {"any": (1, 1)}, {"any": 1, "bytes": 1}, {"any": one}, {"any": one}, load, resumes)
    yield from text_string_to_metric_families(text.decode())


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _label_names(family: Metric) -> list[str]:
    return list(dict.fromkeys(name for sample in family.samples for name in sample.labels if name != "le"))


def _labels(family: Metric) -> str:
    return ", ".join(f"`{name}`" for name in _label_names(family)) or "none"
