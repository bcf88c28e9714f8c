"""The voice stage of a ``base`` checkpoint encodes a clip of a voice for the talker.

The stage has a worker of its own, since encoding a new clip takes as long as many of the talker's steps. The payload,
kind ``voice``, has ``timbre`` float32 [talker's width] and ``codes`` int64 [frames, groups], without frames where only
the timbre is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.speech import Clip
from omni_actors.models.qwen3_tts.cloning import Cloner
from omni_actors.models.qwen3_tts.folder import Folder
from omni_actors.models.qwen3_tts.package import config_of
from omni_actors.models.qwen3_tts.pipeline import VOICE_OPTIONS
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import Specs, TensorSpec
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result
from omni_actors.worker.tensors import tensor_payload


@dataclass(slots=True)
class Hearing:
    """The state of one request. ``whole`` says that the clip's frames are wanted too."""

    whole: bool
    clip: Clip | None = None


class Qwen3TTSVoice(GenerationAdapter[Hearing, Hearing]):
    """``hello.model`` is the checkpoint's folder. Known clips are not heard again: see :class:`Cloner`."""

    tensors: ClassVar[Specs] = {
        "voice": {"timbre": TensorSpec("float32", (None,)), "codes": TensorSpec("int64", (None, None))}
    }

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = filled(VOICE_OPTIONS, hello.options)
        self._cloner: Cloner | None = None

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        assert self.hello.model is not None
        torch.set_num_threads(self.hello.threads)
        progress("loading the encoders of clips", None)
        folder, dtype = Path(self.hello.model), getattr(torch, self.hello.dtype)
        if Folder.read(folder).kind != "clone":
            return {}  # beside a talker that clones no voice, in one worker with it
        cache_bytes = int(self._options["clip_cache_mib"] * (1 << 20))
        self._cloner = Cloner(folder, config_of(folder), dtype, self.hello.device, cache_bytes)
        return {}

    def open(self, work: Work) -> tuple[Hearing, Sequence[Hearing]]:
        speech: Speech = work.params.get("speech") or Speech()
        return Hearing(not speech.x_vector_only), ()

    def feed(self, state: Hearing, port: str, payload: Payload | None, end: bool) -> Sequence[Hearing]:
        if payload is not None:
            if state.clip is not None:
                raise invalid_request("One clip is enough: there are several.", param="ref_audio")
            state.clip = Clip(payload.tensors["samples"], int(payload.meta["sample_rate"]))
            most = self._options["max_reference_s"]
            if len(state.clip.samples) > most * state.clip.rate:
                raise invalid_request(f"A reference clip has at most {most:g} s.", param="ref_audio")
        if not end:
            return ()
        if state.clip is None or self._cloner is None:
            raise invalid_request("Cloning needs the clip.", param="ref_audio")
        return (state,)

    def batch_key(self, item: Hearing) -> Hashable:
        return id(item)  # clips differ in length

    def run(self, items: Sequence[Hearing]) -> Sequence[Result | OmniError]:
        return [self._hear(item) for item in items]

    def _hear(self, hearing: Hearing) -> Result | OmniError:
        assert hearing.clip is not None
        assert self._cloner is not None
        try:
            voice = self._cloner.hear(hearing.clip, codes=hearing.whole)
        except OmniError as error:
            return error
        codes = voice.codes if hearing.whole and voice.codes is not None else torch.empty((0, 0), dtype=torch.int64)
        payload = tensor_payload("voice", {}, {"timbre": voice.timbre.float(), "codes": codes})
        return Result([Piece(payload)], Usage(audio_input_s=len(hearing.clip.samples) / hearing.clip.rate))

    def counters(self) -> dict[str, float]:
        if self._cloner is None:
            return {}
        cache = self._cloner.cache
        return {
            "clip_hits_total": cache.hits,
            "clip_misses_total": cache.misses,
            "clip_evictions_total": cache.evictions,
        }
