"""The conformance kit: what is sound passes whole, and every planted fault is found by the check that is meant to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.platforms import planted
from tests.platforms.fake_vendors.platforms import FakeAscend

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.platforms.platform import Fault, OmniPlatform
from omni_actors.platforms.probe import BUILTINS
from omni_actors.platforms.runtime import Capability, DeviceTransport, Graphs, Memory, TransportError
from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.platforms.select import load
from omni_actors.platforms.testing import PlatformConformance, Result, check_platform, failures, kit
from omni_actors.platforms.testing.__main__ import main as program
from omni_actors.platforms.testing.checking import run
from omni_actors.platforms.testing.kernel_checks import KernelChecks
from omni_actors.platforms.testing.kit import _compared, serving_half
from omni_actors.platforms.testing.parent_half import ParentHalf, Watch
from omni_actors.platforms.testing.worker_half import WorkerHalf
from omni_actors.platforms.testing.workload import PROMPTS
from omni_actors.plugins.subprocess_probe import ProbeAnswer

pytestmark = pytest.mark.process


@pytest.mark.deadline(600)
class TestCpu(PlatformConformance):
    platform = CpuPlatform


@pytest.mark.slow
@pytest.mark.deadline(600)
def test_both_halves_of_a_vendors_platform_conform_on_a_fake_device() -> None:
    """The one with the most of its own. What the fake says of its memory is always the same, and that is found."""
    results = check_platform(FakeAscend)
    assert [result.name for result in results if result.state == "failed"] == ["memory"]
    passed = {result.name for result in results if result.state == "passed"}
    assert {"opens", "faults", "engines", "kernels_paged_decode", "kernels_prompt_attention", "tokens"} <= passed


@pytest.mark.deadline(90)
@pytest.mark.parametrize("name", BUILTINS)
def test_the_serving_halves_of_the_builtin_platforms_conform(name: str) -> None:
    results, _ = serving_half(type(load(BUILTINS[name])))
    assert failures(results) == []
    assert {"contract", "environment", "nothing_imported", "nothing_opened"} <= {result.name for result in results}


def examined(kind: type[OmniPlatform]) -> dict[str, list[str]]:
    """The serving half, in this process: what it imports is not noticed."""
    return run(ParentHalf(kind, Watch(frozenset())).checks())


def test_a_platform_without_a_fault_passes_every_check_of_the_serving_half() -> None:
    assert {name: why for name, (state, why) in examined(planted.Sound).items() if state != "passed"} == {}


NOTICED: tuple[type[OmniPlatform], ...] = (planted.Importing, planted.ImportingByName, planted.Opening, planted.Loading)
"""What only a process that watches itself notices."""


@pytest.mark.parametrize("kind", [it for it in planted.SERVING if it not in NOTICED])
def test_a_planted_fault_of_the_serving_half_is_found(kind: type[OmniPlatform]) -> None:
    state, why = examined(kind)[planted.SERVING[kind]]
    assert state == "failed"
    assert why


@pytest.mark.deadline(90)
@pytest.mark.parametrize("kind", NOTICED)
def test_what_is_a_workers_to_do_is_noticed(kind: type[OmniPlatform]) -> None:
    results, _ = serving_half(kind)
    (found,) = failures(results)
    assert found.startswith(f"{planted.SERVING[kind]}: failed")
    words: dict[type[OmniPlatform], str] = {
        planted.Importing: "torch",
        planted.ImportingByName: "torch",
        planted.Opening: "/dev/sound0",
        planted.Loading: "libsound.so.1",
    }
    assert words[kind] in found


@pytest.mark.deadline(90)
def test_who_only_looks_whether_there_is_a_torch_imports_none() -> None:
    results, facts = serving_half(planted.Looking)
    assert (failures(results), facts["usable"]) == ([], True)


@pytest.mark.deadline(90)
def test_a_platform_that_dies_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "_reference", lambda dtype: {})  # it has nothing to be compared with
    (found,) = failures(check_platform(planted.Lost))
    assert found.startswith("second_half: failed (it ended its process with status 9")
    assert "in opens" in found


class Faulty(CpuRuntime):
    """A runtime with what a test has changed of it."""

    def __init__(self, **changes: Any) -> None:
        super().__init__("cpu", {})
        self.changes = changes

    def __getattribute__(self, name: str) -> Any:
        changes = object.__getattribute__(self, "__dict__").get("changes", {})
        return changes[name] if name in changes else super().__getattribute__(name)


class Recorded(Graphs):
    """Graphs that are none: what was recorded runs again, on whatever ``stale`` makes of it."""

    sizes = (1, 4)

    def __init__(self, stale: bool) -> None:
        self.stale = stale

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        first = run()
        return (lambda: first) if self.stale else run


class Mailbox(DeviceTransport):
    """By files, which any process can read."""

    kind = "file"

    def __init__(self, folder: Path, spoil: bool = False, trusting: bool = False) -> None:
        self.folder, self.spoil, self.trusting = folder, spoil, trusting

    def export(self, tensor: torch.Tensor) -> bytes:
        torch.save(tensor + 1 if self.spoil else tensor, self.folder / "tensor.pt")
        return str(self.folder / "tensor.pt").encode()

    def open(self, handle: bytes) -> torch.Tensor:
        try:
            found: torch.Tensor = torch.load(handle.decode())
        except OSError as error:
            if self.trusting:
                return torch.zeros(1)
            raise TransportError(str(error)) from error
        return found


def half(runtime: CpuRuntime, **argument: Any) -> WorkerHalf:
    told = {
        "platform": "omni_actors.platforms.cpu:CpuPlatform",
        "device": "cpu",
        "options": {},
        "dtypes": ["float32", "bfloat16"],
        "transports": ["file"],
    }
    made = WorkerHalf({**told, **argument})
    made.runtime = runtime
    return made


def deny(*_: object) -> None:
    raise RuntimeError("device lost")


def wrong_memory() -> Memory:
    return Memory(total=1 << 20, free=1 << 30)


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("torch_device", {"torch_device": "cpu"}),
        ("capability", {"capability": lambda: "avx512"}),
        ("capability", {"capability": lambda: Capability("")}),
        ("memory", {"memory": wrong_memory}),
        ("memory", {"memory": lambda: Memory(None, None, used=5, peak=5)}),
        ("memory", {"memory": lambda: (1, 2)}),
        ("synchronize", {"synchronize": deny}),
        ("faults", {"fault": lambda error: Fault.OTHER}),
        ("faults", {"fault": lambda error: Fault.MEMORY}),
        ("faults", {"fault": lambda error: Fault.DEVICE}),
        ("free_memory", {"free_memory": deny}),
        ("graphs", {"graphs": lambda: Recorded(stale=True)}),
        ("graphs", {"graphs": lambda: "yes"}),
        ("profiler", {"profiler": deny}),
    ],
)
def test_a_planted_fault_of_the_worker_half_is_found(check: str, changes: dict[str, Any]) -> None:
    checks = half(Faulty(**changes)).checks()
    assert run({check: checks[check]})[check][0] == "failed"
    assert run({check: half(CpuRuntime("cpu", {})).checks()[check]})[check][0] in ("passed", "skipped")


def test_graphs_that_replay_pass() -> None:
    assert run({"graphs": half(Faulty(graphs=lambda: Recorded(stale=False))).graphs}) == {"graphs": ["passed", ""]}


def test_engines_that_are_none_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, words in (("collections:OrderedDict", "is no Engine"), ("omni_actors.worker.engine:Engine", "has no ")):
        monkeypatch.setattr(CpuPlatform, "engines", {"autoregressive": engine})
        state, why = run({"engines": half(CpuRuntime("cpu", {})).engines})["engines"]
        assert (state, words in why) == ("failed", True)


def test_transports_that_lie_are_found(tmp_path: Path) -> None:
    def checked(box: Mailbox, **argument: Any) -> dict[str, list[str]]:
        made = half(Faulty(transport=lambda: box), **argument)
        return run({"transport": made.transport})

    assert checked(Mailbox(tmp_path))["transport"][0] == "passed"
    assert "which its transports" in checked(Mailbox(tmp_path), transports=[])["transport"][1]
    assert "nobody's" in checked(Mailbox(tmp_path, trusting=True))["transport"][1]


class HandingPlatform(CpuPlatform):
    contract = 1
    runtime = "tests.platforms.test_conformance:HandingRuntime"
    transports = ("file",)


class HandingRuntime(CpuRuntime):
    def transport(self) -> Mailbox:
        return Mailbox(Path(str(self.options["folder"])), bool(self.options["spoil"]))


@pytest.mark.deadline(120)
@pytest.mark.parametrize("spoil", [False, True])
def test_what_is_handed_over_is_read_by_another_process(tmp_path: Path, spoil: bool) -> None:
    options = {"folder": str(tmp_path), "spoil": spoil}
    made = half(HandingRuntime("cpu", options), platform=f"{__name__}:HandingPlatform", options=options)
    state, why = run({"hand_over": made.hand_over})["hand_over"]
    assert (state, why) == (("failed", "another process reads something else") if spoil else ("passed", ""))


def shifted(chosen: Kernels, name: str) -> Kernels:
    """The same kernels but for one, whose result is off by a hundredth (or, where that is no number, of another)."""
    right = getattr(chosen, name)

    def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> plain.Linear:
        made = right(weight, bias)
        return lambda x: made(x) * 1.05

    def decode(*given: Any) -> torch.Tensor:
        query, keys, values, table, lengths, *others = given
        return plain.paged_decode(query, keys, values, table, (lengths - 1).clamp(min=1), *others)

    wrong: dict[str, Any] = {
        "linear": linear,
        "experts": lambda rows, counts, gate_up, down: right(rows, counts.flip(0), gate_up, down),
        "zeros": lambda shape, dtype, device: torch.full(shape, 1.0, dtype=dtype, device=device),
        "greatest": lambda values, count: values.topk(count + 1).values[:, 1:],
        "sine_": lambda x: x.cos_(),
        "draw_rows": -1,
        "paged_decode": lambda layout: decode,
        "prompt_attention": lambda layout: lambda query, keys, values, scale, window: query,
    }
    return replace(chosen, **{name: wrong[name]})


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("linear", "kernels_linear"),
        ("experts", "kernels_experts"),
        ("zeros", "kernels_zeros"),
        ("greatest", "kernels_greatest"),
        ("sine_", "kernels_sine"),
        ("draw_rows", "kernels_limits"),
        ("paged_decode", "kernels_paged_decode"),
        ("prompt_attention", "kernels_prompt_attention"),
    ],
)
def test_a_kernel_that_computes_something_else_is_found(name: str, check: str) -> None:
    wrong = Faulty(kernels=shifted(CpuRuntime("cpu", {}).kernels, name))
    found = run(KernelChecks(wrong, ["float32", "bfloat16"]).checks())
    assert [it for it, (state, _) in found.items() if state == "failed"] == [check]


def test_torchs_own_kernels_and_attention_pass() -> None:
    chosen = Kernels(paged_decode=lambda layout: plain.paged_decode, prompt_attention=lambda layout: attention)
    found = run(KernelChecks(Faulty(kernels=chosen), ["float32", "bfloat16", "float16"]).checks())
    assert {name: why for name, (state, why) in found.items() if state != "passed"} == {}


def attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """By torch's own, with a mask."""
    tokens, length = query.shape[0], keys.shape[1]
    place = torch.arange(length)
    own = place[length - tokens :, None]
    seen = place <= own
    if window is not None:
        seen &= place > own - window
    return torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], attn_mask=seen, scale=scale, enable_gqa=True
    )[0].transpose(0, 1)


def said(*tokens: tuple[int, float], second: float = 1.0) -> ProbeAnswer:
    """The same for each prompt: tokens with their log-probability, the next best behind it by ``second``."""
    answer = [{"token": it, "top": [[it, best], [999, best - second]]} for it, best in tokens]
    return ProbeAnswer([answer for _ in PROMPTS])


@pytest.mark.parametrize(
    ("found", "second", "state", "words"),
    [
        (said((1, -0.5), (2, -0.7)), 1.0, "passed", "8 of"),
        (said((1, -0.5), (3, -0.7)), 1.0, "failed", "prompt 0, token 1 in float32: 3, not 2"),
        (said((1, -0.5), (3, -0.7)), 1e-5, "passed", "4 of"),
        (said((1, -0.5), (2, -0.8)), 1.0, "failed", "log-probability is off by 0.1"),
        (said((1, -0.5), (2, math.nan)), 1.0, "failed", "log-probability is off by nan"),
        (said((1, -0.5)), 1.0, "failed", "1 tokens, not 2"),
        (ProbeAnswer(trouble="it died of SIGSEGV"), 1.0, "failed", "the device: it died of SIGSEGV"),
    ],
)
def test_tokens_are_held_to_the_reference(found: ProbeAnswer, second: float, state: str, words: str) -> None:
    result = _compared(said((1, -0.5), (2, -0.7), second=second), found, "float32")
    assert (result.state, words in result.why) == (state, True), result


def test_a_result_is_a_line() -> None:
    assert str(Result("memory", "failed", "none")) == "memory: failed (none)"
    assert str(Result("memory", "passed")) == "memory: passed"


def test_the_kit_as_a_program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "_reference", lambda dtype: {})
    assert program([f"{planted.__name__}:{planted.Deviceless.__name__}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "contract: passed" in lines
    assert any(line.startswith("devices: failed (devices() is no tuple, or empty") for line in lines)


@pytest.mark.parametrize("name", ["omni_actors.platforms:NoSuchPlatform", "no_such_package:Platform", "nonesuch"])
def test_a_platform_that_there_is_not_is_a_wrong_argument(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        program([name])
    assert ended.value.code == 2
    assert f"platform {name}: " in capsys.readouterr().err
