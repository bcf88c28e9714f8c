"""LoRA adapters: whose request names one gets it, and nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.vllm.conftest import EAGER, Direct
from tests.worker.engines.ar_driver import Collector, work

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.worker.engine import Engine

PROMPT = list(range(32, 64))

pytestmark = [pytest.mark.deadline(400), pytest.mark.usefixtures("worker_environment")]


@pytest.fixture(scope="module")
def engine(tiny_qwen3: Path, accent: Path, worker_environment: None) -> Iterator[Engine]:
    from omni_actors.worker.engines.vllm import VllmEngine

    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="llm",
        replica=0,
        incarnation=1,
        engine="omni_actors.worker.engines.vllm:VllmEngine",
        adapter="omni_actors.models.causal_lm.prompted:PromptedLM",
        model=str(tiny_qwen3),
        options={**EAGER, "loras": {"accent": str(accent)}},
    )
    engine = VllmEngine(hello)
    assert engine.load(lambda text, fraction: None)["loras"] == ["accent"]
    yield engine
    engine.close()


def test_who_names_an_adapter_gets_it_and_nobody_else(
    engine: Engine, tiny_qwen3: Path, accent: Path, direct: Direct
) -> None:
    asked = {"tokens": PROMPT, "sampling": {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}}
    plain, adapted = direct(tiny_qwen3, [asked, {**asked, "lora": str(accent)}])
    assert plain["tokens"] != adapted["tokens"]
    named = {1: None, 2: "accent", 3: None, 4: "accent"}
    out = Collector()
    for key, lora in named.items():
        engine.admit(work(key, PROMPT, max_tokens=24, ignore_eos=True, lora=lora))
    while engine.runnable:
        engine.step(out)
    said = {key: out.answers[key][0].token_ids for key in named}
    assert said == {key: (adapted if lora else plain)["tokens"] for key, lora in named.items()}


def test_what_vllm_cannot_do_beside_adapters_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(OmniError, match="together with LoRA adapters") as refused:
        engine.admit(work(5, PROMPT, max_tokens=3, echo=True, logprobs=1))
    assert (refused.value.info.status, refused.value.info.param) == (400, "logprobs")
    with pytest.raises(OmniError, match="There is no adapter 'other'"):
        engine.admit(work(6, PROMPT, lora="other"))
    assert engine.counters()["requests"] == 0
