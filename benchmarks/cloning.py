"""The cost of a clip of a voice on its first use, and when the clip is known (Qwen3-TTS).

    python benchmarks/cloning.py [--quick] [--json FILE]

Two measurements: the encoders alone in the sizes of the real checkpoints (0.6B, random weights), and the tiny
checkpoint in one worker, from the request to its first sound, tokenizing and prompt included. Wall time of one thread,
the least of several runs; each cold run has a new clip.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.utils import logging

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload, pcm_payload
from omni_actors.models.common.speech import Clip
from omni_actors.models.qwen3_tts.cloning import Cloner
from omni_actors.models.qwen3_tts.codec_model import checkpoint_name, make_encoder
from omni_actors.models.qwen3_tts.package import package
from omni_actors.models.tiny.cache import cached
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.chained import ChainedEngine
from report import Aim, Report, arguments

RATE = 16_000
CACHE_BYTES = 256 << 20


def clips(seconds: float) -> Iterator[Clip]:
    """Return clips of that length, all different."""
    for seed in count():
        noise = np.random.default_rng(seed).standard_normal(round(seconds * RATE))
        yield Clip((noise * 0.1).astype(np.float32), RATE)


def least(run: Callable[[], object], repeats: int) -> float:
    """Return the least time in milliseconds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def cold_and_warm(hear: Callable[[Clip], object], seconds: float, repeats: int) -> dict[str, Any]:
    fresh = clips(seconds)
    cold = least(lambda: hear(next(fresh)), repeats)
    known = next(clips(seconds))
    hear(known)
    warm = least(lambda: hear(known), repeats)
    return {"clip s": seconds, "cold ms": cold, "warm ms": warm, "cold / warm": cold / warm}


def encoders(folder: Path) -> Cloner:
    """Return the encoders in the sizes of the real checkpoints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the package's names are older than transformers 5's
        config = package().config()
    codec = package().codec_config()
    (folder / "speech_tokenizer").mkdir()
    codec.save_pretrained(folder / "speech_tokenizer")
    weights = {checkpoint_name(name): it for name, it in make_encoder(codec).state_dict().items()}
    save_file(weights, folder / "speech_tokenizer" / "model.safetensors")
    speaker = package().speaker_encoder(config.speaker_encoder_config)
    save_file({f"speaker_encoder.{n}": it for n, it in speaker.state_dict().items()}, folder / "model.safetensors")
    return Cloner(folder, config, torch.float32, "cpu", CACHE_BYTES)


class FirstSound:
    """An outbox that waits for the first sound."""

    def __init__(self) -> None:
        self.seen = False

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        self.seen = True

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        pass

    def consumed(self, key: int, port: str) -> None:
        pass

    def finish(self, key: int, usage: Usage) -> None:
        pass

    def fail(self, key: int, error: ErrorInfo) -> None:
        raise RuntimeError(error.message)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        pass


def engine() -> ChainedEngine:
    adapter, folder = "omni_actors.models.qwen3_tts.fused:LINKS", str(cached("qwen3-tts-base"))
    hello = Hello(
        version=PROTOCOL_VERSION, stage="tts", replica=0, incarnation=1, engine="", adapter=adapter, model=folder
    )
    made = ChainedEngine(hello)
    made.load(lambda text, fraction: None)
    return made


def speak(chain: ChainedEngine, speech: Speech, clip: Clip) -> None:
    """Return the time from the request to its first sound."""
    out = FirstSound()
    chain.admit(Work(1, "request", {"speech": speech}, frozenset({"reference"}), visible=True))
    chain.feed(1, "reference", pcm_payload(clip.samples, clip.rate), True)
    while not out.seen:
        chain.step(out)
    chain.abort(1)


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    repeats, lengths = (1, (3.0, 10.0)) if options.quick else (3, (3.0, 10.0, 30.0))
    report = Report("Hearing the clip of a voice")
    chain = engine()
    with tempfile.TemporaryDirectory() as folder:
        cloner = encoders(Path(folder))
        for seconds in lengths:
            for takes, codes in (("timbre", False), ("timbre and frames", True)):
                speech = Speech(text="Paris.", x_vector_only=not codes, ref_text="The clip." if codes else None)
                figures = cold_and_warm(partial(cloner.hear, codes=codes), seconds, repeats)
                report.rows.append({"measured": "real sizes: encoders", "taken": takes, **figures})
                figures = cold_and_warm(partial(speak, chain, speech), seconds, 3 * repeats)
                report.rows.append({"measured": "tiny: first sound", "taken": takes, **figures})
    slowest = report.rows[-2]
    report.aims.append(Aim("real sizes: a known clip, ms", slowest["warm ms"], 10, "<="))
    report.aims.append(Aim("real sizes: cold / warm", slowest["cold / warm"], 20, ">="))
    hits, misses = (chain.counters()[f"voice_clip_{name}_total"] for name in ("hits", "misses"))
    report.notes.append(f"the tiny checkpoint's cache: {hits:.0f} hits, {misses:.0f} misses")
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
