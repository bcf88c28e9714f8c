"""Two stages with planted faults: ``speaker`` makes codes, ``codec`` turns the codes into sound.

The speaker has memory for :data:`FITS` frames at once. A request's section ``line`` holds its ``codes`` and its
``fault``: of the speaker ``shape``, ``range``, ``name``, ``raise``, ``memory``; of the codec ``nan``, ``codec raise``,
``codec memory``; of the bridge between both ``crash bridge``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.errors import OmniError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.codec import CodecAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result

GROUPS, CODEBOOK, FRAME = 2, 16, 4
FITS = 40
NAN, RAISE, MEMORY = 13, 14, 15
"""Codes at which the codec goes wrong."""

_LATE = {"nan": NAN, "codec raise": RAISE, "codec memory": MEMORY}


class Speaker(GenerationAdapter[Work, Work]):
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def open(self, work: Work) -> tuple[Work, Sequence[Work]]:
        return work, (work,)

    def run(self, items: Sequence[Work]) -> Sequence[Result | OmniError]:
        for item in items:
            match item.params["line"].get("fault"):
                case "raise":
                    raise ValueError("secret detail")
                case "memory":
                    raise MemoryError
        if sum(len(item.params["line"]["codes"]) for item in items) > FITS:
            raise MemoryError
        return [Result([Piece(self._payload(item.params["line"]))]) for item in items]

    def _payload(self, line: dict[str, Any]) -> Payload:
        codes, fault = np.array(line["codes"], np.int64), line.get("fault")
        if fault in _LATE:
            codes[-1] = _LATE[fault]
        if fault == "shape":
            codes = codes[:, :1].copy()
        if fault == "range":
            codes[0] = CODEBOOK
        meta = {"crash": True} if fault == "crash bridge" else {}
        return Payload("codes", meta, {"frames" if fault == "name" else "codes": codes})


class Between:
    def feed(self, payload: Payload | None, end: bool) -> list[Payload]:
        if payload is None:
            return []
        if payload.meta.get("crash"):
            raise KeyError("secret detail")
        return [payload]


class Codec(CodecAdapter):
    """A codec whose samples of a frame are the frame's codes."""

    sample_rate, samples_per_frame, groups, codebook_size, sufficient_context = 8000, FRAME, GROUPS, CODEBOOK, 0

    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        if (codes == RAISE).any():
            raise ValueError("secret detail")
        if (codes == MEMORY).any():
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        samples = (codes.float().sum(-1) / 100).repeat_interleave(FRAME, 1)
        return torch.where((codes == NAN).any(-1).repeat_interleave(FRAME, 1), torch.nan, samples)


def expected(codes: list[list[int]]) -> bytes:
    sums = np.repeat(np.array(codes).sum(-1) / np.float32(100), FRAME).astype(np.float32)
    return np.rint(sums * 32767).astype("<i2").tobytes()


PIPELINE = Pipeline(
    name="faulty",
    stages=(
        Stage("speaker", "generation", f"{__name__}:Speaker", sections=("line",)),
        Stage("codec", "generation", f"{__name__}:Codec", (Port("codes", "codes", mode="chunk"),), emits="audio"),
    ),
    edges=(Edge("speaker", "codec.codes", "codes", mode="chunk", bridge=f"{__name__}:Between"),),
    tasks=(Task("speech", {"text": "speaker"}, {"audio": "codec"}),),
    sample_rate=8000,
)
