"""Media in the prompts of a program: files, bytes and URLs, on a tiny omni model."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import trio
from PIL import Image

from omni_actors import Omni, OmniError, Sampling

pytestmark = [pytest.mark.slow, pytest.mark.deadline(120)]

GREEDY = Sampling(temperature=0, max_tokens=8)


def picture(seed: int) -> bytes:
    made = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (56, 56, 3), np.uint8)).save(made, "PNG")
    return made.getvalue()


def sound() -> bytes:
    made = io.BytesIO()
    samples = np.random.default_rng(0).standard_normal(8000) * 0.1
    soundfile.write(made, samples.astype(np.float32), 16_000, format="WAV")
    return made.getvalue()


@pytest.fixture(scope="module")
def omni(tiny_model: Callable[[str], Path]) -> Iterator[Omni]:
    with Omni(tiny_model("qwen3-omni"), platform="cpu") as it:
        yield it


def chat(omni: Omni, *parts: dict[str, Any]) -> list[int]:
    content = [*parts, {"type": "text", "text": "What is this?"}]
    return omni.chat([{"role": "user", "content": content}], GREEDY).choices[0].token_ids


def test_a_picture_is_the_same_however_it_is_given(omni: Omni, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(picture(1))
    url = "data:image/png;base64," + base64.b64encode(picture(1)).decode()
    sources: list[Any] = [file, picture(1), url]
    seen = [chat(omni, {"type": "image", "image": source}) for source in sources]
    seen.append(chat(omni, {"type": "image_url", "image_url": {"url": url}}))
    assert len({tuple(it) for it in seen}) == 1
    assert chat(omni, {"type": "image", "image": picture(2)}) != seen[0]
    assert chat(omni) != seen[0]


def test_media_keep_their_order_whichever_way_each_is_given(omni: Omni) -> None:
    own: list[dict[str, Any]] = [{"type": "audio", "audio": sound()}, {"type": "image", "image": picture(1)}]
    spoken = {"data": base64.b64encode(sound()).decode(), "format": "wav"}
    mixed: list[dict[str, Any]] = [
        {"type": "input_audio", "input_audio": spoken},
        {"type": "image", "image": picture(1)},
    ]
    assert chat(omni, *own) == chat(omni, *mixed)
    assert chat(omni, *own) != chat(omni, *reversed(own))


def test_a_file_that_cannot_be_read_or_understood_is_an_error_and_nothing_is_kept(omni: Omni, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        chat(omni, {"type": "image", "image": tmp_path / "nothing.png"})
    with pytest.raises(OmniError) as refused:
        chat(omni, {"type": "image", "image": picture(1)}, {"type": "image", "image": b"no picture"})
    assert refused.value.info.status == 400
    assert str(refused.value.info.param).startswith("messages[0].content[1]")
    wrong = Sampling(temperature=9)
    with pytest.raises(OmniError) as first:  # what can be known without the file is said before it is read
        omni.chat([{"role": "user", "content": [{"type": "image", "image": tmp_path / "nothing.png"}]}], wrong)
    assert first.value.info.param == "temperature"

    async def let_go() -> None:
        while (await omni._omni.orchestrator.counters())["media"][0].get("clips", 1):
            await trio.sleep(0.01)  # what is discarded is freed a moment later

    chat(omni, {"type": "image", "image": picture(1)})
    omni._portal.call(let_go)
