"""The digits model over HTTP: are its pictures what was asked for, and what do previews cost?

``omni-actors models pull digits`` must have trained the model. 8 clients ask for 200 pictures in wording that the
training has not seen, each of 10 to 30 steps, and a nearest-neighbour classifier (k = 3) over scikit-learn's digits
reads the pictures, and the previews from the middle of their runs.

Then 8 clients ask for pictures of 20 steps, in turns with a preview after every second step and without previews: the
cost is the share of the throughput that is lost. Chance is 10 % recognised.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from omni_actors.entrypoints.bench.client import Client
from omni_actors.entrypoints.bench.sse import EventParser
from omni_actors.entrypoints.commands.target import Target
from omni_actors.models.digits.wording import TEMPLATES, prompt
from report import Aim, Report, arguments

WORDING = (
    "could you sketch {a_word} for me",
    "a picture of the digit {figure}",
    "paint the figure {figure}",
    "I would like a picture of the number {word}",
    "sketch the numeral {word}",
    "the numeral {figure}, handwritten",
    "please give me {a_word}",
    "one handwritten digit: {word}",
    "a scan of a handwritten {figure}",
    "what does {a_word} look like?",
    "a child's drawing of the digit {word}",
    "Please render the number {figure}",
    "a photo of the digit {word} on a blackboard",
    "{word}, written with a pen",
    "number {word}, drawn by hand",
    "let me see the digit {figure}",
    "Write {word} as a figure",
    "a white {word} on black",
    "I need an image showing {figure}",
    "the handwritten numeral for {word}",
)
"""None of these is a template of the training."""

CLIENTS = 8
START_S = 120.0


@dataclass
class Asked:
    """One picture: what was asked for, and what came. ``middle`` is the preview from the middle of the run."""

    digit: int
    wording: int
    steps: int
    body: dict[str, Any]
    middle: bytes | None = None
    whole: bytes | None = None
    previews: int = 0


class Reader:
    """Reads digits in pictures."""

    def __init__(self) -> None:
        digits = load_digits()
        self._nearest = KNeighborsClassifier(3).fit(digits.images.reshape(len(digits.images), -1) / 16, digits.target)

    def read(self, file: bytes | None) -> int | None:
        """Return the digit in a PNG file of enlarged pixels; ``None`` without a file."""
        if file is None:
            return None
        pixels = np.asarray(Image.open(io.BytesIO(file)).convert("L"))
        times = pixels.shape[0] // 8
        return int(self._nearest.predict(pixels[::times, ::times].reshape(1, -1) / 255)[0])


async def ask(client: Client, asked: Asked) -> None:
    """Receive the events of one picture."""
    connection, reply = await client.open("POST", "/images/generations", json.dumps(asked.body).encode())
    try:
        if reply.status != 200:
            raise SystemExit(f"{reply.status}: {(await reply.read()).decode()}")
        parser = EventParser()
        while part := await reply.receive():
            for data in parser.feed(part):
                event = json.loads(data) if data != b"[DONE]" else {}
                if event.get("type") == "image_generation.partial_image":
                    asked.previews += 1
                    if event["step"] == asked.steps // 2:
                        asked.middle = base64.b64decode(event["b64_json"])
                elif event.get("type") == "image_generation.completed":
                    asked.whole = base64.b64decode(event["b64_json"])
                elif event.get("type") == "error":
                    raise SystemExit(f"error event: {event}")
    finally:
        await client.done(connection)


async def closed_loop(client: Client, all_asked: list[Asked]) -> float:
    """Ask for pictures, :data:`CLIENTS` at a time, and return the seconds."""
    begun = time.perf_counter()
    left = iter(all_asked)

    async def one() -> None:
        for asked in left:
            await ask(client, asked)

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(one)
    return time.perf_counter() - begun


def body_of(text: str, steps: int, seed: int, interval: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": text, "stream": True, "num_inference_steps": steps, "seed": seed}
    return body if interval is None else {**body, "preview_interval": interval}


def unseen(count: int) -> list[Asked]:
    """Return pictures of all digits in all wordings, in a random order, each of 10 to 30 steps."""
    dice = random.Random(0)
    found = []
    for place in range(count):
        digit, wording = place % 10, place // 10 % len(WORDING)
        steps = dice.randint(10, 30)
        text = prompt(WORDING[wording], digit)
        found.append(Asked(digit, wording, steps, body_of(text, steps, dice.randrange(1 << 31), steps // 2)))
    dice.shuffle(found)
    return found


@dataclass
class Cost:
    """Pictures per second with previews at every second step and without, by round."""

    rates: dict[int | None, list[float]] = field(default_factory=lambda: {None: [], 2: []})
    previews: int = 0

    async def measure(self, client: Client, rounds: int, count: int) -> None:
        for number in range(2 * rounds):
            interval = (None, 2)[(number + number // 2) % 2]  # A B B A …
            texts = [prompt(TEMPLATES[0], digit % 10) for digit in range(count)]
            asked = [Asked(0, 0, 20, body_of(text, 20, seed, interval)) for seed, text in enumerate(texts)]
            took = await closed_loop(client, asked)
            self.previews += sum(it.previews for it in asked)
            self.rates[interval].append(count / took)

    @property
    def share(self) -> float:
        plain, shown = (statistics.median(self.rates[interval]) for interval in (None, 2))
        return 1 - shown / plain


@contextmanager
def served(model: str) -> Iterator[str]:
    """Serve a model and yield the URL."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as sink:
            server = subprocess.Popen(
                [sys.executable, "-m", "omni_actors", "serve", model, "--platform", "cpu", "--port", "0"],
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + START_S
            while b"ready in" not in log.read_bytes():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server did not come up:\n{log.read_text()[-3000:]}")
                time.sleep(0.2)
            text = log.read_text()
            yield text[text.index("http://") :].split()[0].rstrip(".,")
        finally:
            server.send_signal(signal.SIGINT)  # it ends its workers
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def main() -> None:
    options = arguments(__doc__ or "")
    options.add_argument("--model", default="digits", help="what to serve")
    options.add_argument("--sheet", type=Path, metavar="FILE", help="write all pictures to this image")
    parsed = options.parse_args()
    count, rounds, each = (40, 2, 24) if parsed.quick else (200, 4, 64)
    pictures, cost = unseen(count), Cost()
    with served(parsed.model) as url:
        client = Client(Target.parse(f"{url}/v1"))

        async def run() -> float:
            try:
                await closed_loop(client, unseen(CLIENTS))  # warm-up
                took = await closed_loop(client, pictures)
                await cost.measure(client, rounds, each)
                return took
            finally:
                await client.aclose()

        took = trio.run(run)
    report = judged(pictures, took, cost)
    if parsed.sheet:
        sheet(pictures, parsed.sheet)
    report.show()
    if parsed.json:
        report.write(parsed.json)
    if not all(aim.met for aim in report.aims):
        raise SystemExit(1)


def judged(pictures: list[Asked], took: float, cost: Cost) -> Report:
    reader = Reader()
    right = [reader.read(it.whole) == it.digit for it in pictures]
    middle = [reader.read(it.middle) == it.digit for it in pictures]
    report = Report(f"{len(pictures)} digits over HTTP, {CLIENTS} clients")
    for wording, template in enumerate(WORDING):
        mine = [place for place, it in enumerate(pictures) if it.wording == wording]
        if mine:
            whole, half = (statistics.fmean(found[place] for place in mine) for found in (right, middle))
            report.rows.append({"wording": template, "recognised": whole, "half-way": half, "pictures": len(mine)})
    steps = sum(it.steps for it in pictures)
    report.notes.append(f"{len(pictures) / took:.1f} pictures/s, {steps / took:.0f} steps/s")
    for interval, rates in cost.rates.items():
        how = "without previews" if interval is None else "a preview every 2 steps"
        report.notes.append(f"{how}: {', '.join(f'{rate:.1f}' for rate in rates)} pictures/s of 20 steps")
    report.notes.append(f"previews received while measuring: {cost.previews}")
    report.aims = [
        Aim("share recognised", statistics.fmean(right), 0.9, ">="),
        Aim("share of half-way previews recognised", statistics.fmean(middle), 0.5, ">="),
        Aim("cost of previews at every second step", cost.share, 0.05, "<="),
    ]
    return report


def sheet(pictures: list[Asked], file: Path) -> None:
    """Write an image of all pictures, a row for each digit."""
    rows = []
    for digit in range(10):
        mine = sorted((it for it in pictures if it.digit == digit), key=lambda it: it.wording)
        row = [np.asarray(Image.open(io.BytesIO(it.whole)).convert("L")) for it in mine if it.whole is not None]
        rows.append(np.concatenate(row, 1))
    Image.fromarray(np.concatenate(rows, 0)).save(file)


if __name__ == "__main__":
    main()
