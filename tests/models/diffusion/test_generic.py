"""The generic adapter: calls of a pipeline that stop after each step, and end wherever they stand."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.diffusion.cases.generic import GENERIC
from tests.models.diffusion.parity import Ticks, hello

from omni_actors.protocol.params import ImageGeneration
from omni_actors.testing.driving import Job, drive
from omni_actors.testing.outcome import Outcome
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion import DiffusionEngine

pytestmark = [pytest.mark.slow, pytest.mark.torch]


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[[str], Path]) -> DiffusionEngine:
    engine = DiffusionEngine(hello(GENERIC, tiny_model("latent-consistency")), clock=Ticks())
    facts = engine.load(lambda text, fraction: None)
    assert facts["step_batched"] is False
    return engine


def job(key: int, abort_at: int | None = None, **fields: Any) -> Job:
    image = ImageGeneration(**{"prompt": "a red house", "seed": 3, "steps": 5, **fields})
    return Job(Work(key, f"r{key}", {"image": image}, routed=True), abort_at=abort_at)


def run(engine: DiffusionEngine, jobs: Sequence[Job], chance: random.Random | None = None) -> dict[int, Outcome]:
    return drive(engine, jobs, order=chance)


def pixels(outcome: Outcome) -> list[np.ndarray[Any, Any]]:
    assert outcome.error is None
    return [it.tensors["pixels"] for it in outcome.payloads if "preview" not in it.meta]


def calls() -> int:
    return sum(thread.name == "pipeline" for thread in threading.enumerate())


def test_each_of_several_pictures_is_the_picture_of_its_seed(engine: DiffusionEngine) -> None:
    several = pixels(run(engine, [job(0, n=3)])[0])
    for index, picture in enumerate(several):
        (alone,) = pixels(run(engine, [job(0, seed=3 + index)])[0])
        assert np.array_equal(alone, picture)
    assert not np.array_equal(several[0], several[1])
    assert calls() == 0


@pytest.mark.parametrize("seed", range(6))
def test_calls_that_are_aborted_end_within_a_step_and_others_go_on(engine: DiffusionEngine, seed: int) -> None:
    (alone,) = pixels(run(engine, [job(0)])[0])
    chance = random.Random(seed)
    left = [job(key, chance.randrange(1, 14), seed=key, n=2) for key in (1, 2, 3)]
    outcomes = run(engine, [*left, job(0)], random.Random(seed))
    assert np.array_equal(pixels(outcomes[0])[0], alone)
    assert calls() == 0


def test_previews_show_the_predicted_clean_picture(engine: DiffusionEngine) -> None:
    outcome = run(engine, [job(0, previews=1)])[0]
    previews = [it for it in outcome.payloads if "preview" in it.meta]
    assert [it.meta["preview"] for it in previews] == [1, 2, 3, 4]
    (final,) = pixels(outcome)
    apart = [np.abs(it.tensors["pixels"].astype(int) - final).mean() for it in previews]
    assert apart[-1] < apart[0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"negative_prompt": "rain"}, "negative_prompt"),
        ({"true_guidance": 2.0}, "true_cfg_scale"),
        ({"layers": 2}, "layers"),
        ({"strength": 0.5}, "strength"),
        ({"pictures": 1}, "image"),
        ({"mask": True}, "mask"),
        ({"steps": 0}, "steps"),
        ({"width": 60, "height": 64}, "size"),
        ({"width": 1024, "height": 1024}, "size"),
    ],
)
def test_what_the_pipeline_does_not_take_is_refused_by_name(
    engine: DiffusionEngine, fields: dict[str, Any], param: str
) -> None:
    error = run(engine, [job(0, **fields)])[0].error
    assert error is not None
    assert (error.status, error.param) == (400, param)
    assert pixels(run(engine, [job(0)])[0])  # the next request works
