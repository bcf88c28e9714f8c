"""A server for whole chats: this project's HTTP server, its orchestrator, and three stages without a model.

python -m httpload.whole PORT
"""

from __future__ import annotations

import sys

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.serve import run_server
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


if __name__ == "__main__":
    plan = resolve("stub", platform="cpu", registry=Registry({"stub": "httpload.whole:PIPELINE"}))
    run_server(plan, ServerOptions(port=int(sys.argv[1]), log_level="WARNING"))
