"""The capacities of one replica, by which the worker bounds its memory and queues: the keys of :attr:`Hello.limits`."""

from __future__ import annotations

from omni_actors.protocol.options import Option

MAX_INFLIGHT = Option(
    None,
    "Most requests that are admitted to the replica; by default what it can batch, and a little more.",
    type=int,
    least=1,
)
MAX_INFLIGHT_TOKENS = Option(
    None,
    "Most estimated tokens of the requests that are admitted to the replica; by default there is no limit.",
    type=int,
    least=1,
)
MAX_REQUESTS = Option(
    1024, "Most requests that the worker holds, waiting requests included; beyond that the answer is 429.", least=1
)
MAX_BATCH = Option(8, "Most compatible items in one batch.", least=1)
ARENA_BYTES = Option(256 << 20, "Size of the shared memory for payloads to other workers.")
REST_AFTER_S = Option(10, "Seconds without work after which a worker frees memory that it keeps for reuse.", least=1)
