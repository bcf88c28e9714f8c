"""Each vendor's workers run the conformance workload on a fake device: real processes, real engines, same answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trio
from tests.platforms.fake_vendors.host_device import CALLS
from tests.platforms.fake_vendors.platforms import BUILTINS
from tests.worker.engines import ar_driver, tiny_models

from omni_actors.entrypoints.offline import open_omni
from omni_actors.pipelines.factory import resolve
from omni_actors.platforms.select import BUILTINS as KNOWN
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.protocol.request import Request

pytestmark = pytest.mark.deadline(120)

VENDORS = sorted(BUILTINS)
OPENED = {
    "ascend": {"npu.set_compile_mode(jit_compile=False)", "npu.set_device(npu:0)"},
    "musa": {"torchada", "musa.set_device(musa:0)"},
    "rocm": {"cuda.set_device(sim:0)"},
    "xpu": {"xpu.set_device(sim:0)"},
}
"""What a runtime has done when it is open."""

TOKENS = 12
PROMPTS = ("hello, what is the time?", "abc")


@pytest.fixture(autouse=True)
def vendors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The machine has every vendor's device. The file of what workers called."""
    for name, target in BUILTINS.items():
        monkeypatch.setitem(KNOWN, name, target)
    calls = tmp_path / "calls"
    monkeypatch.setenv(CALLS, str(calls))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return calls


def called(calls: Path) -> set[str]:
    return set(calls.read_text().splitlines()) if calls.exists() else set()


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.save(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def said(language_model: str) -> list[str]:
    """What it says to each prompt on the processor."""
    made = [ar_driver.work(key, text, max_tokens=TOKENS) for key, text in enumerate(PROMPTS)]
    out = ar_driver.run(ar_driver.engine_of(ar_driver.load_adapter(language_model)), made)
    texts = [out.answers[key][0].text for key in range(len(PROMPTS))]
    assert len(set(texts)) == len(PROMPTS)
    return texts


async def complete(folder: str, platform: str, *overrides: str) -> list[str]:
    """What a language model says to each prompt, greedily, all at once."""
    plan = resolve(folder, platform=platform, overrides=("stages.llm.dtype=float32", *overrides))
    said = dict.fromkeys(PROMPTS, "")
    async with open_omni(plan) as omni:

        async def one(text: str) -> None:
            sampling = Sampling(temperature=0.0, max_tokens=TOKENS)
            params = {"prompt": Prompt(text=text), "sampling": sampling}
            output = await omni.run(Request(task="completion", inputs=("text",), outputs=("text",), params=params))
            said[text] = output.choices[0].text

        async with trio.open_nursery() as nursery:
            for text in PROMPTS:
                nursery.start_soon(one, text)
    return list(said.values())


async def speak(folder: str, platform: str) -> np.ndarray:
    """A sentence's samples."""
    float32 = [f"stages.{name}.dtype=float32" for name in ("talker", "codec")]
    plan = resolve(folder, platform=platform, overrides=float32)
    async with open_omni(plan) as omni:
        params = {"speech": Speech(text="The river runs to the sea.", max_tokens=16, seed=3)}
        output = await omni.run(Request(task="speech", inputs=("text",), outputs=("audio",), params=params))
    return np.frombuffer(output.pcm, "<i2").astype(np.float32) / 32768


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_language_model_says_the_same(vendor: str, language_model: str, said: list[str], vendors: Path) -> None:
    assert await complete(language_model, vendor) == said
    assert called(vendors) >= OPENED[vendor]


@pytest.mark.slow
@pytest.mark.parametrize(("vendor", "collectives"), [("ascend", "hccl"), ("musa", "mccl")])
async def test_two_ranks_say_the_same_by_the_vendors_collectives(
    vendor: str, collectives: str, language_model: str, said: list[str], vendors: Path
) -> None:
    assert await complete(language_model, vendor, "stages.llm.strategy.tensor=2") == said
    assert called(vendors) >= {f"{collectives}.allreduce", f"{collectives}.allgather"}


@pytest.fixture(scope="module")
def spoken(tiny_model: Callable[[str], Path]) -> np.ndarray:
    """The sentence's samples as the processor computes them."""
    return trio.run(speak, str(tiny_model("pocket-tts")), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("vendor", VENDORS)
async def test_speech_is_the_same(
    vendor: str, spoken: np.ndarray, tiny_model: Callable[[str], Path], vendors: Path
) -> None:
    expected, heard = spoken, await speak(str(tiny_model("pocket-tts")), vendor)
    assert len(expected) > 1000
    np.testing.assert_allclose(heard, expected, atol=1e-4)
    assert called(vendors) >= OPENED[vendor]
