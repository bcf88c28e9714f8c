"""The encoder stage of a multimodal model: images, clips and videos to features for the prompt.

Each medium becomes one payload of kind ``features``: tensor ``features`` [tokens, width] (and ``deepstack`` [levels,
tokens, width] in families with deep features, ``audio`` [tokens, width] for a video with sound); its metadata holds the
fields of :class:`~omni_actors.models.common.multimodal.Medium`, ``grid`` only for images and videos,
``second_per_grid`` and ``audio_tokens`` only for videos.

Features do not depend on other media of the batch: images share a batch, since each attends to itself alone, and so do
clips, where the family allows it. A recently encoded medium is not encoded again.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.vision import Patches, Vision
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
"""Sampling rate of incoming sound, in Hz."""

LEAST_SAMPLES = 400
"""A clip shorter than a window of the spectrum has none."""

Samples = np.ndarray[Any, np.dtype[np.float32]]

Features = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Item:
    """One medium in its original form: of kind ``image`` (``pixels``), ``pcm`` (``samples``) or ``video`` (``frames``,
    and ``samples`` if it has sound). ``digest`` is of its bytes."""

    payload: Payload
    digest: str

    @property
    def samples(self) -> Samples | None:
        return self.payload.tensors.get("samples")


@dataclass(frozen=True, slots=True)
class Encoded:
    """The encoding of a medium: tensors on the host, and their part of the metadata."""

    tensors: Features
    facts: dict[str, Any]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite. Other encodings are not cached."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors.values())


class MediaEncoder(GenerationAdapter[Work, Item]):
    """The encoder stage. A family sets ``vision`` in :meth:`build`, and implements :meth:`look` and :meth:`listen`.
    Option: ``cache_bytes``."""

    vision: Vision

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.cache: ByteCache[str, Encoded] = ByteCache(hello.options.get("cache_bytes", 64 << 20))

    def sight(self, folder: str, size: Mapping[str, int]) -> Vision:
        """Return a converter of pictures into patches, within the options' bounds. ``size`` is the processor's of a
        video's frames."""
        options = self.hello.options
        most = (options.get("image_max_pixels"), options.get("video_max_pixels"))
        return Vision(folder, (size["shortest_edge"], size["longest_edge"]), most)

    @abstractmethod
    def build(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        """Load the processors and the towers' weights."""

    @abstractmethod
    def look(self, pictures: Sequence[Patches]) -> list[Features]:
        """Return features of images and videos, in one pass. Called in inference mode, as :meth:`listen` is."""

    @abstractmethod
    def listen(self, clips: Sequence[Samples]) -> list[torch.Tensor]:
        """Return features [tokens, width] of clips (float32 [n] at 16 kHz) that :meth:`together` lets share a pass."""

    def together(self, samples: Samples) -> bool:
        """Return whether this clip's features are the same beside others."""
        return False

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        torch.set_num_threads(self.hello.threads)
        folder = self.hello.model
        assert folder is not None
        progress("loading the towers", None)
        self.build(folder, torch.device(self.hello.device), getattr(torch, self.hello.dtype))
        give_memory_back()
        progress("warming up", None)
        with torch.inference_mode():
            seen = self.look([self.vision.image(np.zeros((64, 64, 3), np.uint8))])
            heard = self.listen([np.zeros(RATE, np.float32)])
        features = [tensor for tensors in seen for tensor in tensors.values()] + heard
        if not all(bool(tensor.isfinite().all()) for tensor in features):
            raise WarmUpError("features")
        return {"dtype": self.hello.dtype}

    def open(self, work: Work) -> tuple[Work, Sequence[Item]]:
        return work, ()

    def feed(self, state: Work, port: str, payload: Payload | None, end: bool) -> Sequence[Item]:
        if payload is None:
            return ()
        if payload.kind == "pcm" and payload.meta["sample_rate"] != RATE:
            raise ValueError(f"sound of {payload.meta['sample_rate']} Hz, not {RATE}")
        item = Item(payload, digest_of(payload))
        if item.samples is not None and len(item.samples) < LEAST_SAMPLES:
            raise invalid_request("The clip is too short to be heard.", param="messages")
        return (item,)

    @torch.inference_mode()
    def run(self, items: Sequence[Item]) -> Sequence[Result | OmniError]:
        found: dict[str, Encoded | OmniError] = {}
        new: dict[str, Item] = {}
        for item in items:
            known = self.cache.get(item.digest)
            if known is not None:
                found[item.digest] = known
            else:
                new.setdefault(item.digest, item)
        for digest, encoded in zip(new, self._encode(list(new.values())), strict=True):
            found[digest] = encoded
            if isinstance(encoded, Encoded) and encoded.finite:
                self.cache.put(digest, encoded, encoded.nbytes)
        return [_result(item, found[item.digest]) for item in items]

    def counters(self) -> dict[str, float]:
        return {"cache_hits_total": self.cache.hits, "cache_misses_total": self.cache.misses}

    # -- encoding

    def _encode(self, items: Sequence[Item]) -> list[Encoded | OmniError]:
        pictures: dict[int, Patches] = {}
        refused: dict[int, OmniError] = {}
        for at, item in enumerate(items):
            try:
                if (made := self._patches(item.payload)) is not None:
                    pictures[at] = made
            except ValueError as error:  # of transformers: an image that no resizing makes a picture of
                refused[at] = invalid_request(f"This {item.payload.kind} cannot be looked at: {error}", "messages")
        seen = dict(zip(pictures, self.look(list(pictures.values())), strict=True)) if pictures else {}
        heard = self._listen({at: item.samples for at, item in enumerate(items) if item.samples is not None})
        return [
            refused[at] if at in refused else self._join(item, pictures.get(at), seen.get(at), heard.get(at))
            for at, item in enumerate(items)
        ]

    def _patches(self, payload: Payload) -> Patches | None:
        if payload.kind == "image":
            return self.vision.image(payload.tensors["pixels"])
        return self.vision.video(payload.tensors["frames"]) if payload.kind == "video" else None

    def _listen(self, clips: dict[int, Samples]) -> dict[int, torch.Tensor]:
        social = [at for at, samples in clips.items() if self.together(samples)]
        groups = [[at] for at in clips if at not in social] + ([social] if social else [])
        heard: dict[int, torch.Tensor] = {}
        for group in groups:
            heard |= zip(group, self.listen([clips[at] for at in group]), strict=True)
        return heard

    def _join(self, item: Item, patches: Patches | None, seen: Features | None, heard: torch.Tensor | None) -> Encoded:
        if patches is None or seen is None:
            assert heard is not None
            return Encoded(_on_host({"features": heard}), {"modality": "audio", "tokens": len(heard)})
        facts: dict[str, Any] = {
            "modality": item.payload.kind,
            "tokens": len(seen["features"]),
            "grid": list(patches.grid),
        }
        if item.payload.kind == "video":
            facts["second_per_grid"] = self.vision.temporal / item.payload.meta["fps"]
        if heard is not None:
            facts["audio_tokens"] = len(heard)
            seen = seen | {"audio": heard}
        return Encoded(_on_host(seen), facts)


def digest_of(payload: Payload) -> str:
    """Return a digest of a medium's content: equal for two media that are encoded alike, and different otherwise."""
    digest = hashlib.blake2b(repr((payload.kind, payload.meta.get("fps"))).encode(), digest_size=16)
    for name, tensor in sorted(payload.tensors.items()):
        digest.update(f"{name}{tensor.dtype}{tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()


def _on_host(tensors: Features) -> Features:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _result(item: Item, encoded: Encoded | OmniError) -> Result | OmniError:
    if isinstance(encoded, OmniError):
        return encoded
    meta = {**encoded.facts, "index": item.payload.meta["index"], "digest": item.digest}
    seconds = 0.0 if item.samples is None else len(item.samples) / RATE
    return Result([Piece(tensor_payload("features", meta, encoded.tensors))], Usage(audio_input_s=seconds))
