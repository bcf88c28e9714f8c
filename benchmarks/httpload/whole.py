"""The whole way of a chat: this project's server, its orchestrator, and three stages without a model.

python -m httpload.whole PORT
"""

from __future__ import annotations

import sys

import trio

from omni_actors.entrypoints.app import build_app
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import serve
from omni_actors.orchestrator import open_orchestrator
from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.registry import Registry

ENGINE = "httpload.stage:ChatEngine"
TEXT = Port("text", "text", mode="chunk")

PIPELINE = Pipeline(
    name="stub",
    stages=(
        Stage("a", ENGINE, sections=("prompt",), emits="text"),
        Stage("b", ENGINE, ports=(TEXT,), emits="text"),
        Stage("c", ENGINE, ports=(TEXT,), sections=("sampling",), emits="text"),
    ),
    edges=(Edge("a", "b.text", "text", mode="chunk"), Edge("b", "c.text", "text", mode="chunk")),
    tasks=(Task("chat", entries={"text": "a"}, outputs={"text": "c"}),),
)


async def main(port: int) -> None:
    plan = resolve("stub", platform="cpu", registry=Registry({"stub": f"{__name__}:PIPELINE"}))
    async with open_orchestrator(plan, log_level="WARNING") as orchestrator:
        await orchestrator.wait_ready()
        await serve(build_app(orchestrator, None, plan, ServerOptions()), "127.0.0.1", port)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
