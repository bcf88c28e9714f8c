"""Prompts are laid out as transformers' processor and model lay them out, and what they cannot hold is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.omni.comparison import Comparison
from tests.models.omni.media import Given, audio, for_processor, image, video

from omni_actors.models.common.layout import Layout, begins, collapse, expand, lay_out
from omni_actors.models.common.multimodal import MODALITIES, Expanded, Medium, Modality
from omni_actors.models.common.text import Text
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt

CLIP_TOKENS: dict[str, Callable[[int], int]] = {
    "qwen3-omni": lambda frames: 13 * (frames // 100) + -(-(frames % 100) // 8),
    "qwen2.5-omni": lambda frames: ((frames - 1) // 2 + 1 - 2) // 2 + 1,
}
"""Of a clip whose spectrum has so many frames."""


class Reference:
    """transformers' processor and model of a tiny checkpoint, beside this project's layout of its prompts."""

    def __init__(self, both: Comparison, clip_tokens: Callable[[int], int]) -> None:
        self.processor = both.whole.processor
        self.thinker = both.whole.model.thinker
        self.tokenizer = both.whole.tokenizer
        self.text: Text = both.line.adapter("thinker").text
        self.layout: Layout = both.line.adapter("thinker").layout
        self._clip_tokens = clip_tokens

    def process(self, messages: list[dict[str, Any]], given: Sequence[Given], fps: float) -> Any:
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        arguments = for_processor(given)
        if "videos" in arguments:
            arguments["fps"] = fps
        return self.processor(text=text, return_tensors="pt", **arguments)

    def place(self, inputs: Any, given: Sequence[Given]) -> tuple[torch.Tensor, float]:
        """M-RoPE positions and their delta."""
        mask = inputs.get("feature_attention_mask")
        positions, delta = self.thinker.get_rope_index(
            inputs["input_ids"],
            inputs.get("image_grid_thw"),
            inputs.get("video_grid_thw"),
            inputs["attention_mask"],
            any(it.modality == "video" and it.sound is not None for it in given),
            None if mask is None else mask.sum(-1),
            None if "video_second_per_grid" not in inputs else torch.as_tensor(inputs["video_second_per_grid"]),
        )
        return positions[:, 0], float(delta)

    def media(self, inputs: Any, given: Sequence[Given]) -> list[Medium]:
        """What the encoder would say of these media."""
        pictures = iter(inputs["image_grid_thw"].tolist() if "image_grid_thw" in inputs else ())
        videos = iter(inputs["video_grid_thw"].tolist() if "video_grid_thw" in inputs else ())
        seconds = iter(inputs.get("video_second_per_grid", ()))
        mask = inputs.get("feature_attention_mask")
        clips = iter(self._clip_tokens(frames) for frames in ([] if mask is None else mask.sum(-1).tolist()))
        found = []
        for index, it in enumerate(given):
            if it.modality == "audio":
                found.append(Medium("audio", index, next(clips)))
                continue
            grid = next(pictures if it.modality == "image" else videos)
            tokens = int(np.prod(grid)) // self.layout.merge**2
            if it.modality == "image":
                found.append(Medium("image", index, tokens, tuple(grid)))
            else:
                sound = 0 if it.sound is None else next(clips)
                found.append(Medium("video", index, tokens, tuple(grid), float(next(seconds)), sound))
        return found


@pytest.fixture(params=list(CLIP_TOKENS), scope="module")
def of(request: pytest.FixtureRequest, compared: Callable[[str], Comparison]) -> Reference:
    return Reference(compared(request.param), CLIP_TOKENS[request.param])


def conversation(given: Sequence[Given], words: Sequence[str], system: str | None = None) -> list[dict[str, Any]]:
    """Each medium between two texts, over two turns."""
    parts: list[dict[str, Any]] = []
    for index, (it, word) in enumerate(zip(given, words, strict=True)):
        parts += [{"type": it.modality, "index": index}, {"type": "text", "text": word}]
    half = len(parts) // 4 * 2
    messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    if half:
        messages += [{"role": "user", "content": parts[:half]}, {"role": "assistant", "content": "I see."}]
    return [*messages, {"role": "user", "content": [*parts[half:], {"type": "text", "text": "What is this?"}]}]


pictures = st.builds(image, st.integers(40, 200), st.integers(40, 200), st.integers(0, 3))
clips = st.builds(audio, st.floats(0.1, 6), st.integers(0, 3))
silent = st.builds(video, st.integers(1, 6), st.integers(40, 120), st.integers(40, 120))
heard = st.builds(video, st.integers(1, 6), st.just(60), st.integers(40, 120), st.just(0), st.floats(0.2, 5))
mixtures = st.lists(pictures | clips | silent, max_size=4) | st.lists(pictures | clips | heard, max_size=4)


@settings(max_examples=25, deadline=None)
@given(given=mixtures, fps=st.sampled_from([1.0, 2.0, 1.7, 3.0]), system=st.none() | st.just("You are a robot."))
def test_any_mixture_is_laid_out_as_transformers_does(
    of: Reference, given: list[Given], fps: float, system: str | None
) -> None:
    messages = conversation(given, ["", "and this", "", "before"][: len(given)], system)
    inputs = of.process(messages, given, fps)
    positions, delta = of.place(inputs, given)
    media = of.media(inputs, given)
    made = expand(of.text, of.layout, Prompt(messages=messages), media)
    assert made.tokens == inputs["input_ids"][0].tolist()
    assert torch.equal(made.positions, positions)
    assert made.rope_delta == delta


def check_placements(of: Reference, made: Expanded, media: Sequence[Medium]) -> None:
    """Every placeholder has one row of one medium, in the order in which transformers scatters them."""
    tokens = torch.tensor(made.tokens)
    kinds = {"image": of.layout.image, "video": of.layout.video, "audio": of.layout.audio}
    for modality, token in kinds.items():
        rows = [
            p.places for p in made.placements if (p.medium.modality if p.tensor == "features" else "audio") == modality
        ]
        there = torch.cat([torch.empty(0, dtype=torch.int64), *rows])
        assert torch.equal(there, (tokens == token).nonzero()[:, 0])
    for p in made.placements:
        assert len(p.places) == (p.medium.tokens if p.tensor == "features" else p.medium.audio_tokens)
    assert {p.medium for p in made.placements} == set(media)


@settings(max_examples=8, deadline=None)
@given(given=st.lists(pictures | clips | silent | heard, max_size=5))
def test_every_placeholder_has_its_row(of: Reference, given: list[Given]) -> None:
    """Also where transformers' own position function gives up: videos with and without sound in one prompt."""
    messages = conversation(given, ["x"] * len(given))
    inputs = of.process(messages, given, 2.0)
    media = of.media(inputs, given)
    made = expand(of.text, of.layout, Prompt(messages=messages), media)
    assert made.tokens == inputs["input_ids"][0].tolist()
    assert made.positions.shape == (3, len(made.tokens))
    check_placements(of, made, media)
    check_collapse(of, made, media)


def check_collapse(of: Reference, made: Expanded, media: Sequence[Medium]) -> None:
    """What is laid out can be folded up, and gives the same again."""
    folded = collapse(of.layout, made.tokens, media)
    assert len(folded) == len(made.tokens) - sum(
        it.tokens + it.audio_tokens - 1 + 2 * bool(it.audio_tokens) for it in media
    )
    again = lay_out(of.layout, folded, media)
    assert again.tokens == made.tokens
    assert torch.equal(again.positions, made.positions)
    firsts = begins(of.layout, made.tokens, media)
    assert [made.tokens[at] for at in firsts] == [of.layout.placeholder(it.modality) for it in media]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_folding_undoes_laying_out(of: Reference, data: st.DataObject) -> None:
    """Whatever stands between the media, and whatever their sizes."""
    media: list[Medium] = []
    ids: list[int] = []
    words = st.lists(st.integers(0, 200), min_size=1, max_size=4)
    for index in range(data.draw(st.integers(0, 5))):
        modality: Modality = data.draw(st.sampled_from(MODALITIES))
        grid = tuple(data.draw(st.tuples(*[st.integers(1, 3)] * 3)))
        patches = (grid[0], grid[1] * of.layout.merge, grid[2] * of.layout.merge)
        sound = data.draw(st.integers(0, 90)) if modality == "video" else 0
        tokens = data.draw(st.integers(1, 20)) if modality == "audio" else int(np.prod(grid))
        seconds = data.draw(st.sampled_from([0.5, 1.0, 1.2, 7.0])) if modality == "video" else 0.0
        media.append(Medium(modality, index, tokens, patches, seconds, sound))
        ids += [*data.draw(words), of.layout.placeholder(modality), *data.draw(words)]
    made = lay_out(of.layout, ids, media)
    assert collapse(of.layout, made.tokens, media) == ids
    check_placements(of, made, media)
    check_collapse(of, made, media)


def test_text_alone_counts_up(of: Reference) -> None:
    for prompt in (Prompt(text="hello"), Prompt(token_ids=[5, 6, 7]), Prompt(messages=conversation([], []))):
        made = expand(of.text, of.layout, prompt)
        assert torch.equal(made.positions, torch.arange(len(made.tokens)).expand(3, -1).float())
        assert made.rope_delta == 0
        assert made.root == b""
        assert made.placements == ()
    assert expand(of.text, of.layout, Prompt(token_ids=[5, 6, 7])).tokens == [5, 6, 7]


def test_an_empty_prompt_is_nothing(of: Reference) -> None:
    assert lay_out(of.layout, [], []).tokens == []


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize("with_image", [False, True])
def test_a_text_that_writes_a_placeholder_takes_no_mediums_place(
    of: Reference, modality: Modality, with_image: bool
) -> None:
    placeholder = of.tokenizer.convert_ids_to_tokens(of.layout.placeholder(modality))
    media = [Medium("image", 0, 4, (1, 4, 4))] * with_image
    parts = [{"type": "text", "text": f"see {placeholder}"}, *({"type": "image", "index": 0} for _ in media)]
    made = expand(of.text, of.layout, Prompt(messages=[{"role": "user", "content": parts}]), media)
    placeholders = [token for token in made.tokens if token in of.layout.placeholders]
    assert placeholders == [of.layout.image] * 4 * with_image
    assert f"see {placeholder}" in of.tokenizer.decode(made.tokens)


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_completion_that_writes_a_placeholder_is_refused(of: Reference, modality: Modality) -> None:
    placeholder = of.tokenizer.convert_ids_to_tokens(of.layout.placeholder(modality))
    with pytest.raises(OmniError) as caught:
        expand(of.text, of.layout, Prompt(text=f"see {placeholder}"))
    assert caught.value.info.status == 400


def test_a_part_without_its_medium_is_refused(of: Reference) -> None:
    for part in ({"type": "image", "index": 1}, {"type": "audio", "index": 0}, {"type": "tool"}):
        with pytest.raises(OmniError) as caught:
            media = [Medium("image", 0, 4, (1, 4, 4))]
            expand(of.text, of.layout, Prompt(messages=[{"role": "user", "content": [part]}]), media)
        assert caught.value.info.status == 400


def test_other_media_have_another_root(of: Reference) -> None:
    def root(*digests: str) -> bytes:
        media = [Medium("image", index, 4, (1, 4, 4), digest=digest) for index, digest in enumerate(digests)]
        parts = [{"type": "image", "index": index} for index in range(len(media))]
        return expand(of.text, of.layout, Prompt(messages=[{"role": "user", "content": parts}]), media).root

    roots = [root(), root("a"), root("b"), root("a", "b"), root("b", "a")]
    assert len(set(roots)) == len(roots)
    assert root("a", "b") == root("a", "b")
