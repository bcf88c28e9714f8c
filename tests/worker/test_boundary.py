"""The boundary between serving process and worker: versions, garbage, bad loads, slow starts. Real processes."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest
import trio

from omni_actors.actors.process import open_launcher, python_module
from omni_actors.orchestrator import StartupError, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.codec import frame, up_reader
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Abort, Ack, Fatal, Hello, Query, Reply, Step, Stop, Submit, Up, Welcome
from omni_actors.protocol.request import Request


class Raw:
    """A worker addressed frame by frame."""

    def __init__(self, sock: object) -> None:
        self.sock = sock
        self.reader = up_reader()
        self.got: list[Up] = []

    def send(self, data: bytes) -> None:
        self.sock.send(data)  # type: ignore[attr-defined]

    async def until(self, kind: type) -> Up:
        """Return the first frame of a kind that has not been taken yet."""
        with trio.fail_after(15):
            while True:
                for i, message in enumerate(self.got):
                    if type(message) is kind:
                        return self.got.pop(i)
                await trio.lowlevel.wait_readable(self.sock)  # type: ignore[arg-type]
                data = self.sock.recv(1 << 20)  # type: ignore[attr-defined]
                if not data:
                    raise EOFError
                self.got += self.reader.feed(data)


def hello(**changes: object) -> bytes:
    it = resolve("stub").hello("a", 0, 1)
    for name, value in changes.items():
        setattr(it, name, value)
    return frame(it)


async def test_another_protocol_version_is_refused_by_name() -> None:
    async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
        worker = Raw(child.sock)
        worker.send(hello(version=999))
        fatal = await worker.until(Fatal)
        assert isinstance(fatal, Fatal)
        assert "999" in fatal.error.message
        with trio.fail_after(10):
            assert (await child.wait()).code == 1


async def test_a_device_that_cannot_be_opened_is_a_last_word_with_the_remedy() -> None:
    """The device is opened before the engine is imported: this engine does not exist at all."""
    async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
        worker = Raw(child.sock)
        platform = "omni_actors.platforms.cuda:CudaPlatform"
        worker.send(hello(platform=platform, device="cuda:0", platform_options={}, engine="nowhere:Engine"))
        fatal = await worker.until(Fatal)
        assert isinstance(fatal, Fatal)
        assert "platform 'cuda' cannot open 'cuda:0'" in fatal.error.message
        assert "install the wheel" in fatal.error.message or "see nvidia-smi" in fatal.error.message
        assert fatal.error.code == "bad_platform"
        assert fatal.error.stage == "a"
        with trio.fail_after(10):
            assert (await child.wait()).code == 1


async def test_a_worker_may_have_as_many_descriptors_as_the_system_lets_it() -> None:
    """The worker's shared memory needs many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
            worker = Raw(child.sock)
            worker.send(hello())
            worker.send(frame(Query(1, "counters")))
            await worker.until(Reply)
            assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, (5).to_bytes(4, "little") + b"hello", frame(Ack(1, 2, 3)), frame(Welcome(1, 2))],
    ids=["length", "body", "peer frame", "frame of the other direction"],
)
async def test_garbage_ends_the_worker_with_a_last_word(garbage: bytes) -> None:
    async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
        worker = Raw(child.sock)
        worker.send(hello())
        worker.send(frame(Query(1, "counters")))
        await worker.until(Reply)
        worker.send(garbage)
        await worker.until(Fatal)
        with trio.fail_after(10):
            assert (await child.wait()).code == 1


async def test_frames_of_unknown_requests_and_queries_do_no_harm() -> None:
    async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
        worker = Raw(child.sock)
        worker.send(hello())
        worker.send(frame(Abort(77)))
        worker.send(frame(Query(1, "what is love")))
        reply = await worker.until(Reply)
        assert isinstance(reply, Reply)
        assert reply.error is not None
        worker.send(frame(Submit(5, "r", {}, (), (), True)))
        step = await worker.until(Step)
        assert isinstance(step, Step)
        assert [done.key for done in step.done] == [5]
        assert step.released == [5]
        worker.send(frame(Stop()))
        with trio.fail_after(10):
            assert (await child.wait()).code == 0


async def test_a_worker_whose_server_hangs_up_exits() -> None:
    async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
        worker = Raw(child.sock)
        worker.send(hello())
        worker.send(frame(Query(1, "counters")))
        await worker.until(Reply)
        child.close()
        with trio.fail_after(10):
            await child.wait()


async def test_a_worker_started_by_hand_refuses_with_a_message() -> None:
    result = await trio.run_process(
        [sys.executable, "-m", "omni_actors.worker"], check=False, capture_stderr=True, env=dict(os.environ)
    )
    assert result.returncode == 1
    assert b"launcher" in result.stderr
    assert b"Traceback" not in result.stderr


async def start(plan: Plan) -> None:
    async with open_orchestrator(plan, log_level="CRITICAL") as orchestrator:
        with trio.fail_after(20):
            await orchestrator.wait_ready()


async def test_an_engine_that_cannot_be_imported_is_a_startup_error_that_names_stage_and_cause() -> None:
    with pytest.raises(StartupError) as error:
        await start(resolve("stub", overrides=["stages.b.engine=omni_actors.no_such:Engine"]))
    assert error.value.info.stage == "b"
    assert "no_such" in error.value.info.message


async def test_a_model_folder_without_weights_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    with pytest.raises(OmniError) as error:
        await start(resolve(str(tmp_path)))
    assert error.value.info.stage == "llm"


async def test_a_worker_that_dies_in_a_later_start_is_started_again() -> None:
    async with open_orchestrator(
        resolve("stub", overrides=["limits.restart_delay_s=0.01"]), log_level="CRITICAL"
    ) as orchestrator:
        with trio.fail_after(20):
            await orchestrator.wait_ready()
            victim = orchestrator.pools["b"].replicas[0]
            for _ in range(3):  # while it starts, too
                incarnation = victim.incarnation
                assert victim.pid is not None
                os.kill(victim.pid, 9)
                while victim.incarnation == incarnation or victim.pid is None:
                    await orchestrator.changed.park()
            while not orchestrator.ready:
                await orchestrator.changed.park()
            async with orchestrator.open(Request(task="echo", params={"stub": {"text": "x"}})) as stream:
                assert [event async for event in stream]
        assert victim.incarnation == 4


def test_hello_carries_the_whole_configuration() -> None:
    plan = resolve("stub", overrides=["stages.b.options.step_s=0.25", "edges.c.text.capacity=7"])
    it = plan.hello("b", 0, 3)
    assert isinstance(it, Hello)
    assert (it.stage, it.incarnation, it.options["step_s"]) == ("b", 3, 0.25)
    assert [edge.port for edge in it.inputs] == ["text"]
    assert [edge.capacity for edge in it.outputs] == [7]
