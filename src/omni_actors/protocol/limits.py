"""The capacities of one replica, by which its worker bounds what it holds: the keys of :attr:`Hello.limits`."""

from __future__ import annotations

from omni_actors.protocol.options import Option

MAX_INFLIGHT = Option(
    None, "Requests admitted to it at once; by default what it can batch, and a little more.", type=int, least=1
)
MAX_INFLIGHT_TOKENS = Option(None, "Estimated tokens of those requests; by default as many as come.", type=int, least=1)
MAX_REQUESTS = Option(1024, "Requests that the worker holds at once, waiting ones included; over it, 429.", least=1)
MAX_BATCH = Option(8, "Compatible items that run as one batch.", least=1)
ARENA_BYTES = Option(256 << 20, "Shared memory for payloads on their way to other workers.")
REST_AFTER_S = Option(10, "Seconds without work after which a worker gives memory kept for reuse back.", least=1)
