"""Pictures on the simulated device: memory by which they are admitted, and offload."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from omni_sim.engines import SimDiffusionEngine

from omni_actors.models.tiny.cache import cached
from omni_actors.models.tiny.diffusion.sd3 import GAINS
from omni_actors.models.tiny.weights import initialise
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.testing.driving import Job, drive
from omni_actors.testing.outcome import Outcome
from omni_actors.worker.engine import Work

pytestmark = pytest.mark.slow

MIB = 1 << 20
Make = Callable[..., SimDiffusionEngine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Stable Diffusion 3 with a transformer of some weight."""
    tiny, folder = cached("sd3"), tmp_path_factory.mktemp("wide") / "sd3"
    shutil.copytree(tiny, folder)
    shallow = diffusers.SD3Transformer2DModel.load_config(tiny / "transformer")
    wide = {"num_layers": 8, "attention_head_dim": 16, "num_attention_heads": 8, "caption_projection_dim": 128}
    transformer = diffusers.SD3Transformer2DModel.from_config({**shallow, **wide})
    initialise(transformer, 3, GAINS)
    shutil.rmtree(folder / "transformer")
    transformer.save_pretrained(folder / "transformer")
    return folder


@pytest.fixture(scope="module")
def serial() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def make(folder: Path, serial: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a loaded engine on a device with so much memory."""
    torch.set_num_threads(1)
    monkeypatch.setenv("OMNI_SIM_MEMORY", str(1 << 30))

    def make(memory: int, **options: Any) -> SimDiffusionEngine:
        engine = SimDiffusionEngine(
            Hello(
                version=PROTOCOL_VERSION,
                stage="image",
                replica=0,
                incarnation=1,
                engine="diffusion",
                adapter="omni_actors.models.sd3.adapter:StableDiffusion3",
                model=str(folder),
                dtype="float32",
                device="cpu",
                platform="omni_sim:SimPlatform",
                # A process opens a device once for each set of options: a serial number makes a device of its own.
                platform_options={"reserved_bytes": (1 << 30) - memory - next(serial)},
                options={"guidance": 1.0, **options},
            )
        )
        engine.load(lambda text, fraction: None)
        return engine

    return make


def run(engine: SimDiffusionEngine, images: list[ImageGeneration], seed: int | None = None) -> dict[int, Outcome]:
    jobs = [Job(Work(key, f"picture-{key}", {"image": image}, routed=True)) for key, image in enumerate(images)]
    return drive(engine, jobs, order=None if seed is None else random.Random(seed))


def pixels(outcome: Outcome) -> np.ndarray[Any, Any]:
    assert outcome.error is None, outcome.error
    return np.asarray(outcome.payloads[-1].tensors["pixels"]).astype(int)


IMAGE = ImageGeneration(prompt="a red house", seed=5, steps=4, guidance=1.0, width=64, height=64)


@pytest.mark.parametrize("kind", ["model", "group"])
def test_with_offload_a_model_beyond_the_memory_makes_the_same_picture(make: Make, folder: Path, kind: str) -> None:
    (whole,) = run(make(1 << 28), [IMAGE]).values()
    weights = (folder / "transformer/diffusion_pytorch_model.safetensors").stat().st_size
    memory = weights // 2 if kind == "group" else weights + 8 * MIB
    engine = make(memory, offload=kind)
    (offloaded,) = run(engine, [IMAGE]).values()
    assert np.abs(pixels(offloaded) - pixels(whole)).max() <= 1
    counters = engine.counters()
    assert counters["sim_memory_peak_bytes"] <= memory
    assert counters["offload_loads_total"] > 0
    assert counters["sim_memory_refusals_total"] == 0


def mixed(count: int) -> list[ImageGeneration]:
    """Return pictures of several sizes, steps and guidance, some with a step cache."""
    chance = random.Random(7)
    return [
        ImageGeneration(
            prompt=f"picture {number}",
            seed=number,
            steps=chance.randrange(1, 4),
            guidance=chance.choice((1.0, 3.0)),
            width=chance.choice((32, 64)),
            height=chance.choice((32, 64)),
            cache=chance.choice(({}, {"threshold": 0.5})),
        )
        for number in range(count)
    ]


def test_fifty_mixed_pictures_stay_within_the_memory_and_none_fails(make: Make, folder: Path) -> None:
    weights = (folder / "transformer/diffusion_pytorch_model.safetensors").stat().st_size
    engine = make(weights + 16 * MIB)
    outcomes = run(engine, mixed(50), seed=3)
    assert [key for key, outcome in outcomes.items() if outcome.error is not None] == []
    counters = engine.counters()
    assert counters["sim_memory_peak_bytes"] <= weights + 16 * MIB
    assert counters["sim_memory_refusals_total"] == 0
    assert counters["memory_bytes"] == 0
    assert counters["rows_total"] > counters["forwards_total"]


def test_a_planned_shortage_fails_one_picture_and_the_next_succeeds(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_SIM_FAULTS", "oom@3")
    engine = make(1 << 28)
    (failed,) = run(engine, [IMAGE]).values()
    assert failed.error is not None
    assert (failed.error.status, failed.error.code) == (503, "out_of_memory")
    (succeeded,) = run(engine, [IMAGE]).values()
    pixels(succeeded)
    assert engine.counters()["memory_bytes"] == 0
