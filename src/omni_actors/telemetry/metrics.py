"""Prometheus metrics of the serving process, in a registry of their own.

Names follow vLLM's, with the prefix ``omni_actors_``. A request is counted once, with one outcome, however it ends; at
idle every gauge is zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

from omni_actors.protocol.request import Completed, Event, MediaChunk, TextDelta, Usage
from omni_actors.protocol.status import AdmissionLoad, ResumeCounts
from omni_actors.telemetry.engine_counters import engine_counter_help
from omni_actors.telemetry.series import Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that are counted by name: clients may send any word, and each word would stay a series for ever."""
_FAST = (0.0005, 0.001, 0.0025, *_SECONDS)


class HttpRecord(Protocol):
    """The facts about an HTTP exchange that are counted at its end. ``status`` 0: the client left before there was a
    status."""

    route: str
    status: int


class Metrics:
    """The metrics of the serving process. One instance per deployment."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, doc: str, *labels: str) -> Counter:
            made = Counter(f"omni_actors_{name}", doc, labels)
            self.registry.register(made)
            return made

        def gauge(name: str, doc: str, *labels: str) -> Gauge:
            made = Gauge(f"omni_actors_{name}", doc, labels)
            self.registry.register(made)
            return made

        def histogram(name: str, doc: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
            made = Histogram(f"omni_actors_{name}", doc, bounds, labels)
            self.registry.register(made)
            return made

        self._http = counter("http_requests", "HTTP requests by route, method and status.", "route", "method", "status")
        self._http_open = gauge("http_requests_in_flight", "HTTP requests under way.")
        self._connections = counter("http_connections", "Connections accepted.")
        self._connections_open = gauge("http_connections_open", "Open connections.")
        self._connections_closed = counter("http_connections_closed", "Connections closed, by reason.", "reason")
        self._websockets_open = gauge("http_websockets_open", "Open WebSockets.")
        self._paused = counter(
            "http_accepting_paused", "Times that the server could not accept a connection, by cause.", "cause"
        )
        self._requests = counter("requests", "Requests by task and outcome.", "task", "outcome")
        self._queue = histogram(
            "request_queue_time_seconds",
            "Seconds from a request's arrival at the orchestrator to its admission.",
            _FAST,
            "task",
        )
        self._ttft = histogram(
            "time_to_first_token_seconds", "Seconds from a request's arrival to its first text.", _SECONDS, "task"
        )
        self._ttfa = histogram(
            "time_to_first_audio_seconds", "Seconds from a request's arrival to its first audio.", _SECONDS, "task"
        )
        self._ttfi = histogram(
            "time_to_first_image_seconds",
            "Seconds from a request's arrival to its first finished picture; previews do not count.",
            _SECONDS,
            "task",
        )
        self._e2e = histogram(
            "e2e_request_latency_seconds", "Seconds from a request's arrival to its completion.", _SECONDS, "task"
        )
        self._prompt = counter("prompt_tokens", "Prompt tokens by stage.", "stage")
        self._cached = counter("cached_prompt_tokens", "Prompt tokens found in the prefix cache, by stage.", "stage")
        self._generated = counter("generation_tokens", "Generated tokens by stage.", "stage")
        self._audio_in = counter("audio_input_seconds", "Seconds of audio received, by stage.", "stage")
        self._audio_out = counter("audio_output_seconds", "Seconds of audio produced, by stage.", "stage")
        self._images = counter("images", "Pictures made, by stage.", "stage")
        self._steps = counter("denoising_steps", "Denoising steps of pictures, by stage.", "stage")
        self._skipped = counter(
            "skipped_denoising_steps", "Denoising steps that a step cache answered, by stage.", "stage"
        )

    def http_begun(self) -> None:
        """Count the begin of an HTTP exchange; one :meth:`http_over` follows."""
        self._http_open.inc()

    def http_over(self, record: HttpRecord, method: str) -> None:
        self._http_open.dec()
        status = str(record.status) if record.status else "client_gone"
        self._http.inc(record.route, method if method in _METHODS else "other", status)

    def connection_opened(self) -> None:
        self._connections.inc()
        self._connections_open.inc()

    def connection_closed(self, reason: str) -> None:
        self._connections_open.dec()
        self._connections_closed.inc(reason)

    def accepting_paused(self, cause: str) -> None:
        self._paused.inc(cause)

    @contextmanager
    def websocket(self) -> Iterator[None]:
        self._websockets_open.inc()
        try:
            yield
        finally:
            self._websockets_open.dec()

    def request(self, task: str) -> RequestMetrics:
        """Return the observer of one request of the orchestrator. Its clock begins now; :meth:`RequestMetrics.left`
        counts the request."""
        return RequestMetrics(self, task)

    def render(
        self,
        counters: Mapping[str, Iterable[Mapping[str, float]]],
        replicas: Mapping[str, tuple[int, int]],
        fetches: Mapping[str, int] | None = None,
        states: Mapping[str, Mapping[str, int]] | None = None,
        ends: Mapping[str, Mapping[str, int]] | None = None,
        load: AdmissionLoad | None = None,
        resumes: ResumeCounts | None = None,
    ) -> bytes:
        """Return the text of ``/metrics``.

        Args:
            counters: Stage → counters of each replica.
            replicas: Stage → (live, wanted) replicas.
            fetches: Outcome → fetches of clients' URLs, and their ``bytes``.
            states: Stage → state → replicas.
            ends: Stage → cause → workers that ended.
            load: The requests that are admitted, wait, or were refused.
            resumes: The outcomes of requests whose worker died.
        """
        stages = CollectorRegistry()
        families = [*_stage_families(counters, replicas), *_fetch_families(fetches or {})]
        families += _life_families(states or {}, ends or {})
        if load is not None:
            families += _load_families(load)
        if resumes is not None:
            families += _resume_families(resumes)
        stages.register(_Families(families))
        return generate_latest(self.registry) + generate_latest(stages)


class RequestMetrics:
    """The observer of one request (:class:`~omni_actors.orchestrator.owner.RequestObserver`), with the request's
    clock. The first text, the first audio and the first picture count once."""

    __slots__ = ("_audio", "_completed", "_failed", "_image", "_metrics", "_started", "_task", "_text")

    def __init__(self, metrics: Metrics, task: str) -> None:
        self._metrics = metrics
        self._task = task
        self._started = perf_counter()
        self._text = self._audio = self._image = self._completed = self._failed = False

    def admitted(self) -> None:
        self._metrics._queue.observe(perf_counter() - self._started, self._task)

    def received(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            if not self._text:
                self._text = True
                self._metrics._ttft.observe(perf_counter() - self._started, self._task)
        elif isinstance(event, MediaChunk):
            if event.modality == "image":
                self._received_image(event)
            elif not self._audio:
                self._audio = True
                self._metrics._ttfa.observe(perf_counter() - self._started, self._task)
        elif isinstance(event, Completed) and not self._completed:
            self._completed = True
            self._count_usage(event.usage)

    def _received_image(self, chunk: MediaChunk) -> None:
        if not self._image and not chunk.meta.get("preview"):
            self._image = True
            self._metrics._ttfi.observe(perf_counter() - self._started, self._task)

    def failed(self) -> None:
        self._failed = True

    def left(self) -> None:
        """Count the request: completed, failed, or cancelled (left before its end)."""
        # Servers cancel a handler whose reply is sent, so how the request is left says nothing about success.
        outcome = "completed" if self._completed else "failed" if self._failed else "cancelled"
        self._metrics._requests.inc(self._task, outcome)

    def _count_usage(self, usage: Mapping[str, Usage]) -> None:
        metrics = self._metrics
        metrics._e2e.observe(perf_counter() - self._started, self._task)
        for stage, used in usage.items():
            if used.prompt_tokens:
                metrics._prompt.add(used.prompt_tokens, stage)
                metrics._cached.add(used.cached_tokens, stage)
            if used.completion_tokens:
                metrics._generated.add(used.completion_tokens, stage)
            if used.audio_input_s:
                metrics._audio_in.add(used.audio_input_s, stage)
            if used.audio_output_s:
                metrics._audio_out.add(used.audio_output_s, stage)
            if used.images:
                metrics._images.add(used.images, stage)
            if used.steps:
                metrics._steps.add(used.steps, stage)
                metrics._skipped.add(used.skipped_steps, stage)


class _Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _fetch_families(fetches: Mapping[str, int]) -> list[Metric]:
    ended = CounterMetricFamily("omni_actors_url_fetches", "Fetches of clients' URLs, by outcome.", labels=["outcome"])
    size = CounterMetricFamily("omni_actors_url_fetched_bytes", "Bytes fetched from clients' URLs.")
    for outcome, count in fetches.items():
        if outcome == "bytes":
            size.add_metric([], count)
        else:
            ended.add_metric([outcome], count)
    return [ended, size] if fetches else []


def _labelled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    doc: str,
    label: str,
    counts: Mapping[str, int],
) -> Metric:
    made = family(f"omni_actors_{name}", doc, labels=[label])
    for value, count in counts.items():
        made.add_metric([value], count)
    return made


def _resume_families(resumes: ResumeCounts) -> list[Metric]:
    resumed = _labelled(
        CounterMetricFamily,
        "requests_resumed",
        "Attempts begun because a worker ended, by the stage of the worker.",
        "stage",
        resumes.resumed,
    )
    poison = CounterMetricFamily(
        "omni_actors_requests_poisonous",
        "Requests refused because they repeatedly ended workers.",
        value=resumes.poisoned,
    )
    waiting = GaugeMetricFamily(
        "omni_actors_requests_between_attempts", "Requests that wait for a worker in order to continue."
    )
    waiting.add_metric([], resumes.waiting)
    pause = SummaryMetricFamily(
        "omni_actors_resume_pause_seconds",
        "Seconds from a worker's death to the first output of a resumed request.",
        count_value=resumes.pauses,
        sum_value=resumes.paused_s,
    )
    return [resumed, poison, waiting, pause]


def _load_families(load: AdmissionLoad) -> list[Metric]:
    running = _labelled(
        GaugeMetricFamily,
        "num_requests_running",
        "Requests admitted and not yet released by every worker.",
        "task",
        load.running,
    )
    waiting = _labelled(
        GaugeMetricFamily, "num_requests_waiting", "Requests that wait to be admitted.", "task", load.waiting
    )
    size = GaugeMetricFamily(
        "omni_actors_waiting_request_bytes",
        "Approximate size of the requests that wait to be admitted, in bytes.",
        value=load.waiting_bytes,
    )
    inside = _labelled(
        GaugeMetricFamily,
        "stage_requests_in_flight",
        "Admitted requests that are in a stage or will enter the stage.",
        "stage",
        load.stages,
    )
    refused = _labelled(
        CounterMetricFamily,
        "requests_refused",
        "Requests that were not admitted, by reason.",
        "reason",
        load.refused,
    )
    return [running, waiting, size, inside, refused]


def _life_families(states: Mapping[str, Mapping[str, int]], ends: Mapping[str, Mapping[str, int]]) -> list[Metric]:
    replicas = GaugeMetricFamily("omni_actors_stage_replicas", "Replicas, by state.", labels=["stage", "state"])
    for stage, counts in states.items():
        for state, count in counts.items():
            replicas.add_metric([stage, state], count)
    restarts = CounterMetricFamily(
        "omni_actors_stage_restarts", "Workers that ended and were replaced, by cause.", labels=["stage", "cause"]
    )
    for stage, counts in ends.items():
        for cause, count in counts.items():
            restarts.add_metric([stage, cause], count)
    return [replicas, restarts] if states or ends else []


def _stage_families(
    counters: Mapping[str, Iterable[Mapping[str, float]]], replicas: Mapping[str, tuple[int, int]]
) -> list[Metric]:
    live = GaugeMetricFamily("omni_actors_stage_live_replicas", "Replicas that can take requests.", labels=["stage"])
    wanted = GaugeMetricFamily(
        "omni_actors_stage_wanted_replicas", "Replicas that the deployment is to have.", labels=["stage"]
    )
    for stage, (alive, planned) in replicas.items():
        live.add_metric([stage], alive)
        wanted.add_metric([stage], planned)
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for stage, each in counters.items():
        for replica, values in enumerate(each):
            for name, value in values.items():
                metric = "omni_actors_stage_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
                family = families.get(metric)
                if family is None:
                    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    family = kind(metric, engine_counter_help(name), labels=["stage", "replica"])
                    families[metric] = family
                family.add_metric([stage, str(replica)], float(value))
    return [live, wanted, *(families[name] for name in sorted(families))]


__all__ = ["CONTENT_TYPE", "Metrics", "RequestMetrics"]
