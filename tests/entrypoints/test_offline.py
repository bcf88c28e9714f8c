"""The library without a server."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from omni_actors import AsyncOmni, Omni, OmniError, Request, open_omni
from omni_actors.protocol.request import Completed


async def test_open_omni_serves_under_trio_and_ends_its_processes() -> None:
    async with open_omni("stub") as omni:
        output = await omni.generate(Request(task="echo", params={"stub": {"text": "hi"}}))
        assert output.text == "hi"
        async with omni.open(Request(task="echo", params={"stub": {"text": "hi"}})) as stream:
            assert [type(event) for event in [event async for event in stream]][-1] is Completed


async def test_open_omni_says_what_it_cannot_resolve(tmp_path: Path) -> None:
    with pytest.raises(OmniError):
        async with open_omni(str(tmp_path / "nothing")):
            pass


async def test_a_stage_that_cannot_start_is_an_error_that_names_it() -> None:
    with pytest.raises(OmniError) as error:
        async with open_omni("stub", overrides=["stages.b.start_timeout_s=0.5", "stages.b.options.load_s=20"]):
            pass
    assert error.value.info.stage == "b"


def test_ctrl_c_cancels_what_is_waited_for() -> None:
    main = threading.main_thread().ident
    assert main is not None
    with Omni("stub") as omni:
        orchestrator = omni._omni.orchestrator

        async def endless() -> None:
            async with omni._omni.open(Request(task="echo", params={"stub": {"text": "hi", "stall": "a"}})):
                signal.pthread_kill(main, signal.SIGINT)
                await trio.sleep_forever()

        async def released() -> None:
            with trio.fail_after(5):
                while orchestrator.inflight:
                    await orchestrator.vacant.park()

        with pytest.raises(KeyboardInterrupt):
            omni._call(endless)
        omni._call(released)


def test_one_chat_alone_is_its_list_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []
    with Omni("stub") as omni:
        monkeypatch.setattr(omni, "_together", lambda requests, *_: asked.extend(requests))
        chat: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        omni.generate(chat)
        two: list[Any] = [chat, "hi"]
        omni.generate(two)
        omni.generate([])
    assert [request.params["prompt"].messages for request in asked] == [chat, chat, chat[1:]]


def test_speech_fields_that_the_model_does_not_honour_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    with Omni("stub") as omni:
        plan = omni._omni.plan
        mute = replace(plan, pipeline=replace(plan.pipeline, speech_fields=("language",)))
        monkeypatch.setattr(AsyncOmni, "plan", mute)
        monkeypatch.setattr(omni, "_call", asked.append)
        fields: list[dict[str, Any]] = [{"speed": 2.0}, {"instructions": "Sadly."}, {"max_tokens": 3}]
        for field in fields:
            with pytest.raises(OmniError) as caught:
                omni.speak("Hello.", **field)
            assert caught.value.info.param == next(iter(field))
        assert not asked
        omni.speak("Hello.", voice="x", seed=3, language="en", speed=1.0)
        assert len(asked) == 1


def test_omni_serves_code_that_blocks() -> None:
    with Omni("stub") as omni:
        # The stub knows no chat: the failure crosses the thread as it is.
        with pytest.raises(OmniError) as error:
            omni.generate("hello", progress=False)
        assert error.value.info.status == 400
    with pytest.raises(OmniError):
        omni.generate("hello", progress=False)
