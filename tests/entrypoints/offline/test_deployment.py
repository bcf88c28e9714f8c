"""The library without a server."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import trio

from omni_actors import Omni, OmniError, Request, open_omni
from omni_actors.protocol.request import Completed


async def test_open_omni_serves_under_trio_and_ends_its_processes() -> None:
    async with open_omni("stub") as omni:
        output = await omni.run(Request(task="echo", params={"stub": {"text": "hi"}}))
        assert output.text == "hi"
        async with omni.open(Request(task="echo", params={"stub": {"text": "hi"}})) as stream:
            assert [type(event) for event in [event async for event in stream]][-1] is Completed


async def test_open_omni_names_a_model_that_cannot_be_resolved(tmp_path: Path) -> None:
    with pytest.raises(OmniError):
        async with open_omni(str(tmp_path / "nothing")):
            pass


async def test_a_stage_that_cannot_start_is_an_error_that_names_it() -> None:
    with pytest.raises(OmniError) as error:
        async with open_omni("stub", overrides=["stages.b.start_timeout_s=0.5", "stages.b.options.load_s=20"]):
            pass
    assert error.value.info.stage == "b"


def test_ctrl_c_cancels_the_awaited_call() -> None:
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
            omni._portal.call(endless)
        omni._portal.call(released)


def test_omni_serves_code_that_blocks() -> None:
    with Omni("stub") as omni:
        # The stub knows no chat: the failure crosses the thread as it is.
        with pytest.raises(OmniError) as error:
            omni.generate("hello")
        assert error.value.info.status == 400
    with pytest.raises(OmniError) as closed:
        omni.generate("hello")
    assert closed.value.info.code == "closed"
