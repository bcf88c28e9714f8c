"""Every causal language model of transformers resolves by itself, and one that cannot be computed is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import pytest
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import hello
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.models.causal_lm.architectures import OTHER_NAMES
from omni_actors.pipelines.declaration import Pipeline, Stage, Task
from omni_actors.pipelines.planning.choose import choose
from omni_actors.pipelines.registry import BUILTINS, Registry
from omni_actors.protocol.errors import OmniError

NAMES = sorted(
    set(
        itertools.chain.from_iterable(
            [it] if isinstance(it, str) else it for it in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        )
    )
)

PLUGIN = Pipeline(
    name="plugin",
    stages=(Stage(name="llm", engine="stub", sections=("prompt",), emits="text"),),
    tasks=(Task("chat", entries={"text": "llm"}, outputs={"text": "llm"}),),
    architectures=("GPT2LMHeadModel", "LlamaForCausalLM"),
)


def resolved(folder: Path, architecture: str, registry: Registry) -> str:
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return choose(str(folder), None, {}, None, registry).pipeline.name


def test_every_class_of_transformers_resolves_by_itself(tmp_path: Path) -> None:
    assert len(NAMES) > 150
    registry = Registry.installed([])
    # One that a family of this project claims is that family's.
    claimed = {name: found.name for name in NAMES if (found := registry.for_architecture(name))}
    assert {name: resolved(tmp_path, name, registry) for name in NAMES} == dict.fromkeys(NAMES, "causal-lm") | claimed


def test_the_table_names_no_class_that_transformers_has_not() -> None:
    assert set(NAMES) >= OTHER_NAMES
    assert not [name for name in OTHER_NAMES if name.endswith("ForCausalLM")]


def test_a_class_that_another_pipeline_claims_is_that_ones(tmp_path: Path) -> None:
    registry = Registry({**BUILTINS, "plugin": f"{__name__}:PLUGIN"})
    assert resolved(tmp_path, "GPT2LMHeadModel", registry) == "plugin"
    assert resolved(tmp_path, "LlamaForCausalLM", registry) == "plugin"
    assert resolved(tmp_path, "CTRLLMHeadModel", registry) == "causal-lm"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("bloom", "BloomForCausalLM computes attention by code of its own"),
        ("openai-gpt", "OpenAIGPTLMHeadModel computes attention by code of its own"),
        ("bert", "BertLMHeadModel is configured as an encoder"),
        ("mamba", "MambaForCausalLM has layers of kind linear_attention"),
        ("diffllama", "DiffLlamaForCausalLM computes something else over a paged cache than by itself"),
        ("gpt_bigcode", "GPTBigCodeForCausalLM does not run over a paged cache"),
    ],
)
def test_one_that_the_torch_engine_cannot_compute_is_refused_with_the_reason(
    kind: str, why: str, tmp_path: Path
) -> None:
    own = {"num_key_value_heads": None, "head_dim": None} if kind == "gpt_bigcode" else {}
    folder = tiny_models.save(tmp_path, kind, **own)
    with pytest.raises(OmniError, match="the torch engine cannot compute this model: " + why):
        CausalLM(hello(folder)).load(lambda text, fraction: None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_trial_admits_runs(dtype: str, tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path, "gpt2", num_key_value_heads=None, head_dim=None)
    it = CausalLM(msgspec.structs.replace(hello(folder), dtype=dtype))
    assert it.load(lambda text, fraction: None)["architecture"] == "GPT2LMHeadModel"
