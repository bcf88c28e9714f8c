"""The balancer ``prefix_cache``: who gets a prompt, by what was sent where, and what is not believed any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.orchestrator.spine import collect, idle, until
from tests.worker.engines import tiny_models

from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.extensions import BALANCERS
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import Completed, MediaRef, Request, TextDelta
from omni_actors.stages.balancers import PrefixCache
from omni_actors.stages.control import Control
from omni_actors.stages.pool import StagePool
from omni_actors.stages.prefix import CHUNK_CHARACTERS, CHUNK_TOKENS, IMBALANCE, MAX_CHUNKS, PrefixIndex, prefix_of
from omni_actors.stages.replica import StageReplica


@dataclass(eq=False)
class Replica:
    """What a pool looks at of a replica."""

    index: int
    room: int = 1000
    """In chunks."""
    incarnation: int = 1
    accepts_requests: bool = True
    drained: bool = False
    live: bool = True
    name: str = "llm#0@1"
    stage: Any = field(default_factory=lambda: SimpleNamespace(name="llm"))
    requests: dict[int, None] = field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)

    @property
    def info(self) -> dict[str, Any]:
        return {"kv_blocks": self.room * CHUNK_TOKENS // 16, "block_size": 16, "commands": ["sleep", "wake"]}

    @property
    def load(self) -> int:
        return len(self.requests)

    def busy(self, count: int) -> None:
        self.requests = dict.fromkeys(range(count))

    def drain(self, drained: bool) -> None:
        self.drained = drained

    async def query(self, what: str, args: dict[str, Any]) -> None: ...


def pool_of(*replicas: Replica) -> StagePool:
    stage = SimpleNamespace(name="llm", balancer="prefix_cache", balancer_class=BALANCERS.builtins["prefix_cache"])
    return StagePool(cast(Any, stage), cast(tuple[StageReplica, ...], replicas))


def bound(pool: StagePool, request: Request) -> Replica:
    return cast(Replica, pool.bind(request))


def text(number: int, chunks: float = 10) -> str:
    """Of so many chunks, and like no other number's."""
    return (f"{number:07d}." * round(chunks * CHUNK_CHARACTERS / 8 + 1))[: round(chunks * CHUNK_CHARACTERS)]


def completion(prompt: str, **more: Any) -> Request:
    return Request(task="completion", params={"prompt": Prompt(text=prompt), "sampling": Sampling()}, **more)


def chat(*contents: Any, lora: str | None = None, media: tuple[MediaRef, ...] = (), **given: Any) -> Request:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    params = {"prompt": Prompt(messages=messages, chat_template_kwargs=given), "sampling": Sampling(lora=lora)}
    return Request(task="chat", params=params, media=media)


def test_prompts_that_begin_alike_stay_together() -> None:
    pool = pool_of(*(Replica(index) for index in range(3)))
    homes = [bound(pool, completion(text(number))) for number in range(12)]
    assert len(set(homes)) == 3
    for turn in range(5):
        for number, home in enumerate(homes):
            assert bound(pool, completion(text(number) + text(100 + turn, 3))) is home


def test_a_conversation_stays_where_it_was() -> None:
    pool = pool_of(Replica(0), Replica(1))
    homes = [bound(pool, chat(text(number))) for number in range(6)]
    for number, home in enumerate(homes):
        assert bound(pool, chat(text(number), text(50 + number, 2), text(90))) is home


def test_the_same_beginning_in_another_prompt_counts_by_its_share() -> None:
    first, second = Replica(0), Replica(1)
    pool = pool_of(first, second)
    home = bound(pool, completion(text(1, 4)))
    home.busy(2)
    assert bound(pool, completion(text(1, 4) + text(2, 4))) is home  # half of 8 requests
    home.busy(2)
    assert bound(pool, completion(text(1, 4) + text(3, 28))) is not home  # an eighth


def test_the_imbalance_is_bounded() -> None:
    replicas = Replica(0), Replica(1)
    pool = pool_of(*replicas)
    home = bound(pool, completion(text(1)))
    (other,) = {*replicas} - {home}
    other.busy(3)
    home.busy(3 + IMBALANCE - 1)
    assert bound(pool, completion(text(1))) is home
    home.busy(3 + IMBALANCE + 1)
    assert bound(pool, completion(text(1))) is other


def test_without_a_common_beginning_it_is_least_queue() -> None:
    first, second = Replica(0), Replica(1)
    pool = pool_of(first, second)
    first.busy(1)
    for number, length in ((1, 10.0), (2, 0.5), (3, 0.0)):
        assert bound(pool, completion(text(number, length))) is second
    assert bound(pool, Request(task="speech", params={})) is second


def test_a_replica_that_takes_nothing_is_not_chosen() -> None:
    replicas = Replica(0), Replica(1)
    pool = pool_of(*replicas)
    home = bound(pool, completion(text(1)))
    home.accepts_requests = False
    assert bound(pool, completion(text(1))) is not home


def test_another_life_has_nothing() -> None:
    replicas = Replica(0), Replica(1)
    pool = pool_of(*replicas)
    home = bound(pool, completion(text(1)))
    home.incarnation += 1
    home.busy(1)
    assert bound(pool, completion(text(1))) is not home


async def test_sleep_forgets_where_the_cache_is_given_back() -> None:
    replicas = Replica(0), Replica(1)
    pool = pool_of(*replicas)
    home = bound(pool, completion(text(1)))
    home.busy(1)
    control = Control({"llm": pool}, cast(Any, None), lambda replica: None)
    for level, remembers in ((0, True), (1, False)):
        with pytest.raises(AttributeError):  # of the status, which a stand-in has none of
            await control.sleep("llm", home.index, level)
        assert home.drained
        control._sleeping.clear()
        assert (bound(pool, completion(text(1))) is home) is remembers


def test_what_was_used_longest_ago_is_forgotten_when_the_cache_is_full() -> None:
    index, replica = PrefixIndex(), cast(StageReplica, Replica(0, room=20))
    for number in (1, 2, 1, 3):  # the second is the oldest when the third needs room
        index.choose([replica], completion(text(number)))
    assert index.held(replica) == 20
    cache = index._cache(replica)
    assert [cache.match(prefix_of(completion(text(number))).names) for number in (1, 2, 3)] == [10, 0, 10]
    index.choose([replica], completion(text(4, 5)))  # of a prompt the end goes first
    assert cache.match(prefix_of(completion(text(1))).names) == 5


def test_token_ids_are_a_prompt_too() -> None:
    ids = list(range(100))
    first = prefix_of(Request(task="completion", params={"prompt": Prompt(token_ids=ids)}))
    longer = prefix_of(Request(task="completion", params={"prompt": Prompt(token_ids=[*ids, 1, 2])}))
    other = prefix_of(Request(task="completion", params={"prompt": Prompt(token_ids=[1, *ids])}))
    assert (len(first.names), first.chunks) == (3, 4)
    assert longer.names == first.names
    assert not {*first.names} & {*other.names}


@pytest.mark.parametrize("other", [chat(text(1), lora="l"), chat(text(1), tools=["t"]), completion(text(1))])
def test_equal_texts_under_another_adapter_or_template_share_nothing(other: Request) -> None:
    assert prefix_of(chat(text(1))).names
    assert not {*prefix_of(chat(text(1))).names} & {*prefix_of(other).names}


def test_behind_a_medium_nothing_is_known() -> None:
    def shows(number: int, after: int) -> Request:
        parts = [
            {"type": "text", "text": text(1)},
            {"type": "image", "index": 0},
            {"type": "text", "text": text(after)},
        ]
        return chat(parts, text(after), media=(MediaRef(number, "image"),))

    first, second = prefix_of(shows(1, 2)), prefix_of(shows(2, 3))
    assert first == second
    assert len(first.names) >= 10
    assert first.chunks > len(first.names) + 1


def test_a_prompt_without_end_is_looked_at_only_so_far() -> None:
    for endless in (completion("x" * 10**6), chat("x" * 10**6, "y")):
        assert len(prefix_of(endless).names) == MAX_CHUNKS


@settings(deadline=None)
@given(
    st.integers(2, 5),
    st.lists(
        st.tuples(st.sampled_from(["ask", "end", "die"]), st.integers(0, 40), st.floats(0, 12), st.floats(0, 3)),
        max_size=120,
    ),
)
def test_whatever_comes_the_bound_holds_and_the_memory_is_bounded(
    count: int, events: list[tuple[str, int, float, float]]
) -> None:
    replicas = [Replica(index, room=30) for index in range(count)]
    pool = pool_of(*replicas)
    for key, (what, number, shared, own) in enumerate(events):
        replica = replicas[number % count]
        if what == "ask":
            least = min(len(it.requests) for it in replicas)
            chosen = bound(pool, completion(text(number % 3, shared) + text(number, own)))
            assert len(chosen.requests) <= least + IMBALANCE
            chosen.requests[key] = None
        elif what == "end" and replica.requests:
            replica.requests.popitem()
        elif what == "die":
            replica.incarnation += 1
            replica.requests.clear()
        assert pool.balancer is not None
        prefixes = cast(PrefixCache, pool.balancer.inner).prefixes
        assert all(prefixes.held(cast(StageReplica, it)) <= 30 for it in replicas)


# ---- served

MODEL: dict[str, Any] = {"max_position_embeddings": 2048}


@asynccontextmanager
async def serving(folder: str, balancer: str) -> AsyncIterator[Orchestrator]:
    chosen = f"stages.llm.balancer={balancer}"
    overrides = ("stages.llm.replicas=2", chosen, "limits.restart_delay_s=0.05", "stages.llm.options.kv_blocks=512")
    async with open_orchestrator(resolve(folder, platform="cpu", overrides=overrides)) as orchestrator:
        with trio.fail_after(60):
            await orchestrator.wait_ready()
        yield orchestrator
        with trio.fail_after(10):
            await idle(orchestrator)


async def asked(orchestrator: Orchestrator, prompt: str) -> tuple[list[int], int]:
    """The answer's tokens, and how many of the prompt's were cached."""
    params = {
        "prompt": Prompt(text=prompt),
        "sampling": Sampling(temperature=0.0, max_tokens=4, ignore_eos=True),
    }
    events = await collect(orchestrator, Request(task="completion", params=params))
    assert type(events[-1]) is Completed
    tokens = [token for event in events if type(event) is TextDelta for token in event.token_ids]
    return tokens, events[-1].usage["llm"].cached_tokens


async def all_renewed(orchestrator: Orchestrator) -> None:
    """Kill every replica, and wait for the next ones."""
    replicas = orchestrator.pools["llm"].replicas
    for replica in replicas:
        orchestrator.control.kill("llm", replica.index)
    with trio.fail_after(90):
        await until(lambda: all(it.live and it.incarnation == 2 for it in replicas))


@pytest.mark.slow
@pytest.mark.deadline(240)
async def test_served_it_finds_more_in_the_caches_and_says_the_same(tmp_path: Any) -> None:
    folder = tiny_models.save(tmp_path, **MODEL)
    # Three prompts in turns over two replicas: least_queue sends each to the other one than the last time.
    prompts = [text(number, 4) + text(turn, 0.5) for turn in range(4) for number in range(3)]
    answers, cached = {}, {}
    for balancer in ("least_queue", "prefix_cache"):
        async with serving(folder, balancer) as orchestrator:
            found = [await asked(orchestrator, prompt) for prompt in prompts]
            answers[balancer] = [tokens for tokens, _ in found]
            cached[balancer] = sum(count for _, count in found)
            if balancer == "prefix_cache":
                assert all(count for _, count in found[3:])
                await all_renewed(orchestrator)
                again = [await asked(orchestrator, prompt) for prompt in prompts[:4]]
                assert [count > 0 for _, count in again] == [False, False, False, True]
    assert answers["prefix_cache"] == answers["least_queue"]
    assert cached["prefix_cache"] > cached["least_queue"]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("stages.llm.options.prefix_cache=false",), "caches no prompts"),
        (("stages.llm.prefill.replicas=2",), "set stages.llm.prefill.balancer"),
    ],
)
def test_it_is_refused_where_no_prefix_is_cached(overrides: tuple[str, ...], why: str, tmp_path: Any) -> None:
    folder = tiny_models.save(tmp_path)
    with pytest.raises(PlanError, match=f"'prefix_cache' is not for stage 'llm': .*{why}"):
        resolve(folder, platform="cpu", overrides=("stages.llm.balancer=prefix_cache", *overrides))


def test_it_is_refused_where_no_prompt_is_read() -> None:
    with pytest.raises(PlanError, match="is not for stage 'b': it reads no prompts"):
        resolve("stub", overrides=("stages.b.balancer=prefix_cache",))
