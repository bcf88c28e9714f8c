"""``kill -9`` of a replica with many streams in mid-answer: the cost for the streams, and proof that no answer changes.

Tiny Qwen3-Omni, greedy, float32: 32 streams at once, of text alone and with speech. When half of the streams are
half-way, replica 0 of the named stage is killed, once beside a second replica and once alone. Each answer is compared
with the answer of an undisturbed run. *Pause* is from the death to the first output of the stage's next worker for one
of the requests; with one replica the pause includes the start of a process.
"""

from __future__ import annotations

import os
import signal
import statistics
from typing import Any

import numpy as np
import trio

from omni_actors import AsyncOmni, OmniError
from omni_actors.protocol.request import MediaChunk, TextDelta
from omni_load import FAMILIES, deployment, prompts, request
from report import Aim, Report, arguments

FAMILY = FAMILIES["qwen3-omni"]

SEAM = 1e-4
"""Of full scale: what may differ where a codec begins anew in the midst of a stream."""


class Answer:
    """The client's part of an answer so far."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.pcm = bytearray()
        self.error: str | None = None


async def streams(omni: AsyncOmni, texts: list[str], outputs: tuple[str, ...], victim: str | None) -> list[Answer]:
    """Run all streams side by side; in the middle replica 0 of ``victim`` is killed."""
    answers = [Answer() for _ in texts]
    half = FAMILY.tokens // 2
    killed = victim is None

    def half_way() -> int:
        if outputs == ("text",):
            return sum(len(it.tokens) >= half for it in answers)
        return sum(len(it.pcm) > 0 and len(it.tokens) >= half for it in answers)

    async def one(answer: Answer, text: str) -> None:
        nonlocal killed
        try:
            async with omni.open(request(FAMILY, text, outputs)) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        answer.tokens += event.token_ids
                    elif isinstance(event, MediaChunk):
                        answer.pcm += event.data
                    if not killed and half_way() >= len(texts) // 2:
                        killed = True
                        assert victim is not None
                        pid = omni.orchestrator.pools[victim].replicas[0].pid
                        assert pid is not None
                        os.kill(pid, signal.SIGKILL)
        except OmniError as error:
            answer.error = f"{error.info.code}: {error.info.message}"

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            for answer, text in zip(answers, texts, strict=True):
                nursery.start_soon(one, answer, text)
    return answers


def compare(expected: list[Answer], got: list[Answer]) -> tuple[int, int, float]:
    """Return failed requests, other tokens or lengths, and the largest difference of a sample, of full scale."""
    failed = differing = 0
    worst = 0.0
    for want, have in zip(expected, got, strict=True):
        if have.error is not None:
            failed += 1
            print("failed:", have.error)
            continue
        differing += have.tokens != want.tokens or len(have.pcm) != len(want.pcm)
        if len(have.pcm) == len(want.pcm) and want.pcm:
            one, two = (np.frombuffer(bytes(it.pcm), "<i2").astype(np.int32) for it in (want, have))
            worst = max(worst, float(np.abs(one - two).max()) / 32767)
    return failed, differing, worst


async def measure(stage: str, replicas: int, outputs: tuple[str, ...], count: int) -> dict[str, Any]:
    texts = prompts(count)
    async with deployment(FAMILY, f"stages.{stage}.replicas={replicas}", "limits.restart_delay_s=0.05") as omni:
        expected = await streams(omni, texts, outputs, None)
        got = await streams(omni, texts, outputs, stage)
        failed, differing, worst = compare(expected, got)
        pauses = [1000 * pause for pause in omni.orchestrator.recovery.pauses_s]
        return {
            "killed": stage,
            "replicas": replicas,
            "answer": " + ".join(outputs),
            "resumed": omni.orchestrator.recovery.resumed[stage],
            "failed": failed,
            "other tokens, codes or lengths": differing,
            "worst sample": worst,
            "first pause ms": min(pauses, default=0.0),
            "median pause ms": statistics.median(pauses) if pauses else 0.0,
        }


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    count = 8 if options.quick else 32
    report = Report(f"A replica killed under {count} streams, tiny Qwen3-Omni")
    text, speech = ("text",), ("text", "audio")
    cases = [("thinker", 2, text), ("talker", 2, speech)]
    if not options.quick:
        cases += [("thinker", 1, text), ("thinker", 2, speech), ("talker", 1, speech), ("code2wav", 2, speech)]
    for stage, replicas, outputs in cases:
        report.rows.append(trio.run(measure, stage, replicas, outputs, count))
    rows = report.rows
    report.aims = [
        Aim("failed requests", sum(row["failed"] for row in rows), 0, "<="),
        Aim(
            "answers with other tokens or another length",
            sum(row["other tokens, codes or lengths"] for row in rows),
            0,
            "<=",
        ),
        Aim("worst sample, of full scale", max(row["worst sample"] for row in rows), 2 * SEAM, "<="),
        Aim("first pause beside a live replica, ms", rows[0]["first pause ms"], 50, "<="),
    ]
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
