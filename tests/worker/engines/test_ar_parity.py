"""The engine against transformers' ``generate`` on real weights, float32, greedy.

Equal means: the same tokens, except where the reference's two best logits are closer than 1e-4 (those are listed), and
the same logits at every step up to there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shared import Once
from tests.worker.engines.ar_driver import assert_idle, engine_of, load_adapter, run, work
from transformers import AutoModelForCausalLM, AutoTokenizer

from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.autoregressive.decoder import StepOutput
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(240)]

NEW_TOKENS = 16
TIE = 1e-4
LOGIT_ERROR = 1e-3
"""Logits are about 20; float32 sums in another order differ in the sixth digit."""

LENGTHS = (3, 9, 16, 33, 50, 81, 120, 190)
OPENINGS = (
    "The lighthouse keeper wrote in his logbook that the storm had taken the pier, two boats and most of the roof. ",
    "To bake bread you need flour, water, salt and yeast; mix them, wait an hour, fold the dough and wait again. ",
    "In 1869 a chemist arranged the known elements by weight and left gaps for those that nobody had found yet. ",
    "def mean(values):\n    total = 0\n    for v in values:\n        total += v\n    return total / len(values)\n\n",
    "Dear Ms Alvarez, thank you for your letter of 3 May. We are sorry that the parcel arrived broken and late. ",
    "Whales are mammals: they breathe air, feed their calves with milk and keep their blood warm in cold seas. ",
    "Question: A train leaves at 9:40 and arrives at 12:05. How long does the journey take? Answer: It takes ",
    "Roman roads were built in layers, with stones below, gravel above and ditches at both sides for the rain. ",
)


def prompts(tokenizer: Any) -> list[list[int]]:
    """64 prompts of 3 to 190 tokens; the shorter ones are beginnings of the longer ones."""
    streams = [tokenizer.encode("".join(OPENINGS[i:] + OPENINGS[:i]) * 2) for i in range(len(OPENINGS))]
    return [stream[:length] for length in LENGTHS for stream in streams]


@dataclass
class Reference:
    """What transformers says: per prompt, its tokens and the logits [NEW_TOKENS, vocabulary] each was taken from."""

    prompts: list[list[int]]
    tokens: list[list[int]]
    logits: list[torch.Tensor]

    def every(self, step: int) -> Reference:
        """Return the reference of one prompt out of ``step``."""
        return Reference(self.prompts[::step], self.tokens[::step], self.logits[::step])


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(demo_weights: Path) -> str:
    return str(demo_weights / "llm")


@pytest.fixture(scope="module")
def reference(folder: str, one_thread: None, shared_once: Once) -> Reference:
    """Computed once for all processes of a run, in batches of equal length, so that nothing is padded."""

    def compute(path: Path) -> None:
        torch.save(vars(_reference(folder)), path)

    return Reference(**torch.load(shared_once("autoregressive-reference.pt", compute), weights_only=True))


def _reference(folder: str) -> Reference:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    made = Reference(prompts(AutoTokenizer.from_pretrained(folder)), [], [])
    for start in range(0, len(made.prompts), len(OPENINGS)):
        batch = torch.tensor(made.prompts[start : start + len(OPENINGS)])
        out = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        made.tokens += out.sequences[:, batch.shape[1] :].tolist()
        made.logits += list(torch.stack(out.logits, 1).float())
    return made


@pytest.fixture(scope="module")
def adapter(folder: str, one_thread: None) -> CausalLM:
    return load_adapter(folder)


class Recorder:
    """Stands before an engine's runner and keeps the logits from which each token was chosen."""

    def __init__(self, engine: AutoregressiveEngine) -> None:
        self._runner = engine._isolated._runner
        self.cache = self._runner.cache
        self.logits: dict[tuple[int, int], torch.Tensor] = {}
        engine._isolated._runner = self  # type: ignore[assignment]

    def run(self, chunks: list[ScheduledChunk]) -> StepOutput:
        output: StepOutput = self._runner.run(chunks)
        logits, row = output.logits, 0
        for chunk in chunks:
            row += chunk.rows
            if chunk.sample:
                place = chunk.start + chunk.count - chunk.sequence.prompt_len
                self.logits[chunk.sequence.key, place] = logits[row - 1].clone()
        return output


def compare(reference: Reference, engine: AutoregressiveEngine, concurrency: int, count: int | None = None) -> None:
    """Run the reference's prompts through the engine; raises AssertionError where it says something else."""
    recorder = Recorder(engine)
    works = [
        work(i, prompt, max_tokens=NEW_TOKENS, ignore_eos=True)
        for i, prompt in enumerate(reference.prompts[slice(count)])
    ]
    out = run(engine, works, concurrency)
    ties: list[str] = []
    worst = 0.0
    for i in range(len(works)):
        got, want = out.answers[i][0].token_ids, reference.tokens[i]
        assert len(got) == NEW_TOKENS
        for place in range(NEW_TOKENS):
            logits = reference.logits[i][place]
            worst = max(worst, float((recorder.logits[i, place] - logits).abs().max()))
            if got[place] != want[place]:
                best = logits.topk(2).values
                gap = float(best[0] - best[1])
                assert gap < TIE, f"prompt {i}, token {place}: {got[place]}, not {want[place]} (gap {gap:.2e})"
                ties.append(f"prompt {i}, token {place}: gap {gap:.2e}")
                break
    print(f"concurrency {concurrency}: worst logit error {worst:.1e}; ties {ties or 'none'}")
    assert worst < LOGIT_ERROR
    assert_idle(engine)


def test_the_reference_says_something(reference: Reference) -> None:
    """Agreement is worth nothing where every answer is the same, or one token for ever."""
    assert len({tuple(tokens) for tokens in reference.tokens}) > 56
    assert sum(len(set(tokens)) for tokens in reference.tokens) / len(reference.tokens) > 10


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["no reuse", "reuse"])
@pytest.mark.parametrize("concurrency", [1, 8, 32])
def test_tokens_equal_the_reference(
    reference: Reference, adapter: CausalLM, concurrency: int, prefix_cache: bool
) -> None:
    engine = engine_of(adapter, prefix_cache=prefix_cache, step_tokens=128)
    # One at a time, nothing is shared but the cache: half of the prompts, of every length, are as good as all.
    compare(reference.every(2) if concurrency == 1 else reference, engine, concurrency)
    hits = engine.counters()["prefix_hit_tokens_total"]
    assert hits > 1000 if prefix_cache else hits == 0


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["no reuse", "reuse"])
def test_tokens_equal_the_reference_under_preemption(
    reference: Reference, adapter: CausalLM, prefix_cache: bool
) -> None:
    engine = engine_of(adapter, prefix_cache=prefix_cache, kv_blocks=40, block_size=8, step_tokens=64)
    compare(reference, engine, 32)
    assert engine.counters()["preemptions_total"] > 5


def test_transformers_own_layers_equal_the_reference(reference: Reference, folder: str) -> None:
    compare(reference, engine_of(load_adapter(folder, fused=False)), 32)


def test_bfloat16_is_as_close_to_float32_as_transformers_is(reference: Reference, folder: str) -> None:
    """Logits after the prompt, both in bfloat16, against float32; how many answers differ by a token is printed."""
    engine = engine_of(load_adapter(folder, "bfloat16"))
    recorder = Recorder(engine)
    works = [work(i, p, max_tokens=NEW_TOKENS, ignore_eos=True) for i, p in enumerate(reference.prompts)]
    out = run(engine, works, 16)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ours = theirs = 0.0
    with torch.inference_mode():
        for i, prompt in enumerate(reference.prompts):
            want = reference.logits[i][0]
            ours += float((recorder.logits[i, 0] - want).square().mean())
            theirs += float((model(torch.tensor([prompt]), logits_to_keep=1).logits[0, 0] - want).square().mean())
    flips = sum(out.answers[i][0].token_ids != tokens for i, tokens in enumerate(reference.tokens))
    print(f"bfloat16: mean square error {ours / 64:.2e}, transformers' {theirs / 64:.2e}; {flips} of 64 answers differ")
    assert ours < 1.3 * theirs


def test_the_comparison_sees_a_shifted_position(reference: Reference, adapter: CausalLM) -> None:
    engine = engine_of(adapter)
    decoder = engine._runner.decoder

    class Shifted:
        def __getattr__(self, name: str) -> Any:
            return getattr(decoder, name)

        def forward(self, inputs: Any, attention: Any) -> Any:
            inputs.positions[inputs.positions > 20] += 1
            return decoder.forward(inputs, attention)

    engine._runner.decoder = Shifted()
    with pytest.raises(AssertionError):
        compare(reference, engine, 32, count=40)


def test_the_comparison_sees_a_wrong_layer(reference: Reference, folder: str) -> None:
    adapter = load_adapter(folder)
    layers = adapter.decoder._layers._layers  # type: ignore[attr-defined]
    layers[10], layers[11] = layers[11], layers[10]
    with pytest.raises(AssertionError):
        compare(reference, engine_of(adapter), 32, count=8)


def test_the_comparison_sees_a_block_of_another_sequence(reference: Reference, adapter: CausalLM) -> None:
    engine = engine_of(adapter, prefix_cache=False)
    schedule = engine._scheduler.schedule
    swapped = False

    def swap(ready: Any) -> list[ScheduledChunk]:
        nonlocal swapped
        chunks = schedule(ready)
        decodes = [c.sequence for c in chunks if c.count == 1]
        if not swapped and len(decodes) > 1:
            one, other = decodes[0].blocks, decodes[-1].blocks
            one[0], other[0] = other[0], one[0]
            swapped = True
        return chunks

    engine._scheduler.schedule = swap  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        compare(reference, engine, 32, count=40)
    assert swapped
