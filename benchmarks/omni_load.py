"""Shared parts of the benchmarks of omni models: the tiny checkpoints, the requests, our side's load, the
reference's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from omni_actors import AsyncOmni, Request, open_omni
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import Completed, MediaChunk, TextDelta

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Family:
    """A family's workload: ``tokens`` of text and at most ``frames`` of speech in each answer, both greedy."""

    name: str
    vocoder: str
    voice: str
    tokens: int
    frames: int


FAMILIES = {
    "qwen3-omni": Family("qwen3-omni", "code2wav", "ethan", 48, 75),
    "qwen2.5-omni": Family("qwen2.5-omni", "token2wav", "ethan", 48, 120),
}

MODEL_STAGES = ("encoder", "thinker", "talker")
"""Of both families, beside their vocoder."""


def sized(family: Family, device: str, cores: int) -> list[str]:
    """Return settings that fit a family's deployment to a machine.

    Qwen2.5-Omni's vocoder is most of its work on a processor, and batching does not reduce that work: the vocoder gets
    two replicas, and on more than six cores all but four cores, up to one for each of sixteen clients. With more than
    two cores each worker has one thread, as tiny layers gain nothing from more. On a GPU everything is float32, as in
    the reference.
    """
    stages = (*MODEL_STAGES, family.vocoder)
    if device != "cpu":
        return [f"stages.{stage}.dtype=float32" for stage in stages]
    settings = [f"stages.{stage}.threads=1" for stage in stages] if cores > 2 else []
    if family.vocoder == "token2wav":
        settings.append(f"stages.token2wav.replicas={min(16, max(2, cores - 4))}")
    return settings


SUBJECTS = (
    "the sea",
    "a red robot",
    "music",
    "the city of Paris",
    "winter",
    "two friends",
    "a small house",
    "the moon",
)
FORMS = ("Tell me about {}.", "What is {}?", "Write a story about {}.", "Why do people like {}?")


def prompts(count: int) -> list[str]:
    """Return distinct questions of about equal length."""
    return [
        f"{FORMS[i % len(FORMS)].format(SUBJECTS[i // len(FORMS) % len(SUBJECTS)])} In {i + 2} words."
        for i in range(count)
    ]


def folder_of(family: str) -> Path:
    """Return the family's tiny checkpoint, written once into the user's cache."""
    from omni_actors.models.tiny.cache import cached

    return cached(family)


@dataclass(slots=True)
class Answer:
    """Seconds from the request to the end of its text, to its first sound and to its end; ``audio_s`` of sound, and the
    samples."""

    text: str
    begun: float
    text_s: float = 0.0
    first_audio_s: float = 0.0
    end_s: float = 0.0
    audio_s: float = 0.0
    pcm: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Run:
    """A closed loop of ``concurrency`` clients."""

    concurrency: int
    wall_s: float
    answers: list[Answer]
    cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU time by stage, of the workers alone."""
    replicas: dict[str, int] = field(default_factory=dict)

    def mean(self, name: str) -> float:
        return float(sum(getattr(answer, name) for answer in self.answers) / len(self.answers))


def request(family: Family, text: str, outputs: tuple[str, ...] = ("text", "audio")) -> Request:
    params: dict[str, Any] = {
        "prompt": Prompt(messages=[{"role": "user", "content": text}]),
        "sampling": Sampling(temperature=0.0, repetition_penalty=1.0, max_tokens=family.tokens, ignore_eos=True),
    }
    if "audio" in outputs:
        params["speech"] = Speech(voice=family.voice, temperature=0.0, max_tokens=family.frames)
    return Request(task="chat", outputs=outputs, params=params)


async def answer(omni: AsyncOmni, family: Family, text: str) -> Answer:
    """Run one request, text and speech."""
    made = Answer(text, time.perf_counter())
    rate = omni.plan.sample_rate or 24_000
    async with omni.open(request(family, text)) as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                made.text_s = time.perf_counter() - made.begun
            elif isinstance(event, MediaChunk):
                made.first_audio_s = made.first_audio_s or time.perf_counter() - made.begun
                made.audio_s += len(event.data) / 2 / rate
                made.pcm += event.data
            elif isinstance(event, Completed):
                made.end_s = time.perf_counter() - made.begun
    return made


async def closed_loop(omni: AsyncOmni, family: Family, texts: Sequence[str], concurrency: int) -> Run:
    """Let each client ask for the next text as soon as its last answer is complete."""
    answers: list[Answer] = []
    waiting = iter(texts)

    async def client() -> None:
        for text in waiting:
            answers.append(await answer(omni, family, text))

    before, begun = worker_cpu_s(), time.perf_counter()
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                nursery.start_soon(client)
    wall = time.perf_counter() - begun
    spent = {stage: cpu - before.get(stage, 0.0) for stage, cpu in worker_cpu_s().items()}
    replicas = {stage.name: stage.replicas for stage in omni.plan.stages}
    return Run(concurrency, wall, answers, spent, replicas)


@asynccontextmanager
async def deployment(family: Family, *overrides: str, device: str = "cpu") -> AsyncIterator[AsyncOmni]:
    """Run the family's pipeline with its workers up on ``device`` (``cpu`` or ``cuda``) and warmed, fitted to the
    machine where ``overrides`` do not say otherwise."""
    settings = [*sized(family, device, CpuPlatform().cores()), *overrides]
    async with open_omni(str(folder_of(family.name)), overrides=settings, platform=device) as omni:
        most = max(stage.replicas for stage in omni.plan.stages)
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for _ in range(most if most > 2 else 1):
                    nursery.start_soon(answer, omni, family, "Hello.")
        yield omni


def worker_cpu_s() -> dict[str, float]:
    """Return the CPU seconds of each worker below this process, by stage, summed over replicas. A worker names itself
    in its command's title or arguments."""
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            stat = (path.parent / "stat").read_text().rpartition(")")[2].split()
            name = path.read_text().strip()
        except OSError:
            continue
        if "#" in name and _below(int(path.parent.name), os.getpid()):
            stage = name.partition("#")[0]
            found[stage] = found.get(stage, 0.0) + (int(stat[11]) + int(stat[12])) / tick
    return found


def _below(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        try:
            pid = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == ancestor


def reference(
    family: Family, texts: Sequence[str], batches: Sequence[int], device: str = "cpu", threads: Sequence[int] = ()
) -> dict[str, Any]:
    """Run transformers' own ``generate`` on the same folder and device, in a process of its own, with the number of CPU
    ``threads`` (one, four or all, if none is given) that is fastest on the first texts.

    In the result ``threads`` is the number used and ``tried`` the seconds of each choice. For each size of batch
    ``batches[str(size)]`` has ``seconds`` of each batch of so many texts, in order, ``audio_s`` of each answer, and
    ``spent``, the seconds in each of its parts.
    """
    cores = CpuPlatform().cores()
    work = {
        "folder": str(folder_of(family.name)),
        "family": family.name,
        "texts": list(texts),
        "batches": list(batches),
        "threads": list(threads) or sorted({1, min(4, cores), cores}),
        "device": device,
        "voice": family.voice,
        "tokens": family.tokens,
        "frames": family.frames,
    }
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(scratch, "work.json")
        given.write_text(json.dumps(work))
        program = "import sys, omni_reference; omni_reference.run(sys.argv[1])"
        subprocess.run(
            [sys.executable, "-c", program, str(given)],
            cwd=HERE,
            check=True,
            stderr=subprocess.DEVNULL,
            env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"} | {"HF_HUB_OFFLINE": "1"},
        )
        found: dict[str, Any] = json.loads(given.read_text())
        return found


def first_come_first_served(seconds: Sequence[float], concurrency: int) -> list[float]:
    """Return the completion times, each from its own arrival, of requests with these service times at one server, in
    order of arrival, for a closed loop of so many clients."""
    arrivals = [0.0] * min(concurrency, len(seconds))
    free, found = 0.0, []
    for i, service in enumerate(seconds):
        free = max(free, arrivals[i]) + service
        found.append(free - arrivals[i])
        if len(arrivals) < len(seconds):
            arrivals.append(free)  # this client asks again at once
    return found
