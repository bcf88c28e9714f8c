"""The audio encoder stage of a model with audio input: clips → features for the decoder's prompt."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import soxr
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import Usage
from omni_actors.worker.byte_cache import ByteCache
from omni_actors.worker.checks import WarmUpError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result
from omni_actors.worker.memory import give_memory_back
from omni_actors.worker.tensors import tensor_payload

RATE = 16_000

Samples = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Clip:
    """An item: float32 [n] at 16 kHz, the ``index``-th of its request's media."""

    index: int
    samples: Samples


class AudioTower(GenerationAdapter[Work, Clip]):
    """The audio encoder stage.

    Port ``audio`` takes clips (kind ``pcm``). For each clip the stage emits a payload of kind ``features``: the tensor
    ``features`` [tokens, hidden], and ``modality``, ``index``, ``tokens``, ``digest`` (of the samples) in its metadata.

    A clip is encoded window by window, one window per step, so that a long clip delays the others by one window at
    most, and stops when its request is aborted. A recently encoded clip is not encoded again. Options: ``max_seconds``,
    ``cache_bytes``.
    """

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._max_seconds = float(hello.options.get("max_seconds", 1800.0))
        self.cache: ByteCache[str, torch.Tensor] = ByteCache(hello.options.get("cache_bytes", 64 << 20))

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        torch.set_num_threads(self.hello.threads)
        folder = self.hello.model
        assert folder is not None
        progress("loading the weights", None)
        self.build(folder, torch.device(self.hello.device), getattr(torch, self.hello.dtype))
        give_memory_back()
        progress("warming up", None)
        with torch.inference_mode():
            for features in self.encode(np.zeros(RATE, np.float32)):
                if not features.isfinite().all():
                    raise WarmUpError("features")
        return {"dtype": self.hello.dtype}

    @abstractmethod
    def build(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        """Load the feature extractor and the tower's weights."""

    @abstractmethod
    def encode(self, samples: Samples) -> Iterator[torch.Tensor]:
        """Yield the features [tokens, hidden] of one clip, float32 [n] at 16 kHz, in parts that each take a moment to
        compute. Runs in inference mode."""

    def open(self, work: Work) -> tuple[Work, Sequence[Clip]]:
        return work, ()

    def feed(self, state: Work, port: str, payload: Payload | None, end: bool) -> Sequence[Clip]:
        if payload is None:
            return ()
        samples, rate = payload.tensors["samples"], payload.meta["sample_rate"]
        if not len(samples):
            raise invalid_request("The clip is empty.", param="file")
        if len(samples) > self._max_seconds * rate:
            message = f"The clip is {len(samples) / rate:.0f} s long; at most {self._max_seconds:.0f} s are allowed."
            raise invalid_request(message, param="file")
        if rate != RATE:
            samples = soxr.resample(samples, rate, RATE)
        return (Clip(payload.meta["index"], np.ascontiguousarray(samples, np.float32)),)

    def run(self, items: Sequence[Clip]) -> Sequence[Result | OmniError]:
        return [Result(self._pieces(clip), Usage(audio_input_s=len(clip.samples) / RATE)) for clip in items]

    def counters(self) -> dict[str, float]:
        return {"cache_hits_total": self.cache.hits, "cache_misses_total": self.cache.misses}

    def _pieces(self, clip: Clip) -> Iterator[Piece]:
        """Yield empty pieces while there is more to compute, then the payload."""
        digest = hashlib.blake2b(clip.samples.data, digest_size=16).hexdigest()
        features = self.cache.get(digest)
        if features is None:
            parts: list[torch.Tensor] = []
            remaining = self.encode(clip.samples)
            while True:
                with torch.inference_mode():
                    part = next(remaining, None)
                if part is None:
                    break
                parts.append(part)
                yield Piece()
            features = torch.cat(parts).cpu()
            if features.isfinite().all():
                self.cache.put(digest, features, features.nbytes)
        meta = {"modality": "audio", "index": clip.index, "tokens": len(features), "digest": digest}
        yield Piece(tensor_payload("features", meta, {"features": features}))
