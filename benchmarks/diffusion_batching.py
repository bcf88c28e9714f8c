"""The diffusion engine, beside the bare diffusers pipeline and beside itself with joining switched off.

1. Throughput at 1, 2, 4 and 8 requests at a time, of a model of the digits' size (SD3, 1.39 M parameters, 16 picture
   and 12 text tokens), a tiny Qwen-Image and a tiny FLUX, all with random weights. *Serial* is the diffusers pipeline,
   one request after the other. The *loop* is the engine's steps while all of them denoise; its *ceiling* is the
   denoiser's forward alone, called with as many rows behind each of these steps.
2. Poisson arrivals of pictures with 4, 20 and 50 steps at 0.8 and 1.2 of the serial capacity: the latency of the
   engine, and of the same engine with joining off (request batching).
3. Pictures that cannot share a forward: a short one beside a long one, and a long one beside a closed loop of short
   ones.

Time is the processor time of this process, which computes with one thread: other processes of the machine do not count,
and the arrivals of part 2 are points on that clock, so that nobody waits for an idle engine.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

import diffusers
import torch

from omni_actors.models.diffusion.adapter import DiffusersAdapter
from omni_actors.models.diffusion.rows import Conditioning
from omni_actors.models.sd3.adapter import Embeddings, StableDiffusion3
from omni_actors.models.tiny import FAMILIES
from omni_actors.models.tiny.cache import cached
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import StepProgress, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion import DiffusionEngine
from omni_actors.worker.engines.diffusion.cursor import Cursor
from report import Aim, Report, arguments, percentile

CONCURRENCY = (1, 2, 4, 8)
STEPS = 20
PICTURES = 3
"""Pictures of each client of a closed loop."""
MIX = (4, 20, 50)
LOADS = (0.8, 1.2)
"""Arrivals per second, in parts of what the serial pipeline can do."""

CEILING_AIM = 0.85
P50_AIM, P95_AIM = 0.6, 0.8
SHORT_AIM, LONG_AIM = 1.2, 4.0


class WorkClock:
    """Processor seconds of this process, and the idle time that is skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.process_time() + self._skipped

    def skip_to(self, moment: float) -> None:
        self._skipped += max(0.0, moment - self())


@dataclass
class Out:
    """An outbox that notes when requests end."""

    clock: Callable[[], float]
    ended: dict[int, float] = field(default_factory=dict)

    def ready(self, key: int) -> bool:
        return True

    def emit(self, key: int, payload: Any) -> None:
        pass

    def progress(self, progress: StepProgress) -> None:
        pass

    def finish(self, key: int, usage: Usage) -> None:
        self.ended[key] = self.clock()

    def fail(self, key: int, error: Any) -> None:
        raise SystemExit(f"a picture failed: {error.message}")


class DigitsSize(StableDiffusion3):
    """An SD3 of the size of the digits' model, with random weights and embeddings: its text encoder, a language model
    of 135 M parameters, is not what is measured here."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        torch.manual_seed(0)
        transformer = diffusers.SD3Transformer2DModel(
            sample_size=8,
            patch_size=2,
            in_channels=1,
            out_channels=1,
            num_layers=4,
            attention_head_dim=16,
            num_attention_heads=6,
            caption_projection_dim=96,
            joint_attention_dim=576,
            pooled_projection_dim=576,
            pos_embed_max_size=16,
        )
        vae = diffusers.AutoencoderKL(
            in_channels=1,
            out_channels=1,
            latent_channels=1,
            block_out_channels=(8,),
            norm_num_groups=8,
            shift_factor=0.0,
            scaling_factor=1.0,
            down_block_types=("DownEncoderBlock2D",),
            up_block_types=("UpDecoderBlock2D",),
        )
        self.pipe = diffusers.StableDiffusion3Pipeline(
            transformer=transformer.eval(),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
            vae=vae.eval(),
            **dict.fromkeys(self.encoders),
        )
        self.pipe.set_progress_bar_config(disable=True)
        self.prepare()
        return self.facts()

    def check(self, work: Work, image: ImageGeneration) -> None:
        pass

    def embeddings(self) -> list[torch.Tensor]:
        """Return the sequence and the pooled embedding of a prompt, and those of the negative prompt."""
        draw = torch.Generator().manual_seed(1)
        return [torch.randn(shape, generator=draw) for shape in 2 * ((1, 12, 576), (1, 576))]

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        sequence, pooled, negative, negative_pooled = self.embeddings()
        yield [Conditioning(Embeddings(sequence, pooled), Embeddings(negative, negative_pooled)) for _ in cursors]


@dataclass
class Subject:
    """A model, loaded in an engine."""

    name: str
    engine: DiffusionEngine
    clock: WorkClock
    image: dict[str, Any]
    """The section ``image`` of its requests."""
    call: dict[str, Any]
    """The arguments of the diffusers pipeline for the same picture."""
    keys: Iterator[int] = field(default_factory=itertools.count)

    @property
    def pipe(self) -> Any:
        adapter: Any = self.engine._adapter
        return adapter.pipe

    @property
    def model(self) -> Any:
        adapter: Any = self.engine._adapter
        return adapter.model

    def admit(self, steps: int, **image: Any) -> int:
        key = next(self.keys)
        section = ImageGeneration(**{"prompt": "a seven", "seed": key, "steps": steps, **self.image, **image})
        self.engine.admit(Work(key, str(key), {"image": section}))
        return key

    def serial(self, steps: int) -> float:
        """Return the seconds of one picture by the bare pipeline."""
        begin = self.clock()
        generator = torch.Generator().manual_seed(0)
        self.pipe(num_inference_steps=steps, generator=generator, output_type="np", **self.call)
        return self.clock() - begin

    def counters(self) -> dict[str, float]:
        return self.engine.counters()


def make(
    adapter: type[DiffusersAdapter], folder: str | None = None, **options: Any
) -> tuple[DiffusionEngine, WorkClock]:
    """Return an engine with a loaded adapter, and its clock."""
    clock = WorkClock()
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="image",
        replica=0,
        incarnation=1,
        engine="omni_actors.worker.engines.diffusion:DiffusionEngine",
        adapter=f"{adapter.__module__}:{adapter.__qualname__}",
        model=folder,
        threads=1,
        options=options,
    )
    engine = DiffusionEngine(hello, clock)
    made = adapter(hello)
    made.load(lambda text, fraction: None)
    engine.attach(made)
    return engine, clock


def digits(**options: Any) -> Subject:
    engine, clock = make(DigitsSize, **options)
    adapter: Any = engine._adapter
    sequence, pooled, negative, negative_pooled = adapter.embeddings()
    call = {
        "prompt_embeds": sequence,
        "pooled_prompt_embeds": pooled,
        "negative_prompt_embeds": negative,
        "negative_pooled_prompt_embeds": negative_pooled,
        "guidance_scale": 3.0,
        "width": 8,
        "height": 8,
    }
    return Subject("digits", engine, clock, {"width": 8, "height": 8, "guidance": 3.0}, call)


def tiny(name: str, family: str, adapter: str, guidance: str) -> Subject | None:
    """Return a tiny checkpoint's model, of 64 x 64 pixels, if the package has its family."""
    if family not in FAMILIES:
        return None
    engine, clock = make(resolve_name(adapter), str(cached(family)))
    size = {"width": 64, "height": 64}
    call = {"prompt": "a seven", "negative_prompt": " ", guidance: 3.0, **size}
    image: dict[str, Any] = {"guidance": 3.0, "negative_prompt": " ", **size}
    if guidance == "guidance_scale":  # a number that the transformer reads, and no second branch
        del call["negative_prompt"], image["negative_prompt"]
    return Subject(name, engine, clock, image, call)


def subjects() -> list[Subject]:
    found = [
        digits(),
        tiny("Qwen-Image", "qwen-image", "omni_actors.models.qwen_image.adapter:QwenImage", "true_cfg_scale"),
        tiny("FLUX", "flux", "omni_actors.models.flux.adapter:Flux", "guidance_scale"),
    ]
    return [it for it in found if it is not None]


# --- throughput ------------------------------------------------------------------------------------------------------


@dataclass
class Closed:
    """A run of a closed loop. ``shared`` are the pictures that shared a forward, on average, while as many requests as
    allowed were there."""

    seconds: float
    shared: float


def closed_loop(it: Subject, concurrency: int, pictures: int) -> Closed:
    """Keep ``concurrency`` requests in the engine until ``pictures`` have ended."""
    out: Any = Out(it.clock)
    left, shared = pictures, list[float]()
    begin = it.clock()
    # Requests begin at different steps, as those of clients do.
    waiting = [STEPS - place * STEPS // concurrency for place in range(concurrency)]
    while left or it.engine.runnable:
        while left and len(it.engine._table.requests) < concurrency:
            it.admit(waiting.pop() if waiting else STEPS)
            left -= 1
        before = it.counters()["picture_steps_total"]
        it.engine.step(out)
        made = it.counters()["picture_steps_total"] - before
        if made and left and not waiting:
            shared.append(made)
    return Closed(it.clock() - begin, statistics.mean(shared))


def loop(it: Subject, concurrency: int, forward: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """Return the seconds of the engine's steps in which so many requests denoise, and those of the forward alone,
    called behind each of these steps."""
    out: Any = Out(it.clock)
    keys = [it.admit(3 * STEPS) for _ in range(concurrency)]
    steps, bare = list[float](), list[float]()
    while len(steps) < 2 * STEPS:
        before, start = it.counters()["picture_steps_total"], it.clock()
        it.engine.step(out)
        took = it.clock() - start
        if it.counters()["picture_steps_total"] - before == concurrency:
            steps.append(took)
            start = it.clock()
            forward()
            bare.append(it.clock() - start)
    for key in keys:
        it.engine.abort(key)
    return steps, bare


def forward_of(it: Subject, concurrency: int) -> Callable[[], Any]:
    """Return the denoiser's forward alone, with the inputs that so many requests have."""
    kept: list[Any] = []

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        kept.append((args, kwargs))

    hook = it.model.register_forward_pre_hook(keep, with_kwargs=True)
    out: Any = Out(it.clock)
    for _ in range(concurrency):
        it.admit(STEPS)
    count = it.counters()["picture_steps_total"]
    while it.counters()["picture_steps_total"] - count < concurrency:
        count = it.counters()["picture_steps_total"]
        kept.clear()
        it.engine.step(out)
    hook.remove()
    for key in list(it.engine._table.requests):
        it.engine.abort(key)
    ((args, kwargs),) = kept
    model = it.model

    def forward() -> None:
        with torch.inference_mode():
            model(*args, **kwargs)

    return forward


def throughput(it: Subject, repeats: int, report: Report) -> None:
    forwards = {c: forward_of(it, c) for c in CONCURRENCY}
    serial: list[float] = []
    runs: dict[int, list[Closed]] = {c: [] for c in CONCURRENCY}
    steps: dict[int, list[float]] = {c: [] for c in CONCURRENCY}
    bare: dict[int, list[float]] = {c: [] for c in CONCURRENCY}
    it.serial(STEPS)
    for _ in range(repeats):
        for c in CONCURRENCY:
            serial.append(it.serial(STEPS))
            runs[c].append(closed_loop(it, c, PICTURES * c))
            for found, more in zip((steps[c], bare[c]), loop(it, c, forwards[c]), strict=True):
                found += more
    alone = statistics.median(serial)
    for c in CONCURRENCY:
        step, ceiling = statistics.median(steps[c]), statistics.median(bare[c])
        seconds = statistics.median([run.seconds / (PICTURES * c) for run in runs[c]])
        shared = statistics.mean([run.shared for run in runs[c]])
        report.rows.append(
            {
                "model": it.name,
                "at once": c,
                "pictures/s": 1 / seconds,
                "serial": 1 / alone,
                "times": alone / seconds,
                "step ms": 1e3 * step,
                "bare forward ms": 1e3 * ceiling,
                "of the ceiling": ceiling / step,
                "pictures per forward": shared,
            }
        )
        if c == max(CONCURRENCY):
            name = f"{it.name}, {c} at once: share of what bare forwards with as many rows allow"
            report.aims.append(Aim(name, ceiling / step, CEILING_AIM, ">="))


# --- arrivals --------------------------------------------------------------------------------------------------------


def latencies(it: Subject, arrivals: Sequence[tuple[float, int]]) -> tuple[list[float], float]:
    """Return the latency of each arrival, and the pictures that shared a forward on average."""
    out: Any = Out(it.clock)
    before = it.counters()
    waiting, came = list(reversed(arrivals)), {}
    origin = it.clock()
    while waiting or it.engine.runnable:
        while waiting and origin + waiting[-1][0] <= it.clock():
            at, steps = waiting.pop()
            came[it.admit(steps)] = origin + at
        if it.engine.runnable:
            it.engine.step(out)
        else:
            it.clock.skip_to(origin + waiting[-1][0])
    after = it.counters()
    forwards = after["forwards_total"] - before["forwards_total"]
    shared = (after["picture_steps_total"] - before["picture_steps_total"]) / forwards
    return [out.ended[key] - at for key, at in came.items()], shared


def poisson(joining: Subject, apart: Subject, pictures: int, report: Report) -> None:
    mean = statistics.mean(statistics.median([joining.serial(steps) for _ in range(3)]) for steps in MIX)
    for load in LOADS:
        draw = random.Random(round(10 * load))
        at, arrivals = 0.0, []
        for _ in range(pictures):
            at += draw.expovariate(load / mean)
            arrivals.append((at, draw.choice(MIX)))
        found = {}
        for name, it in (("joining", joining), ("joining off", apart)):
            found[name], shared = latencies(it, arrivals)
            report.rows.append(
                {
                    "load": load,
                    "engine": name,
                    "p50 ms": 1e3 * percentile(found[name], 0.5),
                    "p95 ms": 1e3 * percentile(found[name], 0.95),
                    "mean ms": 1e3 * statistics.mean(found[name]),
                    "pictures per forward": shared,
                }
            )
        for share, aim in ((0.5, P50_AIM), (0.95, P95_AIM)):
            ratio = percentile(found["joining"], share) / percentile(found["joining off"], share)
            name = f"arrivals at {load} of serial capacity: p{100 * share:.0f}, times that with joining off"
            report.aims.append(Aim(name, ratio, aim, "<="))


# --- unlike pictures -------------------------------------------------------------------------------------------------

LONG: dict[str, Any] = {"steps": 50, "width": 16}
SHORT: dict[str, Any] = {"steps": 4}


def finish(it: Subject, out: Any, key: int) -> float:
    """Step until a request has ended, and return when it did."""
    while key not in out.ended:
        it.engine.step(out)
    ended: float = out.ended[key]
    return ended


def alone_s(it: Subject, image: dict[str, Any]) -> float:
    out: Any = Out(it.clock)
    begin = it.clock()
    return finish(it, out, it.admit(**image)) - begin


def unlike(it: Subject, repeats: int, report: Report) -> None:
    solo: dict[str, list[float]] = {"short": [], "long": []}
    beside, steps, loops = list[float](), list[float](), list[float]()
    for _ in range(repeats):
        solo["short"].append(alone_s(it, SHORT))
        solo["long"].append(alone_s(it, LONG))
        out: Any = Out(it.clock)
        long = it.admit(**LONG)
        for _ in range(10):
            begin = it.clock()
            it.engine.step(out)
            steps.append(it.clock() - begin)
        begin = it.clock()
        it.engine.step(out)  # the step that runs when the short one comes
        beside.append(finish(it, out, it.admit(**SHORT)) - begin)
        finish(it, out, long)
        loops.append(closed_loop_of_short(it))
    short_s, long_s = (statistics.median(solo[name]) for name in ("short", "long"))
    step = statistics.median(steps)
    report.rows += [
        {"picture": "4 steps", "alone ms": 1e3 * short_s, "beside ms": 1e3 * statistics.median(beside)},
        {"picture": "50 steps", "alone ms": 1e3 * long_s, "beside ms": 1e3 * statistics.median(loops)},
    ]
    ratio = (statistics.median(beside) - step) / short_s
    report.aims.append(Aim("4 steps beside 50 of another size: less one step, times alone", ratio, SHORT_AIM, "<="))
    ratio = statistics.median(loops) / long_s
    report.aims.append(Aim("50 steps beside a closed loop of 4 steps: times alone", ratio, LONG_AIM, "<="))


def closed_loop_of_short(it: Subject) -> float:
    """Return the seconds of a long picture beside one client that asks for one short picture after the other."""
    out: Any = Out(it.clock)
    begin = it.clock()
    long = it.admit(**LONG)
    while long not in out.ended:
        if len(it.engine._table.requests) < 2:
            it.admit(**SHORT)
        it.engine.step(out)
    seconds = it.clock() - begin
    for key in list(it.engine._table.requests):
        it.engine.abort(key)
    return seconds


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=150, help="arrivals of part 2, for each load")
    options: argparse.Namespace = parser.parse_args()
    repeats, pictures = (1, 40) if options.quick else (options.repeats, options.pictures)
    torch.set_num_threads(1)
    whole = Report("the diffusion engine")
    found = subjects()
    parts = [Report("throughput"), Report("arrivals of 4, 20 and 50 steps"), Report("pictures that share no forward")]
    for it in found:
        throughput(it, repeats, parts[0])
    poisson(found[0], digits(join=False), pictures, parts[1])
    unlike(found[0], repeats, parts[2])
    for part in parts:
        part.show()
        whole.rows += [{"part": part.title, **row} for row in part.rows]
        whole.aims += part.aims
    if options.json:
        whole.write(options.json)


if __name__ == "__main__":
    main()
