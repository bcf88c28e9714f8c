"""Replicas of the speech stages: one of each against two, on this machine. No answer may be lost, or come out of order.

Tiny Qwen3-Omni, text and speech out, closed loops. On two cores more processes bring nothing by themselves; the table
shows their cost, and that the answers are those of one replica.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import trio

from omni_load import FAMILIES, Run, closed_loop, deployment, prompts
from report import Aim, Report, arguments

ROUNDING = 2
"""Samples of 16 bits that may differ by so much: a window's length decides how sums in it are rounded."""


async def measure(replicas: int, concurrency: int, count: int) -> tuple[Run, dict[str, list[float]]]:
    family = FAMILIES["qwen3-omni"]
    more = [f"stages.{stage}.replicas={replicas}" for stage in ("talker", family.vocoder)]
    async with deployment(family, *more) as omni:
        run = await closed_loop(omni, family, prompts(count), concurrency)
        counters = await omni.orchestrator.counters()
        shares = {
            stage: [float(it.get("finished_total", 0)) for it in counters[stage]]
            for stage in ("talker", family.vocoder)
        }
        return run, shares


def differing(one: Run, two: Run) -> int:
    """Return answers that are missing, doubled, or of other sound."""
    if Counter(a.text for a in one.answers) != Counter(a.text for a in two.answers):
        return len(one.answers)
    sound = {a.text: np.frombuffer(bytes(a.pcm), np.int16).astype(np.int32) for a in one.answers}
    bad = 0
    for a in two.answers:
        pcm = np.frombuffer(bytes(a.pcm), np.int16).astype(np.int32)
        want = sound[a.text]
        bad += len(pcm) != len(want) or bool(np.abs(pcm - want).max(initial=0) > ROUNDING)
    return bad


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    loops, count = ((8,), 16) if options.quick else ((4, 8, 16), 64)
    report = Report(f"Tiny Qwen3-Omni: replicas of talker and code2wav, {count} requests in each loop")
    lost = 0
    for concurrency in loops:
        runs: dict[int, Run] = {}
        for replicas in (1, 2):
            run, shares = trio.run(measure, replicas, concurrency, count)
            runs[replicas] = run
            row: dict[str, Any] = {
                "clients": concurrency,
                "replicas": replicas,
                "requests/s": len(run.answers) / run.wall_s,
                "JCT s": run.mean("end_s"),
                "first audio s": run.mean("first_audio_s"),
                "audio s/s": sum(a.audio_s for a in run.answers) / run.wall_s,
            }
            row |= {f"{stage}: answers": "+".join(f"{it:.0f}" for it in each) for stage, each in shares.items()}
            report.rows.append(row)
        lost += differing(runs[1], runs[2])
    report.aims.append(Aim("answers lost, doubled or changed by two replicas", lost, 0, "<="))
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
