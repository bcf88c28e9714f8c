"""Step caches of diffusion: quality, speed and skipped steps for each setting, in one run.

    python benchmarks/diffusion_cache.py [--quick] [--json FILE] [--family digits] [--pictures 200]

Pictures are made in the real engine, eight at a time, with the model's own guidance: once without a cache, then with
each setting. Told are the skipped steps, denoising steps per second of one
processor thread and their ratio to those without a cache, and the
signal to noise (PSNR in dB) of the pixels against the pictures without a cache. With the digits model also the share of
pictures that a k-NN on scikit-learn's digits recognises. Tiny checkpoints have random weights: their figures are about
speed; how much a released model loses, only its own weights say.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_actors.models.digits.pipeline import PIPELINE as DIGITS
from omni_actors.models.digits.wording import WORDS
from omni_actors.models.tiny.cache import cached
from omni_actors.models.weights.cache import digits_folder
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.testing.driving import Job, drive
from omni_actors.testing.outcome import Outcome
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion import DiffusionEngine
from report import Aim, Report, arguments

AT_ONCE = 8

SETTINGS: tuple[dict[str, float], ...] = (
    {"threshold": 0.1},
    {"threshold": 0.2},
    {"threshold": 0.3},
    {"threshold": 0.5},
    {"threshold": 0.3, "max_skips": 1},
    {"threshold": 0.3, "warmup": 4},
    {"threshold": 0.3, "first_blocks": 2},
    {"threshold": 0.3, "last_blocks": 1},
)

PROMPTS = ("could you sketch a {word} for me", "a picture of the digit {figure}", "a {word}, handwritten, please")
"""Wording that the digits model was not trained with."""


@dataclass(frozen=True)
class Model:
    """A model to measure.

    Args:
        name: Its name in the table.
        adapter: Its adapter.
        folder: Its checkpoint.
        options: The options of its stage.
        steps: Denoising steps of each picture.
    """

    name: str
    adapter: str
    folder: Path
    options: dict[str, Any]
    steps: int


def models(family: str) -> list[Model]:
    """Return the models to measure."""
    found = []
    if family in ("", "digits"):
        stage = DIGITS.stages[0]
        options = {name: option.default for name, option in stage.options.items()}
        folder = digits_folder()
        found.append(Model("digits", stage.adapter or "", folder, options, 20))
    for name, adapter in (("sd3", "omni_actors.models.sd3.adapter:StableDiffusion3"),):
        if family in ("", name):
            found.append(Model(f"tiny {name}", adapter, cached(name), {}, 20))
    return found


def engine_of(model: Model, **options: Any) -> DiffusionEngine:
    """Return the real engine with a model, loaded, with further options of its stage."""
    engine = DiffusionEngine(
        Hello(
            version=PROTOCOL_VERSION,
            stage="image",
            replica=0,
            incarnation=1,
            engine="diffusion",
            adapter=model.adapter,
            model=str(model.folder),
            dtype="float32",
            device="cpu",
            options={**model.options, "max_rows": 2 * AT_ONCE, **options},
        )
    )
    engine.load(lambda text, fraction: None)
    return engine


def prompt(number: int) -> str:
    """Return the prompt of a picture; its digit is ``number`` modulo 10."""
    word = WORDS[number % 10]
    return PROMPTS[number // 10 % len(PROMPTS)].format(word=word, figure=number % 10)


@dataclass
class Made:
    """Pictures with one setting: pixels, steps per second of the processor, and the part of the steps that was
    skipped."""

    pixels: list[np.ndarray[Any, Any]]
    rate: float
    skipped: float


def make(engine: DiffusionEngine, model: Model, count: int, cache: dict[str, float], begin: int = 0) -> Made:
    """Make pictures from number ``begin``, :data:`AT_ONCE` at a time. The time is the processor's for the whole engine
    on one thread, so that other work on the machine counts little."""
    pixels, skipped, seconds = [], 0, 0.0
    for first in range(begin, begin + count, AT_ONCE):
        jobs = []
        for number in range(first, min(begin + count, first + AT_ONCE)):
            image = ImageGeneration(prompt=prompt(number), seed=number, steps=model.steps, cache=cache)
            jobs.append(Job(Work(number, f"picture-{number}", {"image": image}, routed=True)))
        begun = time.process_time()
        outcomes = drive(engine, jobs)
        seconds += time.process_time() - begun
        for number in sorted(outcomes):
            pixels.append(picture_of(outcomes[number]))
            usage = outcomes[number].usage
            skipped += usage.skipped_steps if usage else 0
    steps = count * model.steps
    return Made(pixels, steps / seconds, skipped / steps)


def picture_of(outcome: Outcome) -> np.ndarray[Any, Any]:
    """Return the pixels of a finished picture."""
    assert outcome.error is None, outcome.error
    array: np.ndarray[Any, Any] = np.asarray(outcome.payloads[-1].tensors["pixels"])
    return array


def psnr(one: Sequence[np.ndarray[Any, Any]], two: Sequence[np.ndarray[Any, Any]]) -> float:
    """Return the signal to noise of all pixels in dB."""
    error = np.mean([(a.astype(float) - b) ** 2 for a, b in zip(one, two, strict=True)])
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def recognised(pictures: Sequence[np.ndarray[Any, Any]]) -> float:
    """Return the share of pictures in which a k-NN reads the digit that was asked for."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import KNeighborsClassifier

    data = load_digits()
    knn = KNeighborsClassifier(3).fit(data.data, data.target)
    times = pictures[0].shape[0] // 8
    small = np.stack([picture[::times, ::times, 0].astype(float) / 255 * 16 for picture in pictures])
    said = knn.predict(small.reshape(len(small), -1))
    return float(np.mean(said == np.arange(len(pictures)) % 10))


def in_turn(engine: DiffusionEngine, model: Model, count: int, settings: Sequence[dict[str, float]]) -> list[Made]:
    """Make the same pictures with each setting, eight with one after eight with another: a machine that is slower for a
    while is slower for all settings."""
    found = [Made([], 0.0, 0.0) for _ in settings]
    seconds = [0.0] * len(settings)
    for first in range(0, count, AT_ONCE):
        for place, setting in enumerate(settings):
            made = make(engine, model, min(AT_ONCE, count - first), setting, first)
            found[place].pixels += made.pixels
            found[place].skipped += made.skipped * len(made.pixels) / count
            seconds[place] += len(made.pixels) * model.steps / made.rate
    for made, spent in zip(found, seconds, strict=True):
        made.rate = count * model.steps / spent
    return found


def measure(model: Model, count: int, report: Report) -> None:
    """Add the rows of one model, and for the digits its aims."""
    engine = engine_of(model)
    make(engine, model, 3 * 10, {})  # prompts are encoded, and torch is warm
    plain, *others = in_turn(engine, model, count, ({}, *SETTINGS))
    real = model.name == "digits"
    read = recognised(plain.pixels) if real else None
    row = {"model": model.name, "cache": "none", "skipped": 0.0, "steps/s": plain.rate, "ratio": 1.0, "PSNR": None}
    report.rows.append({**row, "recognised": read})
    best = 0.0
    for setting, made in zip(SETTINGS, others, strict=True):
        ratio, mine = made.rate / plain.rate, recognised(made.pixels) if real else None
        report.rows.append(
            {
                "model": model.name,
                "cache": " ".join(f"{name}={value:g}" for name, value in setting.items()),
                "skipped": made.skipped,
                "steps/s": made.rate,
                "ratio": ratio,
                "PSNR": psnr(made.pixels, plain.pixels),
                "recognised": mine,
            }
        )
        if mine is not None and read is not None and mine >= read - 0.01:
            best = max(best, ratio)
    if real:
        report.aims.append(Aim("digits: steps/s with a cache, at most 1 point less recognised", best, 1.3, ">="))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--family", default="", help="one of digits, sd3; all by default")
    parser.add_argument("--pictures", type=int, default=200, help="pictures with each setting")
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("Step caches")
    for model in models(args.family):
        measure(model, 24 if args.quick else args.pictures, report)
    report.show()
    if args.json:
        report.write(args.json)


if __name__ == "__main__":
    main()
