"""A text of one token becomes a short sound, however long the model would go on: the deployment's cap holds."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.demo.server import serving

pytestmark = [pytest.mark.slow, pytest.mark.deadline(120)]

FRAMES = 20

FAMILIES = {
    # A checkpoint whose random weights never end a text, the cap's option, and a frame's seconds.
    "qwen3-tts": ("stages.talker.options.max_tokens", 1 / 12.5),
    "pocket-tts": ("stages.talker.options.max_frames", 1 / 12.5),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_one_word_is_no_longer_than_the_cap(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    option, frame_s = FAMILIES[family]
    with serving(tmp_path, str(tiny_model(family)), "--set", f"{option}={FRAMES}") as server:
        for text in ("1", "7.", "A", "1" * 40):
            for extra in ({}, {"max_new_tokens": 5}):
                status, sound = server.post("/v1/audio/speech", {"input": text, "response_format": "wav", **extra})
                assert status == 200, sound
                with wave.open(io.BytesIO(sound)) as file:
                    seconds = file.getnframes() / file.getframerate()
                most = extra.get("max_new_tokens", FRAMES)
                assert 0 < seconds <= most * frame_s + 0.01, (text, extra)
