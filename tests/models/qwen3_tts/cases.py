"""Requests of every kind, as this project and as the family's own code understand them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from tests.models.qwen3_tts.drive import Ask, speech
from tests.models.qwen3_tts.reference import Clip, Reference, reference
from tests.models.qwen3_tts.samples import folder_of, voice_clip

FRAMES = 16


@dataclass(frozen=True)
class Case:
    kind: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    """``voice``, ``language`` and ``instructions``."""
    clip: tuple[float, float] | None = None
    """Seconds and pitch of the clip to clone."""
    clip_text: str | None = None

    @property
    def reference_clip(self) -> Clip | None:
        return None if self.clip is None else Clip(_clip(*self.clip), self.clip_text)

    def ask(self) -> Ask:
        fields = dict(self.fields)
        clip = self.reference_clip
        if clip is not None:
            fields |= {"x_vector_only": True} if clip.text is None else {"ref_text": clip.text}
        return Ask(speech(self.text, max_tokens=FRAMES, **fields), None if clip is None else clip.samples)

    @property
    def own(self) -> Reference:
        return reference(folder_of(self.kind))


@cache
def _clip(seconds: float, pitch: float) -> np.ndarray[Any, Any]:
    return voice_clip(seconds, pitch=pitch)


SHORT, LONG = "Yes.", "Hello world, how are you? The river runs from the mountain to the sea, and it never stops."

VOICES = [
    Case("qwen3-tts", text, fields)
    for text, fields in (
        (SHORT, {}),
        (SHORT, {"voice": "ryan", "language": "english"}),
        (LONG, {"voice": "vivian", "language": "german"}),
        (LONG, {"voice": "ryan"}),
        (LONG, {"voice": "ryan", "instructions": "Speak slow, please."}),
        (LONG, {"voice": "eric"}),
        (SHORT, {"voice": "eric", "language": "chinese"}),
        (LONG, {"voice": "eric", "language": "english", "instructions": "Like a robot."}),
    )
]
DESIGNS = [
    Case("qwen3-tts-design", text, {"instructions": instructions, **fields})
    for text, instructions, fields in (
        (SHORT, "An old man.", {}),
        (LONG, "An old man.", {"language": "english"}),
        (LONG, "A young woman with a deep voice, far away.", {}),
        (LONG, "A robot.", {"language": "chinese"}),
    )
]
CLONES = [
    Case("qwen3-tts-base", text, fields, clip, clip_text)
    for text, fields, clip, clip_text in (
        (SHORT, {}, (1.5, 200.0), None),
        (LONG, {}, (1.5, 120.0), None),
        (LONG, {"language": "english"}, (1.5, 200.0), None),
        # Less text than frames of the clip, and more.
        (SHORT, {}, (2.0, 200.0), "The boy."),
        (LONG, {}, (1.1, 200.0), "The boy and his dog run home."),
        (LONG, {"language": "german"}, (1.1, 120.0), "The boy and his dog run home."),
        (LONG, {}, (3.0, 200.0), "The boy and his dog run home."),
    )
]
CASES = [*VOICES, *DESIGNS, *CLONES]
KINDS = {"qwen3-tts": VOICES, "qwen3-tts-design": DESIGNS, "qwen3-tts-base": CLONES}


def wanted(case: Case) -> torch.Tensor:
    """The reference's codes."""
    return _wanted(CASES.index(case))


@cache
def _wanted(place: int) -> torch.Tensor:
    case = CASES[place]
    fields = {"voice": "vivian"} | case.fields if case.kind == "qwen3-tts" else case.fields
    return case.own.codes(case.text, clip=case.reference_clip, frames=FRAMES, **fields)
