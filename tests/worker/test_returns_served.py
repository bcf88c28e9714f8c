"""Wrong returns in real workers: one request fails with a message that names the method; its neighbours and workers
live."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import trio
from tests.worker import wrong_engine

from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.registry import Registry
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.request import Request, TextDelta

REGISTRY = Registry({"wrong": "tests.worker.wrong_engine:PIPELINE"})

FAULTS = {
    # fault: stage, words
    "a piece for pieces": (
        "first",
        "First.run returned a Result whose pieces are Piece; expected an iterable of Piece",
    ),
    "nothing for pieces": ("first", "First.run returned a Result whose pieces are None; expected an iterable of Piece"),
    "nothing as usage": ("first", "First.run returned a Result with None as usage; expected Usage"),
    "words in usage": ("first", "First.run returned a Result with a Usage whose completion_tokens is str as usage"),
    "another kind": ("first", "a payload of kind 'codes' for the edge to 'own.text'; expected kind 'text'"),
    "keys that are no names": ("first", "First.run returned a Piece with a Payload whose meta cannot be sent"),
    "nothing from feed": ("own", "Own.feed returned None; expected True or False"),
    "a number as text": ("own", "Own gave Outbox.text a TextDelta whose text is int; expected str"),
    "no usage at the end": ("own", "Own gave Outbox.finish None; expected Usage"),
    "words as an error": ("own", "Own gave Outbox.fail str; expected ErrorInfo"),
}


async def ask(orchestrator: Orchestrator, fault: str) -> str | ErrorInfo:
    request = Request(task="chat", params={"line": {"fault": fault}})
    said = ""
    try:
        async with orchestrator.open(request) as stream:
            async for event in stream:
                said += event.text if isinstance(event, TextDelta) else ""
    except OmniError as error:
        return error.info
    return said


@pytest.mark.deadline(60)
async def test_a_wrong_return_costs_its_own_request_and_no_worker() -> None:
    async with open_orchestrator(resolve("wrong", registry=REGISTRY, platform="cpu")) as orchestrator:
        with trio.fail_after(30):
            await orchestrator.wait_ready()
        before = {name: pool.replicas[0].incarnation for name, pool in orchestrator.pools.items()}
        for fault, (stage, words) in FAULTS.items():
            answers: dict[str, Any] = {}

            async def one(name: str, fault: str, answers: dict[str, Any] = answers) -> None:
                answers[name] = await ask(orchestrator, fault)

            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    for name, it in (("before", ""), ("bad", fault), ("behind", "")):
                        nursery.start_soon(one, name, it)
            error = answers.pop("bad")
            assert isinstance(error, ErrorInfo), (fault, error)
            assert (error.stage, error.status, error.code) == (stage, 500, "stage_failed"), error
            assert words in error.message, error.message
            assert answers == {"before": "fine", "behind": "fine"}
        after = {name: pool.replicas[0].incarnation for name, pool in orchestrator.pools.items()}
        assert after == before, "a worker ended"
        counters = await orchestrator.counters()
        assert all(each[0]["jobs"] == 0 for each in counters.values())


async def test_a_foreign_engine_behind_one_of_this_package_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    first, own = wrong_engine.PIPELINE.stages
    chain = "omni_actors.worker.engines.chained:ChainedEngine"
    own = dataclasses.replace(own, engine=chain, adapter=f"{wrong_engine.__name__}:CHAIN")
    monkeypatch.setattr(wrong_engine, "PIPELINE", dataclasses.replace(wrong_engine.PIPELINE, stages=(first, own)))
    async with open_orchestrator(resolve("wrong", registry=REGISTRY, platform="cpu")) as orchestrator:
        with trio.fail_after(20):
            await orchestrator.wait_ready()
            error = await ask(orchestrator, "a number as text")
            assert isinstance(error, ErrorInfo)
            assert "gave Outbox.text a TextDelta whose text is int; expected str" in error.message
            assert await ask(orchestrator, "") == "fine"
            assert orchestrator.pools["own"].replicas[0].incarnation == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoSuchEngine", "engine 'tests.worker.wrong_engine:NoSuchEngine' cannot be imported: AttributeError"),
        ("First", "engine 'tests.worker.wrong_engine:First' is not a subclass of Engine"),
    ],
)
async def test_a_stage_without_a_valid_engine_fails_at_its_start(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    first, own = wrong_engine.PIPELINE.stages
    stages = (first, dataclasses.replace(own, engine=f"{wrong_engine.__name__}:{name}"))
    monkeypatch.setattr(wrong_engine, "PIPELINE", dataclasses.replace(wrong_engine.PIPELINE, stages=stages))
    async with open_orchestrator(resolve("wrong", registry=REGISTRY, platform="cpu")) as orchestrator:
        (replica,) = orchestrator.pools["own"].replicas
        with trio.fail_after(20):
            while (error := replica.last_error) is None:
                await replica.changed.park()
        assert error.stage == "own"
        assert words in error.message
