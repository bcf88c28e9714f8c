"""LoRA adapters: each row of a batch has its own, and they come and go at run time."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.models.diffusion.acceleration.deep import CASE, loras, orders, write_deep
from tests.models.diffusion.parity import TOLERANCE, Driven, Trace

from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Query
from omni_actors.protocol.params import ImageGeneration, LoraScale
from omni_actors.testing.driving import Box
from omni_actors.worker.engine import Work

pytestmark = [pytest.mark.slow, pytest.mark.torch]

TARGETS = {
    "red": ("transformer_blocks.0.attn.to_q", "transformer_blocks.1.ff.net.2", "transformer_blocks.4.attn.to_out.0"),
    "blue": ("transformer_blocks.0.attn.to_q", "transformer_blocks.3.attn.add_k_proj", "proj_out", "context_embedder"),
}
RANK = {"red": 4, "blue": 3}

MIXED = orders(
    loras(red=1.0),
    loras(blue=0.7),
    loras(red=-0.5, blue=1.5),
    {},
    {**loras(red=0.6), "cache": {"threshold": 0.25}},
)


def matrices(folder: Path, name: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return an adapter's matrices ``down`` and ``up`` by module, the same in every run."""
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel.from_pretrained(folder / "transformer")
    drawn = torch.Generator().manual_seed(len(name))
    found = {}
    for module in TARGETS[name]:
        outputs, inputs = model.get_submodule(module).weight.shape
        down = torch.randn(RANK[name], inputs, generator=drawn) * inputs**-0.5
        found[module] = (down, torch.randn(outputs, RANK[name], generator=drawn) * 0.5)
    return found


def peft_file(path: Path, adapter: Mapping[str, Any], prefix: str = "transformer.", **metadata: str) -> Path:
    """Write an adapter as diffusers' ``save_lora_weights`` does."""
    tensors = {}
    for module, (down, up) in adapter.items():
        tensors[f"{prefix}{module}.lora_A.weight"] = down.contiguous()
        tensors[f"{prefix}{module}.lora_B.weight"] = up.contiguous()
    path.parent.mkdir(exist_ok=True, parents=True)
    save_file(tensors, path, {"format": "pt", **metadata})
    return path


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deep(tmp_path_factory.mktemp("deep") / "sd3", tiny_model("sd3"))


@pytest.fixture(scope="module")
def files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("loras")
    return {name: peft_file(place / f"{name}.safetensors", matrices(folder, name)) for name in TARGETS}


@pytest.fixture(scope="module")
def driven(folder: Path, files: dict[str, Path]) -> Driven:
    driven = Driven(CASE, folder)
    for name, file in files.items():
        asked(driven, "load_lora", name=name, path=str(file))
    return driven


@pytest.fixture(scope="module")
def alone(driven: Driven) -> list[Trace]:
    return [driven.run([order])[0] for order in MIXED]


class Answers(Box):
    """An outbox that keeps the answer of a query."""

    answer: tuple[Any, ErrorInfo | None]

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        self.answer = (value, error)


def asked(driven: Driven, what: str, **args: Any) -> Any:
    """Send the engine a query, and return its answer."""
    box = Answers()
    driven.engine.query(Query(1, what, args), box)
    value, error = box.answer
    assert error is None
    return value


def differences(traces: Sequence[Trace], expected: Sequence[Trace]) -> float:
    return max(trace.differs(it) for trace, it in zip(traces, expected, strict=True))


def test_different_adapters_in_one_batch_each_equal_themselves_alone(driven: Driven, alone: list[Trace]) -> None:
    assert differences(driven.run(MIXED), alone) <= TOLERANCE
    assert driven.rows_per_forward > 4
    assert differences(driven.run(MIXED, random.Random(3)), alone) <= TOLERANCE


def test_adapters_change_pictures(driven: Driven, alone: list[Trace]) -> None:
    plain = [driven.run([order])[0] for order in orders({})[:3]]
    for trace, without in zip(alone, plain, strict=False):
        assert trace.differs(without) > 100 * TOLERANCE


def test_a_row_with_a_neighbours_adapter_is_found(driven: Driven, alone: list[Trace]) -> None:
    with neighbours_adapter(driven):
        assert differences(driven.run(MIXED), alone) > 10 * TOLERANCE


@contextmanager
def neighbours_adapter(driven: Driven) -> Iterator[None]:
    """Add every row's terms to the row in front of it."""
    layers = driven.adapter.acceleration.loras.layers
    added = layers._added

    def planted(users: Any, *arguments: Any) -> torch.Tensor:
        rows = tuple((row - 1) % len(layers._rows.present) for row in users.rows)
        turned: torch.Tensor = added(type(users)(users.adapter, rows, users.scales), *arguments)
        return turned

    layers._added = planted
    yield
    layers._added = added


def test_adapters_equal_merged_weights(folder: Path, alone: list[Trace]) -> None:
    merged = Driven(CASE, folder)
    for number, scales in enumerate(({"red": 1.0}, {"blue": 0.7}, {"red": -0.5, "blue": 1.5})):
        restore = merge(merged.adapter.model, folder, scales)
        (trace,) = merged.run([orders({})[number]])
        restore()
        assert trace.differs(alone[number]) <= TOLERANCE


def merge(model: Any, folder: Path, scales: dict[str, float]) -> Callable[[], None]:
    """Add adapters to a model's own weights; the result takes them away again."""
    before: dict[str, torch.Tensor] = {}
    for name, scale in scales.items():
        for module, (down, up) in matrices(folder, name).items():
            weight = model.get_submodule(module).weight
            before.setdefault(module, weight.data.clone())
            weight.data += scale * up @ down

    def restore() -> None:
        for module, weight in before.items():
            model.get_submodule(module).weight.data.copy_(weight)

    return restore


# ---- formats


def diffusers_form(adapter: Mapping[str, Any], place: Path) -> Path:
    return peft_file(place / "pytorch_lora_weights.safetensors", adapter).parent


def peft_form(adapter: Mapping[str, Any], place: Path) -> Path:
    halved = {module: (down, up * 0.5) for module, (down, up) in adapter.items()}
    file = peft_file(place / "adapter_model.safetensors", halved, "base_model.model.")
    (place / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    return file.parent


def headed_form(adapter: Mapping[str, Any], place: Path) -> Path:
    halved = {module: (down, up * 0.5) for module, (down, up) in adapter.items()}
    said = json.dumps({"transformer.r": 4, "transformer.lora_alpha": 8})
    return peft_file(place / "headed.safetensors", halved, lora_adapter_metadata=said)


def rank_stabilised_form(adapter: Mapping[str, Any], place: Path) -> Path:
    halved = {module: (down, up * 0.5) for module, (down, up) in adapter.items()}
    peft_file(place / "adapter_model.safetensors", halved, "base_model.model.")
    (place / "adapter_config.json").write_text(json.dumps({"lora_alpha": 4, "use_rslora": True}))
    return place


def alpha_form(adapter: Mapping[str, Any], place: Path) -> Path:
    tensors = {}
    for module, (down, up) in adapter.items():
        tensors[f"transformer.{module}.lora_A.weight"] = down.contiguous()
        tensors[f"transformer.{module}.lora_B.weight"] = (up * 4).contiguous()
        tensors[f"transformer.{module}.alpha"] = torch.tensor(1.0)
    save_file(tensors, place / "alpha.safetensors")
    return place / "alpha.safetensors"


def old_form(adapter: Mapping[str, Any], place: Path) -> Path:
    tensors = {}
    for module, (down, up) in adapter.items():
        old = module.replace("attn.to_q", "attn.processor.to_q_lora").replace(
            "attn.to_out.0", "attn.processor.to_out_lora"
        )
        old = old if "_lora" in old else f"{old}.lora"
        tensors[f"transformer.{old}.down.weight"], tensors[f"transformer.{old}.up.weight"] = down, up.contiguous()
    save_file(tensors, place / "old.safetensors")
    return place / "old.safetensors"


@pytest.mark.parametrize("form", [diffusers_form, peft_form, headed_form, rank_stabilised_form, alpha_form, old_form])
def test_every_form_of_file_is_the_same_adapter(
    form: Callable[..., Path], driven: Driven, alone: list[Trace], folder: Path, tmp_path: Path
) -> None:
    asked(driven, "load_lora", name="other", path=str(form(matrices(folder, "red"), tmp_path)))
    try:
        (trace,) = driven.run([orders(loras(other=1.0))[0]])
    finally:
        asked(driven, "unload_lora", name="other")
    assert trace.differs(alone[0]) <= TOLERANCE


# ---- loading and unloading


def test_loaded_adapters_are_listed(driven: Driven, files: dict[str, Path]) -> None:
    listed = asked(driven, "loras")
    assert [it["name"] for it in listed] == ["red", "blue"]
    assert [it["path"] for it in listed] == [str(files["red"]), str(files["blue"])]
    assert driven.engine.counters()["lora_bytes"] == sum(it["bytes"] for it in listed) > 0


def test_an_adapter_in_use_is_unloaded_after_its_requests(
    driven: Driven, alone: list[Trace], files: dict[str, Path]
) -> None:
    adapter = driven.adapter
    asked(driven, "load_lora", name="going", path=str(files["red"]))
    before = driven.engine.counters()["lora_bytes"]
    (cursor,) = adapter.open(Work(1, "using", {}), orders(loras(going=1.0))[0].section())
    with torch.inference_mode():
        *_, (cursor.conditioning,) = adapter.encode([cursor])
    adapter.begin(cursor)
    asked(driven, "unload_lora", name="going")
    (prediction,) = adapter.predict([cursor])
    expected = alone[0].predictions[0]
    assert (prediction - expected).abs().max() <= TOLERANCE * expected.abs().max()
    with pytest.raises(OmniError):
        adapter.open(Work(2, "late", {}), orders(loras(going=1.0))[0].section())
    assert driven.engine.counters()["lora_bytes"] == before
    adapter.close(cursor)
    del cursor
    gc.collect()
    assert driven.engine.counters()["lora_bytes"] < before


def test_a_stage_loads_its_own_adapters_at_the_start(folder: Path, files: dict[str, Path], alone: list[Trace]) -> None:
    started = Driven(CASE, folder, loras=f"red={files['red']}")
    (trace,) = started.run([MIXED[0]])
    assert trace.differs(alone[0]) <= TOLERANCE


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ([LoraScale("green")], "'green' is not loaded"),
        ([LoraScale("red", float("nan"))], "must be a number"),
        ([LoraScale("red"), LoraScale("red", 0.5)], "named twice"),
    ],
)
def test_wrong_adapters_of_a_request_are_refused(driven: Driven, chosen: list[LoraScale], says: str) -> None:
    with pytest.raises(OmniError, match=says) as refused:
        driven.adapter.open(Work(1, "wrong", {}), ImageGeneration(prompt="a", loras=chosen))
    assert (refused.value.info.status, refused.value.info.param) == (400, "lora")


def test_what_is_no_adapter_of_the_model_is_refused(driven: Driven, folder: Path, tmp_path: Path) -> None:
    red = matrices(folder, "red")
    unknown = peft_file(tmp_path / "unknown.safetensors", {"transformer_blocks.77.attn.to_q": red[TARGETS["red"][0]]})
    narrow = {module: (down[:, :-1], up) for module, (down, up) in red.items()}
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(unknown.read_bytes()[:-10])
    half = tmp_path / "half.safetensors"
    save_file({"transformer.proj_out.lora_A.weight": torch.ones(2, 3)}, half)
    dora = tmp_path / "dora.safetensors"
    save_file({"transformer.proj_out.lora_magnitude_vector": torch.ones(2)}, dora)
    text = tmp_path / "text.safetensors"
    save_file({"text_encoder.layers.0.q_proj.lora_A.weight": torch.ones(2, 2)}, text)
    cases = {
        tmp_path / "absent.safetensors": "does not exist",
        unknown: "which this model does not have",
        peft_file(tmp_path / "narrow.safetensors", narrow): "does not fit this model",
        torn: "cannot be read",
        half: "one half",
        dora: "no plain LoRA",
        text: "text encoder",
        folder / "model_index.json": "no .safetensors",
    }
    for path, says in cases.items():
        with pytest.raises(OmniError, match=says) as refused:
            asked(driven, "load_lora", name="wrong", path=str(path))
        assert (refused.value.info.status, refused.value.info.param) == (400, "path")
    for what, args, param in (
        ("load_lora", {"name": "red", "path": str(unknown)}, "name"),
        ("load_lora", {"name": "x"}, "path"),
        ("unload_lora", {"name": "green"}, "name"),
    ):
        with pytest.raises(OmniError) as refused:
            asked(driven, what, **args)
        assert (refused.value.info.status, refused.value.info.param) == (400, param)
    assert [it["name"] for it in asked(driven, "loras")] == ["red", "blue"]


def test_adapters_beyond_the_stages_memory_are_refused(driven: Driven, folder: Path, files: dict[str, Path]) -> None:
    most = max(it["bytes"] for it in asked(driven, "loras"))
    small = Driven(CASE, folder, lora_bytes=most)
    asked(small, "load_lora", name="red", path=str(files["red"]))
    with pytest.raises(OmniError, match="lora_bytes"):
        asked(small, "load_lora", name="blue", path=str(files["blue"]))
    asked(small, "unload_lora", name="red")
    gc.collect()
    asked(small, "load_lora", name="blue", path=str(files["blue"]))
