"""Time to first audio when sentences go to speech as they are complete, against speech after the whole answer.

The demo with its real models, in this process's trio loop: one answer of 60 tokens with text and audio, the edge from
the language model to the acoustic stage once in ``chunk`` mode and once in ``full`` mode, in turns. Needs the demo's
weights (``omni-actors models pull demo``).
"""

from __future__ import annotations

import statistics
import time

import trio

from omni_actors import AsyncOmni, Request, open_omni
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import MediaChunk, TextDelta
from report import Aim, Report, arguments

TOKENS = 60
PROMPT = "Tell me about the city of Paris in five short sentences."


async def answer(omni: AsyncOmni) -> dict[str, float]:
    """Return the seconds from the request to the first token, the first audio, the last token and the end."""
    request = Request(
        task="chat",
        outputs=("text", "audio"),
        params={
            "prompt": Prompt(messages=[{"role": "user", "content": PROMPT}]),
            "sampling": Sampling(temperature=0.0, max_tokens=TOKENS, ignore_eos=True),
            "speech": Speech(),
        },
    )
    times: dict[str, float] = {}
    audio_bytes = 0
    begun = time.perf_counter()
    async with omni.open(request) as stream:
        async for event in stream:
            now = time.perf_counter() - begun
            if type(event) is TextDelta:
                times.setdefault("first token s", now)
                times["last token s"] = now
            elif type(event) is MediaChunk:
                times.setdefault("first audio s", now)
                audio_bytes += len(event.data)
    times["end s"] = time.perf_counter() - begun
    times["audio s"] = audio_bytes / 2 / (omni.plan.sample_rate or 24_000)
    return times


async def measure(turns: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"chunk": [], "full": []}
    async with (
        open_omni(overrides=["edges.acoustic.sentences.mode=chunk"]) as chunk,
        open_omni(overrides=["edges.acoustic.sentences.mode=full"]) as full,
    ):
        for omni in (chunk, full):
            await answer(omni)  # warm-up, and the prompt's blocks in the prefix cache of both
        for _ in range(turns):
            found["chunk"].append(await answer(chunk))
            found["full"].append(await answer(full))
    return found


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    found = trio.run(measure, 2 if options.quick else 7)
    report = Report(f"The demo: an answer of {TOKENS} tokens with speech, one request at a time (medians)")
    medians = {
        mode: {name: statistics.median(times[name] for times in runs) for name in runs[0]}
        for mode, runs in found.items()
    }
    report.rows = [{"edge mode": mode} | times for mode, times in medians.items()]
    ratio = medians["chunk"]["first audio s"] / medians["full"]["first audio s"]
    report.aims = [
        Aim("time to first audio, chunk / full", ratio, 0.5, "<="),
        Aim(
            "first audio / last token, chunk",
            medians["chunk"]["first audio s"] / medians["chunk"]["last token s"],
            1,
            "<=",
        ),
    ]
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
