"""Ordinary speech beside a text without spaces: the cost of ``"1-" * 8000`` for the others' time to first audio.

``omni-actors serve omni-demo``. A client asks for one short sentence after another, as raw PCM, and notes the time of
the first sound: alone, beside a client with 16,000 characters of prose to speak, and beside one with as many characters
of figures without a space, whose sound is read as fast as it comes. The three take turns, so that a busy machine is
busy for each. Needs the demo's weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import trio

from report import Aim, Report, arguments, percentile
from rolling import server

MODEL = "omni-demo"
SHORT = "The train to the city leaves every hour in the afternoon."
PROSE = "The children were playing in the garden behind the old stone wall, and nobody saw the rain that came. "
CHARACTERS = 16_000
LONG = {"alone": "", "beside prose": PROSE * (CHARACTERS // len(PROSE)), "beside '1-' * 8000": "1-" * (CHARACTERS // 2)}


def asks(text: str) -> dict[str, Any]:
    return {"model": MODEL, "voice": "heart", "input": text, "response_format": "pcm"}


async def speak(client: httpx.AsyncClient, text: str, begun: Callable[[], None] = lambda: None) -> float:
    """Speak a whole text, and return the seconds to the first sound; ``begun`` is called with the same seconds."""
    start, first = time.perf_counter(), 0.0
    async with client.stream("POST", "/v1/audio/speech", json=asks(text)) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code} {(await response.aread())[:200]!r}")
        async for piece in response.aiter_raw():
            if piece and not first:
                first = time.perf_counter() - start
                begun()
    return first


async def beside(client: httpx.AsyncClient, text: str, count: int) -> list[float]:
    """Return the seconds to the first sound of so many short sentences, one after another, while a long text is
    spoken."""
    found: list[float] = []
    async with trio.open_nursery() as nursery:
        if text:
            sounding = trio.Event()

            async def long() -> None:
                while True:
                    await speak(client, text, sounding.set)

            nursery.start_soon(long)
            await sounding.wait()
        for _ in range(count):
            found.append(await speak(client, SHORT))
        nursery.cancel_scope.cancel()
    return found


async def measure(url: str, rounds: int, count: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in LONG}
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        await beside(client, "", 5)  # warm
        for _ in range(rounds):
            for name, text in LONG.items():
                found[name] += await beside(client, text, count)
    return found


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    rounds, count = (2, 15) if options.quick else (5, 40)
    report = Report(f"time to first audio of a short sentence, {rounds} x {count} of each")
    with server(model=MODEL) as url:
        found = trio.run(measure, url, rounds, count)
        for name, seconds in found.items():
            row: dict[str, Any] = {"short sentences": name, "count": len(seconds)}
            row |= {f"first audio p{it} ms": 1000 * percentile(seconds, it / 100) for it in (50, 90, 99)}
            report.rows.append(row)
    alone, _, unspaced = found.values()
    for it in (50, 90):
        ratio = percentile(unspaced, it / 100) / percentile(alone, it / 100)
        report.aims.append(Aim(f"first audio p{it} beside '1-' * 8000 / alone", ratio, 2.0, "<="))
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
