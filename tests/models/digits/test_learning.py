"""The digits model learns, an interrupted training ends like any other, and the engine serves what was trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from omni_actors.models.digits import train as training
from omni_actors.models.digits.adapter import Digits
from omni_actors.models.digits.pipeline import STAGE
from omni_actors.models.digits.text import TOKENS, PromptEncoder
from omni_actors.models.digits.train import Recipe, Texts, Training, train
from omni_actors.models.digits.wording import TEMPLATES
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.cursor import Cursor

SHORT = Recipe(steps=15, batch=4, templates=TEMPLATES[:2])


@pytest.fixture(scope="module")
def learnt(demo_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A model of 200 steps beside its text encoder, and the losses of the steps."""
    folder = tmp_path_factory.mktemp("learnt")
    (folder / "llm").symlink_to(demo_weights / "llm")
    losses: list[float] = []
    recipe = Recipe(steps=200, batch=16, templates=TEMPLATES[:6])
    train(demo_weights / "llm", folder / "digits", recipe, told=lambda step, loss: losses.append(loss))
    return folder / "digits", losses


@pytest.fixture(scope="module")
def adapter(learnt: tuple[Path, list[float]]) -> Digits:
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="image",
        replica=0,
        incarnation=1,
        engine="diffusion",
        adapter=STAGE.adapter,
        model=str(learnt[0]),
        options=filled(STAGE.options, {}),
    )
    made = Digits(hello)
    made.load(lambda text, fraction: None)
    return made


@pytest.mark.deadline(120)
def test_the_loss_falls(learnt: tuple[Path, list[float]]) -> None:
    _, losses = learnt
    assert len(losses) == 200
    assert sum(losses[-20:]) < 0.6 * sum(losses[:20])


def test_an_interrupted_training_ends_with_the_same_weights(
    demo_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "KEEP_EVERY", 4)
    state, seen = tmp_path / "state", list[int]()

    def interrupted(step: int, loss: float) -> None:
        seen.append(step)
        if step == 6:
            raise KeyboardInterrupt

    train(demo_weights / "llm", tmp_path / "whole", SHORT)
    with pytest.raises(KeyboardInterrupt):
        train(demo_weights / "llm", tmp_path / "broken", SHORT, state=state, told=interrupted)
    train(demo_weights / "llm", tmp_path / "broken", SHORT, state=state, told=lambda step, loss: seen.append(step))
    assert seen == [*range(1, 7), *range(5, 16)]
    whole, broken = (
        load_file(tmp_path / name / "transformer/diffusion_pytorch_model.safetensors") for name in ("whole", "broken")
    )
    assert all(torch.equal(whole[name], broken[name]) for name in whole.keys() | broken.keys())


def test_a_state_that_cannot_be_read_or_is_of_another_recipe_is_not_continued(
    demo_weights: Path, tmp_path: Path
) -> None:
    texts = Texts.of(PromptEncoder(demo_weights / "llm"), SHORT.templates)
    made = Training(texts, SHORT)
    made.advance()
    made.keep(tmp_path)
    assert Training(texts, SHORT).restore(tmp_path)
    assert not Training(texts, Recipe(seed=1, steps=15, batch=4, templates=SHORT.templates)).restore(tmp_path)
    os.truncate(tmp_path / "state.pt", 1000)
    assert not Training(texts, SHORT).restore(tmp_path)


@pytest.mark.deadline(90)
def test_the_process_tells_its_progress(demo_weights: Path, tmp_path: Path) -> None:
    asked = {
        "encoder": str(demo_weights / "llm"),
        "folder": str(tmp_path / "made"),
        "state": str(tmp_path / "state"),
        "parent": os.getpid(),
        "steps": 3,
        "batch": 2,
        "templates": ["{word}"],
    }
    done = subprocess.run(
        [sys.executable, "-m", "omni_actors.models.digits"],
        input=json.dumps(asked) + "\n",
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert (told[-1]["step"], told[-1]["steps"]) == (3, 3)
    assert told[-1]["loss"] > 0
    assert json.loads((tmp_path / "made/training.json").read_text())["steps"] == 3


# ---- what is served


def opened(adapter: Digits, **image: Any) -> list[Cursor]:
    return list(adapter.open(Work(1, "r", {}), ImageGeneration(**{"prompt": "a seven", "seed": 3, **image})))


def run(adapter: Digits, cursors: list[Cursor]) -> list[np.ndarray[Any, Any]]:
    """Run pictures together, each for as many steps as it has, and return the pixels."""
    *_, conditioning = adapter.encode(cursors)
    assert conditioning is not None
    for cursor, made in zip(cursors, conditioning, strict=True):
        cursor.conditioning = made
        adapter.begin(cursor)
    while active := [cursor for cursor in cursors if cursor.step < cursor.steps]:
        assert len({adapter.batch_key(cursor) for cursor in active}) == 1
        for cursor, prediction in zip(active, adapter.predict(active), strict=True):
            adapter.advance(cursor, prediction)
            cursor.step += 1
    *_, pixels = adapter.decode(cursors)
    assert pixels is not None
    return list(pixels)


def test_pictures_of_other_prompts_steps_and_guidance_share_forwards(adapter: Digits) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": "a seven", "steps": 5},
        {"prompt": "Hello! Could you make me a picture of the number four, please?", "steps": 8, "guidance": 1.0},
        {"prompt": "3", "negative_prompt": "an eight", "steps": 6, "seed": 9},
    ]
    together = run(adapter, [opened(adapter, **fields)[0] for fields in asked])
    for fields, picture in zip(asked, together, strict=True):
        (alone,) = run(adapter, opened(adapter, **fields))
        assert np.abs(alone.astype(int) - picture.astype(int)).max() <= 1
    assert np.abs(together[0].astype(int) - together[1].astype(int)).max() > 20


def test_a_pixel_is_enlarged_to_a_square(adapter: Digits) -> None:
    small, large = (run(adapter, opened(adapter, steps=2, width=side, height=side))[0] for side in (8, 32))
    assert (small.shape, large.shape) == ((8, 8, 1), (32, 32, 1))
    assert (large == small.repeat(4, 0).repeat(4, 1)).all()
    (cursor,) = opened(adapter)
    assert (cursor.width, cursor.height, cursor.steps) == (64, 64, 20)


def test_previews_show_the_clean_picture_that_is_expected(adapter: Digits) -> None:
    (cursor,) = opened(adapter, steps=3)
    *_, (cursor.conditioning,) = adapter.encode([cursor])  # type: ignore[misc]
    adapter.begin(cursor)
    for _ in range(3):
        (prediction,) = adapter.predict([cursor])
        preview = adapter.preview(cursor, prediction)
        adapter.advance(cursor, prediction)
        cursor.step += 1
    *_, pixels = adapter.decode([cursor])
    assert pixels is not None
    assert preview is not None
    assert np.abs(preview.astype(int) - pixels[0].astype(int)).max() <= 1  # after the last step they are the same


@pytest.mark.parametrize(
    ("image", "param", "message"),
    [
        ({"width": 60, "height": 60}, "size", "nearest size is 64x64"),
        ({"width": 64, "height": 32}, "size", "nearest size is 32x32"),
        ({"width": 1024, "height": 1024}, "size", "nearest size is 512x512"),
        ({"prompt": "seven " * 300}, "prompt", "more than 256 tokens"),
        ({"negative_prompt": "seven " * 300}, "negative_prompt", "more than 256 tokens"),
        ({"steps": 0}, "steps", "from 1"),
        ({"pictures": 1}, "image", "from text alone"),
        ({"prompt": None}, "prompt", "needed"),
    ],
)
def test_what_the_model_cannot_do_is_refused(adapter: Digits, image: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(OmniError, match=message) as caught:
        opened(adapter, **image)
    assert (caught.value.info.status, caught.value.info.param) == (400, param)


def test_prompts_are_encoded_alike_alone_and_together_and_only_once(adapter: Digits) -> None:
    encoder: Callable[[list[str]], list[Any]] = adapter._encoder.encode
    texts = ["a seven", "", "Hello! Could you make me a picture of the number four, please? I like it very much."]
    together = encoder(texts)
    for text, embeddings in zip(texts, together, strict=True):
        (alone,) = encoder([text])
        torch.testing.assert_close(alone.sequence, embeddings.sequence, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(alone.pooled, embeddings.pooled, atol=1e-4, rtol=1e-4)
        assert embeddings.sequence.shape[1] == TOKENS
    assert not together[1].sequence.any()
    assert together[2].sequence.any(-1).all()  # a long prompt fills all places
    before = adapter.counters()["prompt_cache_misses_total"]
    for _ in range(2):
        run(adapter, opened(adapter, prompt="a nine of another day", steps=1))
    assert adapter.counters()["prompt_cache_misses_total"] == before + 1
