"""Mean job completion time of spoken answers, against transformers' own ``generate`` on the same tiny checkpoints.

Text and speech out, greedy, closed loops of 1, 4, 8 and 16 clients. The reference serves the same requests one by one
in order of arrival: each is timed alone, and the queue of a loop of clients is added up from those times. Since the
queue alone is most of the difference, there is also the reference with every 16 requests as one padded batch, where all
wait for their batch, and the comparison without any queue, at one client.

Both sides run on the same machine: the reference with one, four or all CPU threads, whichever is fastest there, ours
with replicas and threads by the number of cores (``omni_load.sized``; ``--set`` overrules it). With ``--device cuda``
the models of both are on the GPU, in float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import trio

from omni_load import FAMILIES, Family, Run, closed_loop, deployment, first_come_first_served, prompts, reference
from report import Aim, Report, arguments

BATCH = 16


def options() -> argparse.Namespace:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--family", choices=list(FAMILIES), action="append", help="only this family (may be repeated)")
    parser.add_argument("--requests", type=int, help="requests of each loop (64)")
    parser.add_argument("--clients", type=int, nargs="+", help="clients of each loop (1 4 8 16)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="the device of both models")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of our deployment")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="read the reference's times from this file")
    return parser.parse_args()


async def ours(family: Family, texts: list[str], loops: list[int], device: str, settings: list[str]) -> list[Run]:
    async with deployment(family, *settings, device=device) as omni:
        return [await closed_loop(omni, family, texts, concurrency) for concurrency in loops]


def both(family: Family, texts: list[str], loops: list[int], asked: argparse.Namespace) -> tuple[list[Run], list[Any]]:
    """Run our loops, and the reference's passes."""
    if asked.reference:
        passes = [json.loads(asked.reference.read_text())[family.name]]
        return trio.run(ours, family, texts, loops, asked.device, asked.set), passes
    # The reference before and after ours, since the machine is not equally quick all the time.
    passes = [reference(family, texts, (1, BATCH), asked.device)]
    runs = trio.run(ours, family, texts, loops, asked.device, asked.set)
    if not asked.quick:
        passes.append(reference(family, texts, (1,), asked.device))
    return runs, passes


def measure(family: Family, count: int, loops: list[int], asked: argparse.Namespace, report: Report) -> None:
    runs, passes = both(family, prompts(count), loops, asked)
    before = passes[0]["batches"]
    seconds = [min(times) for times in zip(*(it["batches"]["1"]["seconds"] for it in passes), strict=True)]
    spoken = sum(before["1"]["audio_s"])
    batch_s = sum(before[str(BATCH)]["seconds"]) / len(before[str(BATCH)]["seconds"])
    for run in runs:
        queue = first_come_first_served(seconds, run.concurrency)
        theirs = sum(queue) / len(queue)
        row: dict[str, Any] = {
            "family": family.name,
            "clients": run.concurrency,
            "JCT s": run.mean("end_s"),
            "text s": run.mean("text_s"),
            "first audio s": run.mean("first_audio_s"),
            "audio s": sum(answer.audio_s for answer in run.answers),
            "one by one: JCT s": theirs,
            "lower by %": 100 * (1 - run.mean("end_s") / theirs),
            "one by one: audio s": spoken,
        }
        if run.concurrency == BATCH:
            row["padded batch: JCT s"] = batch_s
            report.aims += [
                Aim(f"{family.name}: JCT lower than one by one, 16 clients, %", row["lower by %"], 91.4, ">="),
                Aim(
                    f"{family.name}: JCT lower than as one padded batch, %",
                    100 * (1 - run.mean("end_s") / batch_s),
                    50,
                    ">=",
                ),
            ]
        if run.concurrency == 1:
            ratio = run.mean("first_audio_s") / theirs
            report.aims += [
                Aim(f"{family.name}: JCT / one by one, 1 client", run.mean("end_s") / theirs, 1, "<="),
                Aim(f"{family.name}: first audio / the reference's, 1 client", ratio, 0.3, "<="),
            ]
        report.rows.append(row)
        report.notes.append(where_ours_goes(family, run))
    report.notes += [where_theirs_goes(family, it) for it in passes[:1]]


def where_ours_goes(family: Family, run: Run) -> str:
    """Return the CPU time by stage, and the load of each of its workers."""
    spent = sorted(run.cpu_s.items(), key=lambda item: -item[1])
    parts = [
        f"{stage} {cpu:.2f} s ({run.replicas[stage]} × {100 * cpu / run.wall_s / run.replicas[stage]:.0f} %)"
        for stage, cpu in spent
        if stage in run.replicas
    ]
    return f"{family.name}, {run.concurrency} clients: {run.wall_s:.2f} s in all; CPU " + ", ".join(parts)


def where_theirs_goes(family: Family, found: dict[str, Any]) -> str:
    """Return the seconds of one request alone, by its parts, and the gain from the choice of threads."""
    alone = found["batches"]["1"]
    count = len(alone["seconds"])
    parts = ", ".join(f"{name} {seconds / count:.3f} s" for name, seconds in alone["spent"].items())
    tried = ", ".join(f"{threads}: {seconds:.2f} s" for threads, seconds in found["tried"].items())
    return (
        f"{family.name}, the reference alone: {sum(alone['seconds']) / count:.3f} s a request, of which {parts}; "
        f"{found['threads']} CPU threads (tried: {tried})"
    )


def main() -> None:
    asked = options()
    count = asked.requests or (16 if asked.quick else 64)
    loops = asked.clients or ([1, 16] if asked.quick else [1, 4, 8, 16])
    report = Report(f"Spoken answers of tiny omni models on {asked.device}, {count} requests in each loop")
    for name in asked.family or (["qwen3-omni"] if asked.quick else list(FAMILIES)):
        measure(FAMILIES[name], count, loops, asked, report)
    report.show()
    if asked.json:
        report.write(asked.json)


if __name__ == "__main__":
    main()
