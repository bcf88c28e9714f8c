"""The load: a number of requests in flight, or a number per second."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from omni_actors.entrypoints.bench.client import Client, ShortReply
from omni_actors.entrypoints.bench.sample import Sample
from omni_actors.entrypoints.bench.workloads import BadReply, Workload


@dataclass(frozen=True, slots=True)
class Level:
    """One point of a sweep: ``concurrency`` requests kept in flight, or ``rate`` requests started per second."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def label(self) -> str:
        return f"c={self.concurrency}" if self.concurrency is not None else f"{self.rate:g}/s"

    @property
    def value(self) -> float:
        return float(self.concurrency if self.concurrency is not None else self.rate or 0)


@dataclass(slots=True)
class Run:
    """The result of one pass over one level. ``wall`` is seconds from the first start to the last end."""

    level: Level
    wall: float = 0.0
    samples: list[Sample] = field(default_factory=list)


async def one_request(client: Client, workload: Workload, index: int, limit_s: float) -> Sample:
    """Make one request, for at most ``limit_s`` seconds. A failure of this request is noted in ``Sample.error``."""
    sample = Sample()
    body = workload.body(index)
    sample.started = time.perf_counter()
    with trio.move_on_after(limit_s) as scope:
        try:
            connection, reply = await client.open("POST", workload.path, body)
            try:
                if reply.status == 200:
                    await workload.read(reply, sample)
                else:
                    sample.error = f"HTTP {reply.status}: {_message(await reply.read())}"
                sample.ended = time.perf_counter()
            finally:
                await client.done(connection)
        except BadReply as error:
            sample.error = str(error)
        except ShortReply as error:
            sample.error = f"short stream: {error}"
        except OSError as error:
            sample.error = f"cannot connect to {client.target.host}:{client.target.port}: {error}"
        except trio.BrokenResourceError:
            sample.error = "the connection broke"
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # what is measured may send anything
            sample.error = f"malformed reply: {type(error).__name__}: {error}"
    if scope.cancelled_caught:
        sample.error = f"no end within {limit_s:g} s"
    sample.ended = sample.ended or time.perf_counter()
    return sample


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


async def run_level(
    client: Client,
    workload: Workload,
    level: Level,
    requests: int,
    *,
    first: int = 0,
    limit_s: float = 600.0,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> Run:
    """Make ``requests`` requests, with prompts in turn from ``first`` on.

    With a rate, starts are a Poisson process drawn from ``seed``, and no request waits for another one: an overloaded
    server shows as latency, not as a lower rate.
    """
    run = Run(level)
    began = time.perf_counter()

    async def ask(index: int) -> None:
        run.samples.append(await one_request(client, workload, index, limit_s))
        progress()

    numbers = iter(range(first, first + requests))

    async def worker() -> None:
        for index in numbers:
            await ask(index)

    async with trio.open_nursery() as nursery:
        if level.concurrency is not None:
            for _ in range(min(level.concurrency, requests)):
                nursery.start_soon(worker)
        else:
            assert level.rate is not None
            dice = random.Random(seed)
            due = trio.current_time()
            for index in numbers:
                await trio.sleep_until(due)
                nursery.start_soon(ask, index)
                due += dice.expovariate(level.rate)
    run.wall = time.perf_counter() - began
    return run
