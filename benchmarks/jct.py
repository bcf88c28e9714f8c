"""Mean job completion time of spoken answers, against transformers' own ``generate`` on the same tiny checkpoints.

Text and speech out, greedy, closed loops of 1, 4, 8 and 16 clients. The reference serves the same requests one by one
in order of arrival: each is timed alone, and the queue that a loop of clients makes is added up from those times. Since
the queue alone is worth most of the difference, there is also the reference with every 16 requests as one padded
batch, which all wait for their batch, and the comparison without any queue, at one client.
"""

from __future__ import annotations

import argparse
from typing import Any

import trio

from omni_load import FAMILIES, Family, Run, closed_loop, deployment, first_come_first_served, prompts, reference
from report import Aim, Report, arguments

BATCH = 16


def options() -> argparse.Namespace:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--family", choices=list(FAMILIES), action="append", help="only this one (may be repeated)")
    parser.add_argument("--requests", type=int, help="requests of each loop (64)")
    return parser.parse_args()


async def ours(family: Family, texts: list[str], loops: tuple[int, ...]) -> list[Run]:
    async with deployment(family) as omni:
        return [await closed_loop(omni, family, texts, concurrency) for concurrency in loops]


def measure(family: Family, count: int, loops: tuple[int, ...], quick: bool, report: Report) -> None:
    texts = prompts(count)
    # The reference before and after ours, since the machine is not equally quick all the time.
    before = reference(family, texts, (1, BATCH))
    runs = trio.run(ours, family, texts, loops)
    alone = [before[1]["seconds"]] if quick else [before[1]["seconds"], reference(family, texts, (1,))[1]["seconds"]]
    seconds = [min(times) for times in zip(*alone, strict=True)]
    spoken = sum(before[1]["audio_s"])
    batch_s = sum(before[BATCH]["seconds"]) / len(before[BATCH]["seconds"])
    for run in runs:
        queue = first_come_first_served(seconds, run.concurrency)
        theirs = sum(queue) / len(queue)
        row: dict[str, Any] = {
            "family": family.name,
            "clients": run.concurrency,
            "JCT s": run.mean("end_s"),
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
        spent = sorted(run.cpu_s.items(), key=lambda item: -item[1])
        report.notes.append(
            f"{family.name}, {run.concurrency} clients: {run.wall_s:.2f} s in all; CPU "
            + ", ".join(f"{stage} {cpu:.2f} s" for stage, cpu in spent)
        )


def main() -> None:
    asked = options()
    count = asked.requests or (16 if asked.quick else 64)
    loops = (1, 16) if asked.quick else (1, 4, 8, 16)
    report = Report(f"Spoken answers of tiny omni models, {count} requests in each loop")
    for name in asked.family or (["qwen3-omni"] if asked.quick else list(FAMILIES)):
        measure(FAMILIES[name], count, loops, asked.quick, report)
    report.show()
    if asked.json:
        report.write(asked.json)


if __name__ == "__main__":
    main()
