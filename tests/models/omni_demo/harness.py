"""The demo's stages as the worker's loop drives them, without the loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.models.stage_harness import LoadedStage

from omni_actors.connectors.payload import Payload, pcm_payload
from omni_actors.models.omni_demo.pipeline import PIPELINE
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Speech, Transcription
from omni_actors.protocol.request import TextDelta


class Stage(LoadedStage):
    """One loaded stage of the demo. Requests are admitted by :meth:`admit` and run together by :meth:`run`."""

    def __init__(self, name: str, weights: Path, **options: Any) -> None:
        super().__init__(PIPELINE, name, weights, **options)
        self._key = 0

    def admit(
        self,
        section: msgspec.Struct | None = None,
        port: str | None = None,
        payloads: Iterable[Payload] = (),
        routed: bool = False,
    ) -> int:
        """Admit a request whose input is complete, and return its key. Raises the error of a request that is
        refused."""
        self._key += 1
        params = {} if section is None else {type(section).__name__.lower(): section}
        self.take(self._key, params, port, payloads, visible=True, routed=routed)
        return self._key


@dataclass
class Voice:
    """The two speech stages, one after the other."""

    acoustic: Stage
    vocoder: Stage

    def spectra(self, **speech: Any) -> list[Payload]:
        """Raises :class:`OmniError` for what cannot be said."""
        key = self.acoustic.admit(Speech(**speech), routed=True)
        out = self.acoustic.run()
        if key in out.failed:
            raise OmniError(out.failed[key])
        return [payload for _, payload in out.payloads]

    def say(self, text: str, **speech: Any) -> bytes:
        """Speech as s16le at 24 kHz."""
        key = self.vocoder.admit(None, "frames", self.spectra(text=text, **speech))
        return self.vocoder.run().pcm(key)


def hear(
    recogniser: Stage, samples: np.ndarray[Any, Any], rate: int, **transcription: Any
) -> tuple[str, list[TextDelta]]:
    """The text that one clip gives, and its deltas."""
    asked = Transcription(**transcription)
    recogniser.admit(asked, "audio", [pcm_payload(samples.astype(np.float32), rate)])
    out = recogniser.run()
    assert not out.failed, out.failed
    return "".join(delta.text for delta in out.texts), out.texts


def samples_of(pcm: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """s16le as float32 in [-1, 1]."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768.0
