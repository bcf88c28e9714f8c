"""Decode steps that are replayed say what steps say that run as they are written.

The recordings are those of :mod:`tests.worker.engines.recording`: made on the processor, bound to memory as CUDA's are.
"""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import Collector, assert_idle, hello, run, work
from tests.worker.engines.recording import PagedPlatform, RecordingPlatform, RecordingRuntime, TapeGraphs

from omni_actors.models.causal_lm.fused import FusedDecoder
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.platforms.platform import Fault
from omni_actors.platforms.runtime import T
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine, graphs
from omni_actors.worker.engines.autoregressive.cache import BlockPool
from omni_actors.worker.engines.autoregressive.decoder import Attention, StepOutput
from omni_actors.worker.engines.autoregressive.runner import ModelRunner
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk, Sequence

BLOCK = 4


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recorded")
    tiny_models.build("qwen3", eos_token_id=None).save_pretrained(path)
    tiny_models.tokenizer().save_pretrained(path)
    return str(path)


def engine_on(platform: type[CpuPlatform], folder: str, **options: Any) -> AutoregressiveEngine:
    told = hello(folder, **({"block_size": BLOCK, "max_model_len": 128} | options))
    engine = AutoregressiveEngine(
        msgspec.structs.replace(told, platform=f"{platform.__module__}:{platform.__qualname__}")
    )
    engine.load(lambda text, fraction: None)
    return engine


def prompts(count: int) -> list[list[int]]:
    drawn = random.Random(7)
    return [[drawn.randrange(256) for _ in range(drawn.choice((1, 2, 3, 5, 9, 17, 30)))] for _ in range(count)]


def answers(engine: AutoregressiveEngine, concurrency: int, **sampling: Any) -> dict[int, list[int]]:
    works = [work(key, it, max_tokens=9 + 5 * (key % 4), **sampling) for key, it in enumerate(prompts(9))]
    out: Collector = run(engine, works, concurrency)
    assert not out.errors
    assert_idle(engine)
    return {key: choices[0].token_ids for key, choices in out.answers.items()}


@pytest.mark.parametrize("platform", [RecordingPlatform, PagedPlatform])
@pytest.mark.parametrize("concurrency", [1, 3, 7])
def test_replayed_steps_choose_the_same_tokens(folder: str, platform: type[CpuPlatform], concurrency: int) -> None:
    """With padding rows (three sequences in four rows), growing tables of blocks, and sequences that come and go."""
    plain = answers(engine_on(CpuPlatform, folder), concurrency)
    engine = engine_on(platform, folder)
    assert answers(engine, concurrency) == plain
    counters = engine.counters()
    assert counters["recorded_steps_total"] > counters["steps_total"] / 2


def test_replayed_steps_choose_the_same_tokens_when_sequences_are_preempted(folder: str) -> None:
    options = {"kv_blocks": 24, "max_batch": 6}
    plain = answers(engine_on(CpuPlatform, folder, **options), 6, temperature=1.0, seed=3)
    engine = engine_on(RecordingPlatform, folder, **options)
    assert answers(engine, 6, temperature=1.0, seed=3) == plain
    assert engine.counters()["preemptions_total"] > 0
    assert engine.counters()["recorded_steps_total"] > 0


def test_sequences_longer_than_what_is_recorded_run_as_they_are_written(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "GATHERED_TOKENS", (12, 24))
    plain = answers(engine_on(CpuPlatform, folder), 5)
    engine = engine_on(RecordingPlatform, folder)
    assert answers(engine, 5) == plain
    counters = engine.counters()
    assert 0 < counters["recorded_steps_total"] < counters["steps_total"] - 9


@torch.inference_mode()
def test_what_a_replay_gave_stays_when_the_next_one_is_run() -> None:
    decoder = FusedDecoder(tiny_models.build("qwen3"), 64, KERNELS)
    runner, pool = ModelRunner(decoder, 16, BLOCK, KERNELS), BlockPool(16, BLOCK)
    assert runner.capture(TapeGraphs(2), 2, 64) == 1
    sequences = [Sequence(key, 0, key, [65 + key, 66, 67, 68], 4, blocks=pool.allocate(2)) for key in range(2)]
    runner.run([ScheduledChunk(it, 0, 3, False) for it in sequences])
    first = runner.run([ScheduledChunk(it, 3, 1, True) for it in sequences]).logits
    kept = first.clone()
    first[0] = 0  # the sampler writes to it
    again = runner.run([ScheduledChunk(it, 3, 1, True) for it in reversed(sequences)]).logits
    assert runner.captured is not None
    assert runner.captured.steps == 2
    assert torch.equal(again, kept.flip(0))
    assert torch.equal(first[1], kept[1])


def test_padding_rows_leave_every_block_of_the_pool_alone() -> None:
    decoder = FusedDecoder(tiny_models.build("qwen3"), 64, KERNELS)
    runner, pool = ModelRunner(decoder, 8, BLOCK, KERNELS), BlockPool(8, BLOCK)
    runner.capture(TapeGraphs(8), 8, 64)
    sequence = Sequence(0, 0, 0, [65], 1, blocks=pool.allocate(1))
    runner.run([ScheduledChunk(sequence, 0, 1, True)])
    assert runner.captured is not None
    assert runner.captured.steps == 1
    for layer in runner.cache.layers:
        written = layer.flatten(1).any(1).nonzero().flatten().tolist()
        assert set(written) == {sequence.blocks[0], runner.cache.scratch}


def test_a_decoder_in_one_piece_runs_as_it_is_written_and_says_so_once(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = answers(engine_on(CpuPlatform, folder, fused=False), 3)
    with caplog.at_level(logging.WARNING):
        engine = engine_on(RecordingPlatform, folder, fused=False)
        assert answers(engine, 3) == plain
    said = [it.getMessage() for it in caplog.records if "not recorded" in it.getMessage()]
    assert len(said) == 1
    assert "GenericDecoder" in said[0]
    assert "recorded_steps_total" not in engine.counters()


class Waiting(FusedDecoder):
    """Looks at a number that it has computed."""

    def compute(
        self, prepared: tuple[torch.Tensor, ...], rows: torch.Tensor | None, attention: Attention
    ) -> StepOutput:
        output = super().compute(prepared, rows, attention)
        return StepOutput(output.logits * (2.0 if output.logits.sum().item() == 1.5 else 1.0))


def test_a_decoder_that_waits_for_the_device_runs_as_it_is_written() -> None:
    model = tiny_models.build("qwen3")
    runner, pool = ModelRunner(Waiting(copy.deepcopy(model), 64, KERNELS), 16, BLOCK, KERNELS), BlockPool(16, BLOCK)
    with pytest.raises(RuntimeError, match="not permitted while recording"):
        runner.capture(TapeGraphs(2), 2, 64)
    sequence = Sequence(0, 0, 0, [65], 1, blocks=pool.allocate(1))
    logits = runner.run([ScheduledChunk(sequence, 0, 1, True)]).logits
    other = ModelRunner(FusedDecoder(model, 64, KERNELS), 16, BLOCK, KERNELS)
    assert torch.equal(logits, other.run([ScheduledChunk(sequence, 0, 1, True)]).logits)


class Breaking(TapeGraphs):
    """A device that is lost while it records, or whose memory is short."""

    def __init__(self, error: Exception) -> None:
        super().__init__(1)
        self.error = error

    def capture(self, run: Callable[[], T]) -> Callable[[], T]:
        raise self.error


@pytest.mark.parametrize("lost", [False, True])
def test_a_device_that_is_lost_while_it_records_ends_the_worker(
    folder: str, lost: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = Breaking(torch.OutOfMemoryError("CUDA out of memory"))
    fault = Fault.DEVICE if lost else Fault.MEMORY
    monkeypatch.setattr(RecordingRuntime, "graphs", lambda self: graphs)
    monkeypatch.setattr(RecordingRuntime, "fault", lambda self, error: fault)
    if lost:
        with pytest.raises(torch.OutOfMemoryError):
            engine_on(RecordingPlatform, folder)
        return
    engine = engine_on(RecordingPlatform, folder)
    assert "decode steps are not recorded (CausalLM): CUDA out of memory" in caplog.text
    assert answers(engine, 3)


def test_a_number_that_a_step_bakes_in_stays_what_it_was() -> None:
    """The recordings here are as strict as a device's: what is not in a tensor of the step is not seen again."""
    given, factor = torch.ones(1), [2.0]
    replay = TapeGraphs(1).capture(lambda: given * factor[0])
    factor[0], given[0] = 3.0, 5.0
    assert replay().item() == 10.0
