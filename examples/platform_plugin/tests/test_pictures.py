"""Pictures on the simulated device: mixed jobs stay within its memory, and a lack of memory fails one of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from omni_sim.engines import SimDiffusionEngine
from omni_sim.runtime import SimRuntime

from omni_actors.models.tiny.cache import cached
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.testing.driving import Job, drive
from omni_actors.testing.outcome import Outcome
from omni_actors.worker import device
from omni_actors.worker.device import runtime_of
from omni_actors.worker.engine import Work

pytestmark = [pytest.mark.slow, pytest.mark.torch]

MIB = 1 << 20
JOBS = 50


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a tiny Stable Diffusion 3 on a device with so much memory and such faults."""

    def load(memory: int, faults: str = "", **options: Any) -> SimDiffusionEngine:
        monkeypatch.setenv("OMNI_SIM_MEMORY", str(memory))
        monkeypatch.setenv("OMNI_SIM_FAULTS", faults)
        device._open.cache_clear()  # a device of its own for each test
        engine = SimDiffusionEngine(
            Hello(
                version=PROTOCOL_VERSION,
                stage="image",
                replica=0,
                incarnation=1,
                engine="omni_sim.engines:SimDiffusionEngine",
                adapter="omni_actors.models.sd3.adapter:StableDiffusion3",
                model=str(cached("sd3")),
                platform="omni_sim:SimPlatform",
                options={"max_rows": 64, "max_pixels": 256 * 256, **options},
            )
        )
        engine.load(lambda text, fraction: None)
        return engine

    yield load
    device._open.cache_clear()


def jobs(chance: random.Random) -> list[Job]:
    found = []
    for key in range(JOBS):
        image = ImageGeneration(
            prompt=f"picture {key}",
            seed=key,
            steps=chance.randrange(1, 5),
            guidance=chance.choice([1.0, 4.0]),
            n=chance.choice([1, 1, 2]),
            width=chance.choice([64, 64, 64, 128, 256]),
            height=chance.choice([64, 64, 128]),
        )
        found.append(Job(Work(key, f"r{key}", {"image": image}, routed=True)))
    return found


def failed(outcomes: dict[int, Outcome]) -> dict[int, str | None]:
    return {key: it.error.code for key, it in outcomes.items() if it.error is not None}


def test_mixed_jobs_stay_within_the_memory_of_the_device(loaded: Any) -> None:
    limit = 20 * MIB
    engine = loaded(limit)
    outcomes = drive(engine, jobs(random.Random(0)))
    counters = engine.counters()
    assert failed(outcomes) == {}
    assert counters["sim_memory_peak_bytes"] <= limit
    assert counters["sim_memory_refusals_total"] == 0
    assert counters["out_of_memory_total"] == 0
    assert counters["rows_total"] > 2 * counters["forwards_total"]


@pytest.mark.parametrize("admission", [True, False])
def test_without_admission_a_large_batch_does_not_fit_at_first(loaded: Any, admission: bool) -> None:
    engine = loaded(20 * MIB, **({} if admission else {"memory_bytes": 1 << 40}))
    image = ImageGeneration(prompt="large", seed=1, steps=2, guidance=4.0, n=8, width=256, height=256)
    large = [Job(Work(key, f"r{key}", {"image": image}, routed=True)) for key in range(4)]
    assert failed(drive(engine, large)) == {}, "without admission, smaller parts fit"
    assert (engine.counters()["sim_memory_refusals_total"] == 0) == admission


def test_a_lack_of_memory_fails_one_and_the_next_succeeds(loaded: Any) -> None:
    engine = loaded(64 * MIB, "oom@3")
    some = jobs(random.Random(1))
    first = drive(engine, some[:1])
    assert list(failed(first).values()) == ["out_of_memory"]
    later = drive(engine, some[1:4])
    assert failed(later) == {}
    assert isinstance(runtime_of(engine.hello), SimRuntime)
