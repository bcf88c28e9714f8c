"""The encoder stage gives the features that transformers' model computes of its own processor's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.omni.comparison import Comparison
from tests.models.omni.media import Given, audio, for_processor, image, video

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.encoder import MediaEncoder
from omni_actors.models.qwen2_5_omni import encoder as qwen2_5_omni
from omni_actors.models.qwen3_omni import encoder as qwen3_omni
from omni_actors.models.tiny import reference
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.outputs import Result

FAMILIES: dict[str, type[MediaEncoder]] = {"qwen3-omni": qwen3_omni.Encoder, "qwen2.5-omni": qwen2_5_omni.Encoder}


class Towers:
    """transformers' processor, and its model's towers."""

    def __init__(self, family: str, folder: Path, model: Any) -> None:
        self.family = family
        self.folder = folder
        self.model = model
        self.processor: Any = reference.processor(folder)

    def process(self, given: Given) -> Any:
        placeholder = getattr(self.processor, f"{given.modality}_token")
        return self.processor(text=placeholder, return_tensors="pt", **for_processor([given]))

    def load(self, **options: Any) -> MediaEncoder:
        """Ours of the same folder."""
        hello = Hello(
            version=PROTOCOL_VERSION,
            stage="encoder",
            replica=0,
            incarnation=0,
            engine="",
            adapter="",
            model=str(self.folder),
            options=options,
        )
        made = FAMILIES[self.family](hello)
        made.load(lambda text, fraction: None)
        return made


@pytest.fixture(params=list(FAMILIES), scope="module")
def towers(
    request: pytest.FixtureRequest, compared: Callable[[str], Comparison], tiny_model: Callable[[str], Path]
) -> Towers:
    return Towers(request.param, tiny_model(request.param), compared(request.param).whole.model.thinker.model)


@pytest.fixture(scope="module")
def encoder(towers: Towers) -> MediaEncoder:
    return towers.load(cache_bytes=1)


def encode(encoder: MediaEncoder, *given: Given) -> list[Payload]:
    items = [encoder.feed(WORK, "media", it.payload(index), False)[0] for index, it in enumerate(given)]
    found = []
    for result in encoder.run(items):
        assert isinstance(result, Result)
        (piece,) = result.pieces
        assert piece.payload is not None
        found.append(piece.payload)
    return found


WORK = Work(1, "r1", {}, frozenset({"media"}))


def close(got: np.ndarray[Any, Any], expected: torch.Tensor) -> None:
    assert got.shape == tuple(expected.shape)
    np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=2e-5 * float(expected.abs().max()))


IMAGES = [image(70, 100), image(64, 64, 1), image(500, 300, 2), image(40, 300, 3)]
FRAME_S = 0.01  # the spectrum's step

# Two seconds are a window of Qwen2.5-Omni's tower, one of Qwen3-Omni's: also what ends just behind one.
LENGTHS = [1.5, 3.21, 9.0, 0.4, 1.00313, 2.0, 2 + 0.4 * FRAME_S, 2 + 2 * FRAME_S, 4 + 2.3 * FRAME_S, 400 / 16_000]

CLIPS = [audio(seconds, seed) for seed, seconds in enumerate(LENGTHS)]
VIDEOS = [video(4, 60, 90), video(5, 200, 120, 1), video(2, 480, 640, 2)]


@pytest.mark.parametrize("given", [*IMAGES, *VIDEOS], ids=lambda it: f"{it.modality} {it.array.shape}")
def test_pictures_have_transformers_features(towers: Towers, encoder: MediaEncoder, given: Given) -> None:
    inputs = towers.process(given)
    with torch.inference_mode():
        if given.modality == "image":
            grid = inputs["image_grid_thw"]
            made = towers.model.get_image_features(inputs["pixel_values"], grid)
        else:
            grid = inputs["video_grid_thw"]
            made = towers.model.get_video_features(inputs["pixel_values_videos"], grid)
    (payload,) = encode(encoder, given)
    (features,) = made.pooler_output
    assert payload.meta["modality"] == given.modality
    assert payload.meta["grid"] == grid[0].tolist()
    assert payload.meta["tokens"] == len(features)
    close(payload.tensors["features"], features)
    if towers.family == "qwen3-omni":
        close(payload.tensors["deepstack"], torch.stack([level[0] for level in made.deepstack_features]))
    if given.modality == "video":
        assert payload.meta["second_per_grid"] == 1.0


@pytest.mark.parametrize("given", CLIPS, ids=lambda it: f"{len(it.array)} samples")
def test_clips_have_transformers_features(towers: Towers, encoder: MediaEncoder, given: Given) -> None:
    inputs = towers.process(given)
    with torch.inference_mode():
        made = towers.model.get_audio_features(inputs["input_features"], inputs["feature_attention_mask"])
    (payload,) = encode(encoder, given)
    assert payload.meta["modality"] == "audio"
    assert payload.meta["tokens"] == len(made.last_hidden_state) == inputs["input_ids"].shape[1]
    close(payload.tensors["features"], made.last_hidden_state)


def test_company_changes_nothing(encoder: MediaEncoder) -> None:
    """Each medium's features beside all others are its own, within float32's rounding."""
    given = [*IMAGES, *CLIPS, *VIDEOS, video(3, 64, 64, 5, sound=1.5)]
    together = encode(encoder, *given)
    for index, it in enumerate(given):
        (alone,) = encode(encoder, it)
        beside = together[index]
        assert beside.meta == alone.meta | {"index": index}
        assert beside.tensors.keys() == alone.tensors.keys()
        for name, expected in alone.tensors.items():
            np.testing.assert_allclose(beside.tensors[name], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_videos_sound_is_its_own_tensor(encoder: MediaEncoder) -> None:
    given = video(4, 64, 64, sound=2.0)
    seen, heard, both = encode(encoder, Given("video", given.array), audio_of(given), given)
    assert both.meta["audio_tokens"] == heard.meta["tokens"]
    assert both.meta["tokens"] == seen.meta["tokens"]
    np.testing.assert_allclose(both.tensors["audio"], heard.tensors["features"], atol=1e-5)
    np.testing.assert_allclose(both.tensors["features"], seen.tensors["features"], atol=1e-5)
    assert both.meta["digest"] not in (seen.meta["digest"], heard.meta["digest"])


def audio_of(given: Given) -> Given:
    assert given.sound is not None
    return Given("audio", given.sound)


def test_the_same_medium_is_encoded_once(towers: Towers) -> None:
    encoder = towers.load(cache_bytes=1 << 20)
    first = encode(encoder, IMAGES[0], IMAGES[0], CLIPS[0])
    looked, listened = [], []
    look, listen = encoder.look, encoder.listen

    def counted_look(pictures: Sequence[Any]) -> Any:
        looked.append(len(pictures))
        return look(pictures)

    def counted_listen(clips: Sequence[Any]) -> Any:
        listened.append(len(clips))
        return listen(clips)

    encoder.look, encoder.listen = counted_look, counted_listen  # type: ignore[method-assign]
    again = encode(encoder, CLIPS[0], IMAGES[0], IMAGES[1])
    assert (looked, listened) == ([1], [])  # the other image alone
    assert again[1].meta["digest"] == first[0].meta["digest"] == first[1].meta["digest"]
    assert [payload.meta["index"] for payload in again] == [0, 1, 2]
    for mine, theirs in ((again[0], first[2]), (again[1], first[0])):
        for name, tensor in mine.tensors.items():
            assert np.array_equal(tensor, theirs.tensors[name])


def test_a_changed_pixel_is_another_image(encoder: MediaEncoder) -> None:
    other = IMAGES[0].array.copy()
    other[3, 3, 1] ^= 1
    one, two = encode(encoder, IMAGES[0], Given("image", other))
    assert one.meta["digest"] != two.meta["digest"]


def test_an_image_that_is_a_line_is_the_clients_mistake_and_only_its_own(encoder: MediaEncoder) -> None:
    good, line = IMAGES[0], Given("image", np.zeros((1, 3000, 3), np.uint8))
    items = [encoder.feed(WORK, "media", it.payload(0), False)[0] for it in (good, line)]
    fine, refused = encoder.run(items)
    assert isinstance(fine, Result)
    assert isinstance(refused, OmniError)
    assert refused.info.status == 400


def test_a_clip_without_sound_is_refused(encoder: MediaEncoder) -> None:
    with pytest.raises(OmniError, match="too short"):
        encoder.feed(WORK, "media", Given("audio", np.zeros(3, np.float32)).payload(0), False)


def test_a_deployment_may_want_smaller_pictures(towers: Towers) -> None:
    encoder = towers.load(image_max_pixels=8192, video_max_pixels=140_000)
    big, moving = encode(encoder, image(800, 800), video(2, 800, 800))
    patch = towers.processor.image_processor.patch_size**2
    assert np.prod(big.meta["grid"]) * patch <= 8192
    assert np.prod(moving.meta["grid"]) * patch <= 140_000
