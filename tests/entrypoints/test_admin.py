"""/admin/replicas: what it says, and what it does to a deployment of real workers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from click.testing import CliRunner
from rich.console import Console
from tests.entrypoints.fakes import served
from tests.orchestrator.spine import collect, stub, stub_orchestrator, text_of, until

from omni_actors.actors.background import background
from omni_actors.entrypoints.app import build_app
from omni_actors.entrypoints.cli import main
from omni_actors.entrypoints.commands.replicas import replicas_group, table
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import serve
from omni_actors.media.limits import read_limits
from omni_actors.media.service.client import MediaService
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError

PATH = "/admin/replicas"
ADMIN = ServerOptions(admin_keys=("boss",))
KEY = {"Authorization": "Bearer boss"}


@asynccontextmanager
async def deployment(*overrides: str) -> AsyncIterator[tuple[Orchestrator, httpx.AsyncClient]]:
    """The stub's workers behind the real application on a real socket."""
    async with stub_orchestrator(*overrides) as orchestrator:
        app = build_app(orchestrator, None, orchestrator.plan, ADMIN)
        async with trio.open_nursery() as nursery:
            start = partial(serve, app, "127.0.0.1", 0, grace_s=1.0)
            (url, *_) = await nursery.start(start)
            async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False, headers=KEY) as client:
                yield orchestrator, client
            nursery.cancel_scope.cancel()


async def test_an_engine_that_cannot_sleep_says_so_and_goes_on() -> None:
    async with deployment() as (_, client):
        refused = await client.post(PATH, json={"action": "sleep", "stage": "b", "index": 0})
        assert refused.status_code == 400
        listed = (await client.get(PATH)).json()["replicas"]
        assert [it["state"] for it in listed if it["stage"] == "b"] == ["ready"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"action": "drain", "index": 0}, "stage"),
        ({"action": "kill", "stage": "b"}, "index"),
        ({"action": "restart", "index": 0}, "index"),
        ({"action": "drain", "stage": "b", "index": 0, "grace_s": 1}, "grace_s"),
        ({"action": "replace", "stage": "b", "index": 0, "grace_s": -1}, "grace_s"),
        ({"action": "wake", "stage": "b", "index": 0, "level": 1}, "level"),
        ({"action": "sleep", "stage": "b", "index": 0, "level": 2}, "level"),
        ({"action": "explode"}, "action"),
        ({}, "action"),
        ({"action": "drain", "stage": "b", "index": 0, "more": 1}, "more"),
        ({"action": "drain", "stage": "b", "index": "0"}, "index"),
        ([], None),
    ],
)
async def test_what_is_no_command_is_the_callers_mistake(body: Any, param: str | None) -> None:
    async with served(options=ADMIN) as server:
        refused = await server.client.post(PATH, json=body, headers=KEY)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param


async def test_a_command_that_a_web_form_could_send_is_refused() -> None:
    async with served(options=ADMIN) as server:
        refused = await server.client.post(
            PATH, content=b'{"action": "restart"}', headers=KEY | {"Content-Type": "text/plain"}
        )
        assert refused.status_code == 415


async def test_replicas_are_listed_drained_replaced_and_killed() -> None:
    async with deployment("stages.b.replicas=2") as (orchestrator, client):

        async def command(**body: Any) -> dict[str, Any]:
            answer = await client.post(PATH, json=body)
            assert answer.status_code == 200, answer.text
            (found,) = answer.json()["replicas"]
            assert isinstance(found, dict)
            return found

        before = (await client.get(PATH)).json()["replicas"]
        assert [(it["stage"], it["index"], it["state"]) for it in before] == [
            ("a", 0, "ready"),
            ("b", 0, "ready"),
            ("b", 1, "ready"),
            ("c", 0, "ready"),
        ]
        assert (await command(action="drain", stage="b", index=1))["state"] == "drained"
        assert (await client.get("/health")).json()["stages"]["b"]["live"] == 1
        assert (await command(action="undrain", stage="b", index=1))["state"] == "ready"
        replaced = await command(action="replace", stage="b", index=0)
        assert (replaced["state"], replaced["restarts"], replaced["last_end"]["cause"]) == ("ready", 1, "replaced")
        assert replaced["pid"] != before[1]["pid"]
        await command(action="kill", stage="b", index=1)
        await until(lambda: orchestrator.pools["b"].replicas[1].incarnation == 2)
        everybody = (await client.post(PATH, json={"action": "restart"})).json()["replicas"]
        assert [it["restarts"] for it in everybody] == [1, 2, 2, 1]
        metrics = (await client.get("/metrics")).text
        assert 'omni_actors_stage_restarts_total{cause="killed",stage="b"} 1.0' in metrics
        assert 'omni_actors_stage_restarts_total{cause="replaced",stage="b"} 3.0' in metrics
        assert 'omni_actors_stage_restarts_total{cause="stuck",stage="b"} 0.0' in metrics
        assert 'omni_actors_stage_replicas{stage="b",state="ready"} 2.0' in metrics


async def test_a_stage_that_cannot_start_is_named_and_the_rest_is_served() -> None:
    async with deployment("limits.restart_delay_s=7", "limits.restart_delay_max_s=7") as (orchestrator, client):
        assert (await client.get("/health")).status_code == 200
        c = orchestrator.pools["c"].replicas[0]
        await client.post(PATH, json={"action": "kill", "stage": "c", "index": 0})
        await until(lambda: not c.live and c.pause_s > 0)
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert 5 < float(answer.headers["retry-after"]) <= 9
        body = answer.json()
        assert body["unavailable"] == ["c"]
        shown = body["stages"]["c"]
        assert shown["down_s"] >= 0
        assert shown["progress"] == "ended"
        assert 5 < shown["next_attempt_s"] <= 7
        assert shown["ready_in_s"] > shown["next_attempt_s"]
        assert shown["last_end"]["cause"] == "killed"
        assert text_of(await collect(orchestrator, stub("tokens", tokens=3))) == "xxx"


async def test_the_command_line_does_the_same() -> None:
    async with deployment("stages.b.replicas=2") as (orchestrator, client):

        async def run(*arguments: str) -> Any:
            words = [*arguments, "--url", str(client.base_url), "--admin-key", "boss"]
            return await trio.to_thread.run_sync(lambda: CliRunner().invoke(replicas_group, words))

        listed = await run("list", "--json")
        places = [(it["stage"], it["index"]) for it in json.loads(listed.output)]
        assert places == [("a", 0), ("b", 0), ("b", 1), ("c", 0)]
        assert "ready" in (await run("list")).output
        assert json.loads((await run("drain", "b", "1", "--json")).output)[0]["state"] == "drained"
        assert json.loads((await run("undrain", "b", "1", "--json")).output)[0]["state"] == "ready"
        assert json.loads((await run("replace", "a", "0", "--json")).output)[0]["restarts"] == 1
        restarted = json.loads((await run("restart", "b", "--grace", "5", "--json")).output)
        assert [it["restarts"] for it in restarted] == [1, 1]
        await run("kill", "c", "0")
        await until(lambda: orchestrator.pools["c"].replicas[0].incarnation == 2)
        unknown = await run("drain", "x", "0")
        assert isinstance(unknown.exception, OmniError)
        assert "There is no stage 'x'" in str(unknown.exception)
        assert (await run("restart")).exit_code == 2


def test_the_table_has_a_line_for_each_rank() -> None:
    one = {"stage": "llm", "index": 0, "state": "ready", "pid": 11, "device": "cpu", "requests": 2, "served": 3}
    one |= {
        "ranks": [11, 12],
        "devices": ["cpu", "cpu"],
        "uptime_s": 130.0,
        "restarts": 0,
        "next_s": None,
        "last_end": None,
    }
    apart = one | {"devices": ["cuda:0", "cuda:1"]}
    dead = one | {"index": 1, "state": "dead", "pid": None, "ranks": [], "uptime_s": None, "next_s": 2.0}
    with (console := Console(width=110)).capture() as shown:
        console.print(table([one, apart, dead]))
    words = [line.split() for line in shown.get().splitlines()]
    assert words[1] == ["llm", "0", "ready", "11", "cpu", "2", "3", "2", "min", "0"]
    assert words[2] == ["12"]
    assert (words[3][4], words[4]) == ("cuda:0", ["12", "cuda:1"])
    assert words[5][:9] == ["llm", "1", "dead", "(ready", "in", "2", "s)", "–", "cpu"]


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replicas", "list", "--url", "http://127.0.0.1:9"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("Error: The server at http://127.0.0.1:9 does not answer")


@pytest.mark.slow
@pytest.mark.deadline(120)
async def test_every_worker_is_replaced_under_load_over_http_without_a_failed_or_another_answer() -> None:
    """The media process among them: it encodes what the speaker says, in a stream that goes on while it is replaced."""
    chat = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 30}
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": "tone", "format": "mp3"}}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"model": "stub-voice", **chat}),
        ("/v1/chat/completions", {"model": "stub-voice", **chat, **spoken}),
        ("/v1/audio/speech", {"model": "stub-voice", "input": "A few words to say.", "response_format": "flac"}),
    ]
    answers: dict[int, set[bytes]] = {which: set() for which in range(len(asked))}
    failed: list[str] = []
    done, over = 0, False
    plan = resolve("stub-voice", overrides=["stages.writer.options.step_s=0.005"])
    async with open_orchestrator(plan) as orchestrator, background() as tasks:
        await orchestrator.wait_ready()
        assert plan.media is not None
        media = MediaService(orchestrator.query_media, limits=read_limits(plan.media.options))
        tasks.start_soon(media.run)
        async with trio.open_nursery() as nursery:
            app = build_app(orchestrator, media, plan, ADMIN)
            (url, *_) = await nursery.start(partial(serve, app, "127.0.0.1", 0, grace_s=1.0))
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, headers=KEY) as client:

                async def ask(number: int) -> None:
                    nonlocal done
                    while not over:
                        which = number % len(asked)
                        path, body = asked[which]
                        answer = await client.post(path, json=body)
                        if answer.status_code != 200:
                            failed.append(answer.text)
                            return
                        said = answer.content
                        if path.endswith("completions"):
                            message = answer.json()["choices"][0]["message"]
                            said = f"{message['content']} {(message.get('audio') or {}).get('data')}".encode()
                        answers[which].add(said)
                        done += 1
                        number += 1

                async with trio.open_nursery() as clients:
                    for number in range(16):
                        clients.start_soon(ask, number)
                    await until(lambda: done > 32)
                    replaced = await client.post(PATH, json={"action": "restart", "grace_s": 10})
                    before = done
                    await until(lambda: done > before + 32 or bool(failed))
                    over = True
            nursery.cancel_scope.cancel()
    assert failed == []
    assert [it["incarnation"] for it in replaced.json()["replicas"]] == [2, 2, 2]
    assert [len(each) for each in answers.values()] == [1, 1, 1]
