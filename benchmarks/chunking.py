"""The value of chunk edges: time to first sound, real-time factor and latency, against edges that pass on whole
outputs.

Tiny Qwen3-Omni, text and speech out, closed loops of 1, 8 and 32 clients, alternating runs with both edges of speech
(thinker to talker, talker to code2wav) in ``chunk`` mode and in ``full`` mode.
"""

from __future__ import annotations

import statistics
from typing import Any

import trio

from omni_load import FAMILIES, Run, closed_loop, deployment, prompts
from report import Aim, Report, arguments

MODES = ("chunk", "full")


async def measure(loops: tuple[int, ...], turns: int) -> dict[tuple[str, int], list[Run]]:
    family = FAMILIES["qwen3-omni"]
    found: dict[tuple[str, int], list[Run]] = {}
    for mode in MODES:
        edges = [f"edges.{port}.mode={mode}" for port in ("talker.states", f"{family.vocoder}.codes")]
        async with deployment(family, *edges) as omni:
            for concurrency in loops:
                texts = prompts(max(2 * concurrency, 4))
                found[mode, concurrency] = [await closed_loop(omni, family, texts, concurrency) for _ in range(turns)]
    return found


def figures(runs: list[Run]) -> dict[str, float]:
    """Return the medians over the turns of each turn's means."""
    return {
        "TTFP s": statistics.median(run.mean("first_audio_s") for run in runs),
        "E2EL s": statistics.median(run.mean("end_s") for run in runs),
        "RTF": statistics.median(run.mean("end_s") / run.mean("audio_s") for run in runs),
        "audio s/s": statistics.median(sum(a.audio_s for a in run.answers) / run.wall_s for run in runs),
    }


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    loops = (1, 8) if options.quick else (1, 8, 32)
    found = trio.run(measure, loops, 1 if options.quick else 3)
    report = Report("Tiny Qwen3-Omni with speech: chunk edges and full edges (means, medians of the turns)")
    for concurrency in loops:
        by_mode = {mode: figures(found[mode, concurrency]) for mode in MODES}
        for mode, row in by_mode.items():
            cells: dict[str, Any] = {"clients": concurrency, "edges": mode}
            report.rows.append(cells | row)
        ratio = by_mode["chunk"]["TTFP s"] / by_mode["full"]["TTFP s"]
        if concurrency == 8:
            report.aims.append(Aim("time to first sound at 8 clients, chunk / full", ratio, 0.25, "<="))
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
