"""A rolling restart of every stage under a constant load of 16 clients: no request may fail, or be answered otherwise.

First over HTTP: ``omni-actors serve stub-voice`` as a process of its own, whole and streamed answers, text and encoded
speech, while ``omni-actors replicas restart --all`` replaces every worker, the media process included. Then tiny
Qwen3-Omni, text and speech, greedy, float32, with one replica of each stage and with two: once with time for running
requests to finish, and once with none, so that every request goes on in another worker. Each answer is compared with
the answer of an undisturbed run. *Gap* is the longest time in which a waiting client got nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import trio

from omni_actors import AsyncOmni, OmniError
from omni_actors.protocol.request import MediaChunk, TextDelta
from omni_load import FAMILIES, deployment, prompts, request
from report import Aim, Report, arguments, percentile

CLIENTS = 16
FAMILY = FAMILIES["qwen3-omni"]

SEAM = 1e-4
"""Of full scale: what a sample may differ by where a codec begins anew in the midst of a stream."""

CHAT = "/v1/chat/completions"
SERVE = [sys.executable, "-m", "omni_actors"]
START_S = 60.0


@dataclass(slots=True)
class Load:
    """The results of closed loops of clients."""

    done: int = 0
    failed: list[str] = field(default_factory=list)
    other: int = 0
    """Answers that are not those of an undisturbed run."""
    worst: float = 0.0
    """Largest difference of a sample, of full scale."""
    seconds: list[float] = field(default_factory=list)
    gap_s: float = 0.0

    def row(self, case: str, grace: str, undisturbed: Load, took_s: float) -> dict[str, Any]:
        return {
            "case": case,
            "grace": grace,
            "restart s": took_s,
            "requests": self.done,
            "failed": len(self.failed),
            "other answers": self.other,
            "worst sample": self.worst,
            "p50 s": percentile(self.seconds, 0.5),
            "p50 s before": percentile(undisturbed.seconds, 0.5),
            "longest s": max(self.seconds),
            "gap s": self.gap_s,
        }


# --- over HTTP, without a model --------------------------------------------------------------------------------------


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """Return requests of four kinds: path and body."""
    asked: list[tuple[str, dict[str, Any]]] = []
    for i in range(4):
        said = [{"role": "user", "content": f"Say something, number {i}."}]
        chat = {"model": "stub-voice", "messages": said, "max_tokens": 40 + i}
        spoken = {"modalities": ["text", "audio"], "audio": {"voice": "tone", "format": "mp3"}}
        speech = {"model": "stub-voice", "input": f"A sentence, number {i}.", "response_format": "flac"}
        asked += [(CHAT, chat), (CHAT, chat | {"stream": True}), (CHAT, chat | spoken), ("/v1/audio/speech", speech)]
    return asked


def content(path: str, body: dict[str, Any], answer: bytes) -> bytes:
    """Return the content of an answer, without ids and times. Raises ``ValueError`` for an incomplete answer."""
    if path.endswith("speech"):
        return answer
    if body.get("stream"):
        events = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: ")]
        if not events or events[-1] != "[DONE]":
            raise ValueError("the stream did not end")
        pieces = [json.loads(event)["choices"] for event in events[:-1]]
        return "".join(choice["delta"].get("content") or "" for each in pieces for choice in each).encode()
    message = json.loads(answer)["choices"][0]["message"]
    sound = message.get("audio") or {}
    return f"{message.get('content')} {sound.get('transcript')} {sound.get('data')}".encode()


@contextmanager
def server(*settings: str, model: str = "stub-voice") -> Iterator[str]:
    """Run a server of its own, and give its URL."""
    words = [word for setting in settings for word in ("--set", setting)]
    command = [*SERVE, "serve", model, "--port", "0", "--log-level", "warning", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"on (http://\S+)", process.stdout.readline())
        if found is None:
            raise RuntimeError("the server did not start")
        yield found[1]
    finally:
        process.terminate()
        process.wait(START_S)


async def over_http(replicas: int, settle_s: float) -> list[dict[str, Any]]:
    settings = [f"stages.{name}.replicas={replicas}" for name in ("writer", "speaker")]
    settings += ["stages.writer.options.step_s=0.005"]
    with server(*settings) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            expected: dict[int, bytes] = {}
            undisturbed, load = Load(), Load()

            async def loop(seen: Load, number: int, over: trio.Event) -> None:
                asked = bodies()
                while not over.is_set():
                    which = number % len(asked)
                    path, body = asked[which]
                    number += CLIENTS + 1
                    begun = last = time.perf_counter()
                    try:
                        async with client.stream("POST", path, json=body) as response:
                            answer = b""
                            async for piece in response.aiter_bytes():
                                now = time.perf_counter()
                                seen.gap_s, last = max(seen.gap_s, now - last), now
                                answer += piece
                        if response.status_code != 200:
                            raise ValueError(f"{response.status_code} {answer[:200]!r}")
                        got = content(path, body, answer)
                    except (httpx.HTTPError, ValueError, LookupError) as error:
                        seen.failed.append(f"{path}: {type(error).__name__}: {error}")
                        continue
                    seen.done += 1
                    seen.other += expected.setdefault(which, got) != got
                    seen.seconds.append(time.perf_counter() - begun)

            async def restart() -> float:
                begun = time.perf_counter()
                command = [*SERVE, "replicas", "restart", "--all", "--url", url, "--json"]
                done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
                if done.returncode:
                    raise RuntimeError(done.stderr.decode())
                replaced = json.loads(done.stdout)
                assert all(it["incarnation"] == 2 for it in replaced), replaced
                return time.perf_counter() - begun

            for seen in (undisturbed, load):
                over = trio.Event()
                async with trio.open_nursery() as nursery:
                    for number in range(CLIENTS):
                        nursery.start_soon(loop, seen, number, over)
                    await trio.sleep(settle_s)
                    if seen is load:
                        took = await restart()
                        await trio.sleep(settle_s)
                    over.set()
    for failure in load.failed:
        print("failed:", failure)
    load.other += undisturbed.other
    return [load.row(f"HTTP, no model, {replicas} replicas", "30 s", undisturbed, took)]


# --- tiny Qwen3-Omni --------------------------------------------------------------------------------------------------


class Answer:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.pcm = bytearray()

    def compare(self, other: Answer) -> tuple[bool, float]:
        """Return whether the answer differs, and the largest difference of a sample."""
        if self.tokens != other.tokens or len(self.pcm) != len(other.pcm):
            return True, 0.0
        one, two = (np.frombuffer(bytes(it.pcm), "<i2").astype(np.int32) for it in (self, other))
        return False, float(np.abs(one - two).max(initial=0)) / 32767


async def ask(omni: AsyncOmni, text: str, seen: Load) -> Answer:
    made, last = Answer(), time.perf_counter()
    async with omni.open(request(FAMILY, text)) as stream:
        async for event in stream:
            now = time.perf_counter()
            seen.gap_s, last = max(seen.gap_s, now - last), now
            if isinstance(event, TextDelta):
                made.tokens += event.token_ids
            elif isinstance(event, MediaChunk):
                made.pcm += event.data
    return made


async def of_tiny_models(replicas: int, graces: list[float]) -> list[dict[str, Any]]:
    stages = ("thinker", "talker", FAMILY.vocoder)
    texts = prompts(CLIENTS)
    rows = []
    async with deployment(FAMILY, *(f"stages.{stage}.replicas={replicas}" for stage in stages)) as omni:
        expected: dict[str, Answer] = {}

        async def one(seen: Load, text: str) -> None:
            begun = time.perf_counter()
            try:
                answer = await ask(omni, text, seen)
            except OmniError as error:
                seen.failed.append(f"{error.info.code}: {error.info.message}")
                await trio.sleep(0.1)
                return
            differs, worst = expected.setdefault(text, answer).compare(answer)
            seen.done += 1
            seen.other += differs
            seen.worst = max(seen.worst, worst)
            seen.seconds.append(time.perf_counter() - begun)

        undisturbed = Load()
        async with trio.open_nursery() as nursery:
            for text in texts:
                nursery.start_soon(one, undisturbed, text)
        for grace_s in graces:
            load, over = Load(), trio.Event()

            async def client(text: str, load: Load = load, over: trio.Event = over) -> None:
                while not over.is_set():
                    await one(load, text)

            async with trio.open_nursery() as nursery:
                for text in texts:
                    nursery.start_soon(client, text)
                begun = time.perf_counter()
                await omni.orchestrator.control.restart(grace_s=grace_s)
                took = time.perf_counter() - begun
                over.set()
            for failure in load.failed:
                print("failed:", failure)
            rows.append(load.row(f"tiny Qwen3-Omni, {replicas} replicas", f"{grace_s:g} s", undisturbed, took))
    return rows


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    report = Report(f"Every worker replaced, one at a time, under {CLIENTS} clients")
    for replicas in (1,) if options.quick else (1, 2):
        report.rows += trio.run(over_http, replicas, 1.0 if options.quick else 4.0)
    if not options.quick:
        for replicas in (1, 2):
            report.rows += trio.run(of_tiny_models, replicas, [60.0, 0.0])
    report.aims += [
        Aim("failed requests", sum(row["failed"] for row in report.rows), 0, "<="),
        Aim("other answers", sum(row["other answers"] for row in report.rows), 0, "<="),
        Aim("worst difference of a sample, of full scale", max(row["worst sample"] for row in report.rows), SEAM, "<="),
    ]
    report.notes.append(f"load of the machine: {os.getloadavg()[0]:.1f}")
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
