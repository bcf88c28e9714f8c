"""Engines, connectors and balancers by name: the builtin ones, and those that a plug-in's entry points announce."""

from __future__ import annotations

import logging
import os
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import trio
from tests.pipelines import extension_classes
from tests.platforms.distributions import install

from omni_actors.cache import CACHE_VARIABLE
from omni_actors.entrypoints.doctor.plugins import extension_findings
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.extensions import BALANCERS, CONNECTORS, ENGINES, EXTENSIONS, Extension
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.registry import Registry
from omni_actors.plugins.contract import CONTRACT
from omni_actors.protocol.request import Request, TextDelta

CLASSES = extension_classes.__name__
REGISTRY = Registry({"extended": f"{CLASSES}:PIPELINE"})


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{path}" if path else str(folder))  # of workers
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return folder


def announce(site: Path, extension: Extension, name: str, target: str, distribution: str = "") -> None:
    """A distribution whose entry point leads to a class of this test's."""
    distribution = distribution or f"{name}-{extension.word}"
    text = f"from {CLASSES} import {target} as Target\n"
    install(site, name, text, distribution, extension.group, "Target")


def sound(site: Path) -> None:
    announce(site, ENGINES, "echo", "Echo")
    announce(site, CONNECTORS, "counting", "Counting")
    announce(site, BALANCERS, "last", "Last")


def plan_of(*overrides: str) -> Plan:
    return resolve("extended", platform="cpu", registry=REGISTRY, overrides=overrides)


async def ask(orchestrator: Orchestrator, text: str) -> str:
    said = ""
    async with orchestrator.open(Request(task="echo", params={"stub": {"text": text}})) as stream:
        async for event in stream:
            said += event.text if isinstance(event, TextDelta) else ""
    return said


def test_the_builtins_are_announced_as_plugins_are() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extension in EXTENSIONS:
        assert project["entry-points"][extension.group] == extension.builtins
        assert extension.names()[: len(extension.builtins)] == list(extension.builtins)
        for name, target in extension.builtins.items():
            if name != "vllm":  # which is in an environment of its own
                assert resolve_name(target).contract == CONTRACT


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stages.a.engine=ecoh", "there is no engine 'ecoh'; did you mean 'echo'?"),
        ("stages.a.engine=generatoin", "there is no engine 'generatoin'; did you mean 'generation'?"),
        (
            "edges.b.text.connector=countin",
            "device or tcp or counting (did you mean 'counting'?), not",
        ),
        ("edges.b.text.connector=share_memory", "did you mean 'shared_memory'?"),
        ("stages.b.balancer=least_que", "(did you mean 'least_queue'?), not 'least_que'"),
        ("stages.b.balancer=5", "takes least_queue or round_robin or prefix_cache or last, not 5"),
    ],
)
def test_an_unknown_name_says_the_nearest(site: Path, override: str, words: str) -> None:
    sound(site)
    with pytest.raises(PlanError) as refused:
        plan_of(override)
    assert words in refused.value.info.message
    assert override.partition("=")[0] in refused.value.info.message


@pytest.mark.deadline(60)
async def test_a_deployment_runs_on_a_plugins_engine_connector_and_balancer(site: Path) -> None:
    sound(site)
    plan = plan_of("stages.b.replicas=2", "stages.b.balancer=last")
    assert {stage.engine for stage in plan.stages} == {"echo_engine:Target"}
    assert [(edge.connector, edge.connector_class) for edge in plan.edges] == [
        ("counting", "counting_connector:Target")
    ]
    async with open_orchestrator(plan) as orchestrator:
        with trio.fail_after(30):
            await orchestrator.wait_ready()
        chosen = []
        for i in range(4):
            assert await ask(orchestrator, f"hello {i}") == f"hello {i}"
            chosen.append([replica["steps_total"] > 0 for replica in (await orchestrator.counters())["b"]])
        assert chosen == [[False, True]] * 4, "the balancer always takes the last replica"


@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    ("extension", "name", "target", "words"),
    [
        (ENGINES, "echo", "Unstated", "does not say which engine contract it was written for: this is version 1"),
        (ENGINES, "echo", "Later", "was written for version 2 of the engine contract, and this is version 1"),
        (
            CONNECTORS,
            "counting",
            "OldConnector",
            "written for version 0 of the connector contract, and this is",
        ),
        (CONNECTORS, "counting", "Last", "connector 'counting_connector:Target' is not a subclass of Connector"),
    ],
)
async def test_a_class_for_another_contract_fails_the_stages_start(
    site: Path, extension: Extension, name: str, target: str, words: str
) -> None:
    for other, usual, right in ((ENGINES, "echo", "Echo"), (CONNECTORS, "counting", "Counting")):
        announce(site, other, usual, target if other is extension else right)
    async with open_orchestrator(plan_of()) as orchestrator:
        (replica,) = orchestrator.pools["a"].replicas
        with trio.fail_after(30):
            while (error := replica.last_error) is None:
                await replica.changed.park()
        assert words in error.message


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("LaterBalancer", "it was written for version 2 of the balancer contract, and this is version 1"),
        ("Echo", "is no subclass of Balancer"),
    ],
)
@pytest.mark.process
def test_a_broken_balancer_is_refused_when_it_is_asked_for(site: Path, target: str, words: str) -> None:
    announce(site, ENGINES, "echo", "Echo")
    announce(site, CONNECTORS, "counting", "Counting")
    announce(site, BALANCERS, "odd", target)
    assert plan_of().stage("b").balancer == "least_queue"
    with pytest.raises(PlanError) as refused:
        plan_of("stages.b.balancer=odd")
    assert words in refused.value.info.message
    assert "balancer plugin 'odd' of odd-balancer 1.0" in refused.value.info.message
    found = {it.subject: it for it in extension_findings()}
    assert words in found["balancer odd"].found
    assert found["engine echo"].found == "echo-engine 1.0: echo_engine:Target"


@pytest.mark.deadline(60)
@pytest.mark.parametrize("target", ["Raises", "Stray"])
async def test_a_balancer_that_fails_costs_no_request(
    site: Path, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    sound(site)
    announce(site, BALANCERS, "odd", target, f"{target}-balancer")  # of its own module, which stays imported here
    async with open_orchestrator(plan_of("stages.b.replicas=2", "stages.b.balancer=odd")) as orchestrator:
        with trio.fail_after(30):
            await orchestrator.wait_ready()
        for i in range(3):
            assert await ask(orchestrator, f"hello {i}") == f"hello {i}"
    said = [it for it in caplog.records if it.levelno == logging.ERROR and f"{target}.choose failed" in it.getMessage()]
    assert len(said) == 1


def test_two_plugins_of_one_name_are_refused_and_a_builtins_name_is_not_taken(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sound(site)
    announce(site, BALANCERS, "last", "Last", "another-balancer")
    announce(site, BALANCERS, "round_robin", "Last")
    with pytest.raises(
        PlanError, match=r"more than one plugin brings a balancer 'last' \(another-balancer, last-balancer\)"
    ):
        plan_of("stages.b.balancer=last")
    plan: Any = plan_of("stages.b.balancer=round_robin")
    assert plan.stage("b").balancer_class == BALANCERS.builtins["round_robin"]
    assert "balancer plugin 'round_robin'" in caplog.text
