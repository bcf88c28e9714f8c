"""A network over two ranks says what it says on one: over real processes, which gloo joins.

The reference is transformers', on the whole model in this process; the rule for ties is that of ``test_ar_parity``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import torch
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import assert_idle, engine_of, hello, load_adapter, run, work
from tests.worker.engines.test_ar_parity import NEW_TOKENS, Reference, compare

from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.models.causal_lm.fused import FusedDecoder
from omni_actors.models.common.split import Split, load_split
from omni_actors.protocol.frames import Hello, RankPlace
from omni_actors.worker.collectives import Group
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.ranks import Followers

pytestmark = [pytest.mark.slow, pytest.mark.deadline(180)]

ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def two_ranks(model: str, **options: Any) -> Hello:
    ranks = tuple(RankPlace("cpu", ENVIRONMENT) for _ in range(2))
    return msgspec.structs.replace(hello(model, **options), ranks=ranks, collectives="gloo")


@dataclass
class Pair:
    """A leader in this process and its follower, loaded once; engines around them have caches of their own."""

    model: str
    engine: AutoregressiveEngine
    followers: Followers

    @property
    def adapter(self) -> CausalLM:
        adapter = self.engine._adapter
        assert isinstance(adapter, CausalLM)
        return adapter

    def attach(self, **options: Any) -> AutoregressiveEngine:
        engine = AutoregressiveEngine(hello("", **options))
        engine.followers = self.followers
        engine.attach(self.adapter)
        return engine


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A vocabulary that two do not divide, and one key head that both share."""
    model = tiny_models.save(
        tmp_path_factory.mktemp("qwen3"), "qwen3", vocab_size=261, num_key_value_heads=1, tie_word_embeddings=True
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr("omni_actors.worker.ranks.GRACE_S", 60.0)  # this process is no worker that may end itself
        threads = torch.get_num_threads()
        said = two_ranks(model)
        followers = Followers(said)
        engine = AutoregressiveEngine(said)
        engine.followers = followers
        try:
            followers.greet()
            engine.load(lambda text, fraction: None)
            yield Pair(model, engine, followers)
        finally:
            engine.close()
            followers.close()
            torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def reference(pair: Pair) -> Reference:
    model = tiny_models.build("qwen3", vocab_size=261, num_key_value_heads=1, tie_word_embeddings=True)
    model.generation_config.eos_token_id = None
    generator = torch.Generator().manual_seed(3)
    stream = torch.randint(0, 250, (90,), generator=generator).tolist()
    made = Reference([stream[i % 3 : i % 3 + 4 + 6 * i] for i in range(12)], [], [])
    for prompt in made.prompts:
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        made.tokens.append(out.sequences[0, len(prompt) :].tolist())
        made.logits.append(torch.cat(out.logits).float())
    assert sum(len(set(tokens)) for tokens in made.tokens) > 6 * len(made.tokens), "it says one thing for ever"
    return made


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["no reuse", "reuse"])
@pytest.mark.parametrize("concurrency", [1, 12])
def test_tokens_equal_the_reference(pair: Pair, reference: Reference, concurrency: int, prefix_cache: bool) -> None:
    engine = pair.attach(prefix_cache=prefix_cache, step_tokens=48)
    compare(reference, engine, concurrency)
    assert bool(engine.counters()["prefix_hit_tokens_total"]) == prefix_cache


def test_tokens_equal_the_reference_under_preemption(pair: Pair, reference: Reference) -> None:
    engine = pair.attach(kv_blocks=24, block_size=8, step_tokens=32)
    compare(reference, engine, 12)
    assert engine.counters()["preemptions_total"] > 2


def test_choices_and_seeds_are_those_of_one_rank(pair: Pair) -> None:
    """Several choices of a prompt part in the middle of a block: it is copied, at every rank."""
    works = [work(i, [7 * i + j for j in range(5 + i)], n=3, temperature=1.0, seed=i, max_tokens=12) for i in range(4)]
    alone = run(engine_of(load_adapter(pair.model)), works)
    engine = pair.attach()
    split = run(engine, works)
    assert not split.errors
    for i in range(4):
        answers = [[found.answers[i][choice].token_ids for choice in range(3)] for found in (alone, split)]
        assert answers[0] == answers[1]
        assert len({tuple(tokens) for tokens in answers[0]}) == 3
    assert_idle(engine)


def test_no_rank_holds_the_whole(pair: Pair) -> None:
    decoder = pair.adapter.decoder
    assert isinstance(decoder, FusedDecoder)
    assert decoder._embeddings.shape == (131, 96)
    assert (decoder._layers.heads, decoder.kv_shape.kv_heads) == (3, 1)
    assert decoder._layers._layers[0].mlp._down(torch.zeros(1, 80)).shape == (1, 96)  # type: ignore[attr-defined]


def test_the_comparison_sees_a_skipped_sum(pair: Pair, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    group, summed, calls = pair.adapter.group, pair.adapter.group.sum, 0

    def skipped(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        own = x.clone()
        total = summed(x)  # the other rank waits for this one
        return own if calls % 7 == 3 else total

    monkeypatch.setattr(group, "sum", skipped)
    layers = pair.adapter.decoder._layers  # type: ignore[attr-defined]
    monkeypatch.setattr(layers, "_group", group)
    with pytest.raises(AssertionError):
        compare(reference, pair.attach(), 12)


def test_the_comparison_sees_swapped_parts(pair: Pair, reference: Reference) -> None:
    """The leader has the other rank's part of one projection."""
    other = Group()
    other.rank, other.size = 1, 2
    model = tiny_models.build("qwen3", vocab_size=261, num_key_value_heads=1, tie_word_embeddings=True)
    swapped = load_split(
        lambda: type(model)(model.config), pair.model, "", Split(model.config, other), torch.float32, "cpu"
    )
    wrong = FusedDecoder(swapped, 64, kernels_of(pair.engine.hello))._layers._layers
    layers = pair.adapter.decoder._layers._layers  # type: ignore[attr-defined]
    right = layers[1].out
    layers[1].out = wrong[1].out
    try:
        with pytest.raises(AssertionError):
            compare(reference, pair.attach(), 12)
    finally:
        layers[1].out = right
