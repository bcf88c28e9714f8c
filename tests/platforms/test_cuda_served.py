"""A language model on the cuda platform, in workers of their own, on a device that computes by the processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.platforms.fake_cuda import FakeCuda
from tests.platforms.fake_vendors.host_device import CALLS
from tests.worker.engines import tiny_models

from omni_actors.entrypoints.offline import open_omni
from omni_actors.pipelines.factory import resolve
from omni_actors.platforms.select import BUILTINS
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import Request

pytestmark = [pytest.mark.slow, pytest.mark.deadline(240)]

PROMPTS = ("hello, what is the time?", "abc", "one two three four five")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The machine has a device. The file of what workers called."""
    monkeypatch.setitem(BUILTINS, "cuda", f"{FakeCuda.__module__}:{FakeCuda.__qualname__}")
    path = tmp_path / "calls"
    monkeypatch.setenv(CALLS, str(path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.save(tmp_path_factory.mktemp("llm"))


async def complete(folder: str, platform: str, *overrides: str, dtype: str = "float32") -> list[list[int]]:
    """The tokens of each answer, greedily, all at once."""
    small = ("stages.llm.options.max_model_len=256", "stages.llm.options.max_batch=4")
    settings = (f"stages.llm.dtype={dtype}", *small, *overrides)
    plan = resolve(folder, platform=platform, overrides=settings)
    said: dict[str, list[int]] = {}
    async with open_omni(plan) as omni:

        async def one(text: str) -> None:
            sampling = Sampling(temperature=0.0, max_tokens=12)
            params = {"prompt": Prompt(text=text), "sampling": sampling}
            asked = Request(task="completion", inputs=("text",), outputs=("text",), params=params)
            said[text] = list((await omni.run(asked)).choices[0].token_ids)

        async with trio.open_nursery() as nursery:
            for text in PROMPTS:
                nursery.start_soon(one, text)
    return [said[text] for text in PROMPTS]


def called(calls: Path) -> set[str]:
    return set(calls.read_text().splitlines()) if calls.exists() else set()


async def test_graphs_on_and_off_say_what_the_processor_says(folder: str, calls: Path) -> None:
    expected = await complete(folder, "cpu")
    assert all(len(tokens) > 3 for tokens in expected)
    assert await complete(folder, "cuda", "platforms.cuda.graphs=false") == expected
    assert not any(name.startswith("CUDAGraph") for name in called(calls))
    assert await complete(folder, "cuda") == expected
    assert {"cuda.set_device(sim:0)", "CUDAGraph.capture", "CUDAGraph.replay"} <= called(calls)


async def test_flash_attention_reads_the_cache_where_it_is_installed(folder: str, calls: Path) -> None:
    settings = ("platforms.cuda.graphs=false", "stages.llm.options.kv_memory_mib=8")
    said = await complete(folder, "cuda", *settings, dtype="bfloat16")
    assert all(said)
    assert {"flash_attn_func", "flash_attn_with_kvcache"} <= called(calls)
