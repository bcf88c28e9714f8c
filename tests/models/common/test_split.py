"""A decoder in parts computes what the whole does, and no part is more than its share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.models.omni.comparison import Comparison
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import hello
from tests.worker.engines.ranks import in_threads
from tests.worker.engines.test_ar_decoders import worst_error

from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.models.common.split import Split, read_split
from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.worker.collectives import Group
from omni_actors.worker.engines.autoregressive.runner import ModelRunner

NETWORKS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama": ("llama", 2, {}),
    "tied and biased, a vocabulary with a rest": (
        "llama",
        2,
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "vocab_size": 263},
    ),
    "qwen2, which has biases at three projections": ("qwen2", 2, {}),
    "qwen3, three ranks": ("qwen3", 3, {"num_key_value_heads": 3, "intermediate_size": 96}),
    "mistral, more ranks than key heads": (
        "mistral",
        6,
        {"sliding_window": None, "num_key_value_heads": 2, "intermediate_size": 96},
    ),
}
"""Transformers' type, ranks, and what is changed of the tiny model."""


@pytest.mark.parametrize("name", NETWORKS)
def test_a_decoder_in_parts_equals_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, size, changes = NETWORKS[name]
    model, folder = tiny_models.build(kind, **changes), tiny_models.save(tmp_path, kind, **changes)
    with in_threads(lambda: CausalLM(hello(folder)), size, KERNELS) as (adapter, followers):
        monkeypatch.setattr("tests.worker.engines.test_ar_decoders.ModelRunner", _leading(followers))
        assert worst_error(adapter.decoder, model) < 2e-5


def _leading(followers: Any) -> Callable[..., ModelRunner]:
    return partial(ModelRunner, followers=followers)


def test_the_comparison_sees_a_part_that_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = tiny_models.build("qwen3"), tiny_models.save(tmp_path, "qwen3")
    with in_threads(lambda: CausalLM(hello(folder)), 2, KERNELS) as (adapter, followers):
        layers: Any = adapter.decoder._layers  # type: ignore[attr-defined]
        layers._layers[1].out = lambda x: torch.zeros(len(x), layers.width)
        monkeypatch.setattr("tests.worker.engines.test_ar_decoders.ModelRunner", _leading(followers))
        assert worst_error(adapter.decoder, model) > 1e-2


def parts(folder: str, config: Any, size: int) -> list[dict[str, torch.Tensor]]:
    found = []
    for rank in range(size):
        group = Group()
        group.rank, group.size = rank, size
        found.append(read_split(folder, "", Split(config, group), torch.float32, "cpu"))
    return found


def test_parts_are_shares_of_the_whole(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"vocab_size": 263, "num_key_value_heads": 1}
    model, folder = tiny_models.build("qwen3", **changes), tiny_models.save(tmp_path, "qwen3", **changes)
    own = parts(folder, model.config, 2)
    for name, whole in model.state_dict().items():
        first, second = own[0][name], own[1][name]
        module = name.split(".")[-2]
        if "norm" in module or module in ("k_proj", "v_proj"):
            assert torch.equal(first, whole) and torch.equal(second, whole)  # noqa: PT018
        else:
            dim = 1 if module in ("o_proj", "down_proj") else 0
            joined = torch.cat((first, second), dim)
            assert first.shape == second.shape
            assert torch.equal(joined[: whole.shape[0], : whole.shape[1]], whole), name
            assert not joined[whole.shape[0] :].any()


def test_what_is_asked_of_other_layers_is_refused(tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path, "olmo2")
    with (
        pytest.raises(Exception, match="are not split over ranks"),
        in_threads(lambda: CausalLM(hello(folder)), 2, KERNELS),
    ):
        pass


CASES = ("text", "video with sound", "image, video, audio")


@pytest.mark.slow
@pytest.mark.deadline(180)
@pytest.mark.parametrize(
    ("family", "strategy"),
    [
        ("qwen3-omni", {"tensor": 2}),
        ("qwen3-omni", {"tensor": 2, "expert": 2}),
        ("qwen2.5-omni", {"tensor": 2}),
    ],
)
def test_a_thinker_in_parts_says_and_hands_on_the_same(
    compared: Callable[[str], Comparison], family: str, strategy: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text, and prompts with images, sound and video, at once: who follows knows nothing of them but what it is told.
    And the comparison sees it when that is not all."""
    comparison = compared(family)
    engine: Any = comparison.line.engines["thinker"]
    whole = engine._adapter
    said = msgspec.structs.replace(engine.hello, strategy=strategy)
    cases = [comparison.case(name) for name in CASES]
    with in_threads(lambda: type(whole)(said), 2, KERNELS) as (adapter, followers):
        assert adapter.decoder.kv_shape.kv_heads * 2 == whole.decoder.kv_shape.kv_heads
        monkeypatch.setattr(engine, "followers", followers)
        engine.attach(adapter)
        comparison.line._record("thinker", engine)
        decoder: Any = adapter.decoder
        try:
            answers = comparison.line.run([case.ask() for case in cases], len(cases))
            for case, answer in zip(cases, answers, strict=True):
                comparison.check(case, answer)
            known = decoder.known
            decoder.known = lambda inputs: {k: v for k, v in known(inputs).items() if k != "rows"}
            engine.attach(adapter)  # nothing of what was computed is found again
            assert comparison.fault(CASES[1])["logits"] > 0
        finally:
            monkeypatch.undo()
            engine.attach(whole)
