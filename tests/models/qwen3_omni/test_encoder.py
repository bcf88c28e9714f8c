"""The encoder stage gives the features that transformers' model computes of its own processor's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.omni.media import Given, audio, for_processor, image, video

from omni_actors.connectors.payload import Payload
from omni_actors.models.qwen3_omni.encoder import Encoder
from omni_actors.models.tiny import reference
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.outputs import Result


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen3-omni")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return reference.model(folder)


def load(folder: Path, **options: Any) -> Encoder:
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="encoder",
        replica=0,
        incarnation=0,
        engine="",
        adapter="",
        model=str(folder),
        options=options,
    )
    made = Encoder(hello)
    made.load(lambda text, fraction: None)
    return made


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return load(folder, cache_bytes=1)


def encode(encoder: Encoder, *given: Given) -> list[Payload]:
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
CLIPS = [audio(1.5), audio(3.21, 1), audio(9.0, 2), audio(0.4, 3)]
VIDEOS = [video(4, 60, 90), video(5, 200, 120, 1), video(2, 480, 640, 2)]


@torch.inference_mode()
def look(folder: Path, model: Any, given: Given) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Features, deep features and grid of one picture, as transformers makes them."""
    inputs = reference.processor(folder)(text=_placeholder(given), return_tensors="pt", **for_processor([given]))
    if given.modality == "image":
        grid = inputs["image_grid_thw"]
        made = model.thinker.model.get_image_features(inputs["pixel_values"], grid)
    else:
        grid = inputs["video_grid_thw"]
        made = model.thinker.model.get_video_features(inputs["pixel_values_videos"], grid)
    return made.pooler_output[0], torch.stack([level[0] for level in made.deepstack_features]), grid[0].tolist()


def _placeholder(given: Given) -> str:
    return {"image": "<|image_pad|>", "video": "<|video_pad|>", "audio": "<|audio_pad|>"}[given.modality]


@pytest.mark.parametrize("given", [*IMAGES, *VIDEOS], ids=lambda it: f"{it.modality} {it.array.shape}")
def test_pictures_have_transformers_features(folder: Path, model: Any, encoder: Encoder, given: Given) -> None:
    features, deep, grid = look(folder, model, given)
    (payload,) = encode(encoder, given)
    assert payload.meta["modality"] == given.modality
    assert payload.meta["grid"] == grid
    assert payload.meta["tokens"] == len(features)
    close(payload.tensors["features"], features)
    close(payload.tensors["deepstack"], deep)
    if given.modality == "video":
        assert payload.meta["second_per_grid"] == 1.0


@pytest.mark.parametrize("given", CLIPS, ids=lambda it: f"{len(it.array)} samples")
def test_clips_have_transformers_features(folder: Path, model: Any, encoder: Encoder, given: Given) -> None:
    inputs = reference.processor(folder)(text=_placeholder(given), return_tensors="pt", **for_processor([given]))
    with torch.inference_mode():
        made = model.thinker.model.get_audio_features(inputs["input_features"], inputs["feature_attention_mask"])
    (payload,) = encode(encoder, given)
    assert payload.meta["modality"] == "audio"
    assert payload.meta["tokens"] == len(made.last_hidden_state) == (inputs["input_ids"] > 0).sum()
    close(payload.tensors["features"], made.last_hidden_state)


def test_company_changes_nothing(encoder: Encoder) -> None:
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


def test_a_videos_sound_is_its_own_tensor(encoder: Encoder) -> None:
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


def test_the_same_medium_is_encoded_once(folder: Path) -> None:
    encoder = load(folder, cache_bytes=1 << 20)
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


def test_a_changed_pixel_is_another_image(encoder: Encoder) -> None:
    other = IMAGES[0].array.copy()
    other[3, 3, 1] ^= 1
    one, two = encode(encoder, IMAGES[0], Given("image", other))
    assert one.meta["digest"] != two.meta["digest"]


def test_an_image_that_is_a_line_is_the_clients_mistake_and_only_its_own(encoder: Encoder) -> None:
    good, line = IMAGES[0], Given("image", np.zeros((1, 3000, 3), np.uint8))
    items = [encoder.feed(WORK, "media", it.payload(0), False)[0] for it in (good, line)]
    fine, refused = encoder.run(items)
    assert isinstance(fine, Result)
    assert isinstance(refused, OmniError)
    assert refused.info.status == 400


def test_a_clip_without_sound_is_refused(encoder: Encoder) -> None:
    with pytest.raises(OmniError, match="too short"):
        encoder.feed(WORK, "media", Given("audio", np.zeros(3, np.float32)).payload(0), False)


def test_a_deployment_may_want_smaller_pictures(folder: Path) -> None:
    encoder = load(folder, image_max_pixels=8192, video_max_pixels=140_000)
    big, moving = encode(encoder, image(800, 800), video(2, 800, 800))
    assert np.prod(big.meta["grid"]) * 16 * 16 <= 8192
    assert np.prod(moving.meta["grid"]) * 16 * 16 <= 140_000
