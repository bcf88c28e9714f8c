"""Three stages in a row without a model, for tests of everything else in a deployment."""

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.options import Option

_ENGINE = "omni_actors.worker.engines.stub:StubEngine"
_OPTIONS = {
    "step_s": Option(0.0, "Seconds that a step with work takes.", least=0),
    "load_s": Option(0.0, "Seconds that loading takes.", least=0),
}


def _stage(name: str, *ports: Port) -> Stage:
    return Stage(
        name=name,
        engine=_ENGINE,
        ports=ports,
        sections=("stub",),
        emits="text",
        options=_OPTIONS,
    )


PIPELINE = Pipeline(
    name="stub",
    stages=(
        _stage("a"),
        _stage("b", Port("text", "text", mode="chunk")),
        _stage("c", Port("text", "text", mode="chunk")),
    ),
    edges=(Edge("a", "b.text", "text", mode="chunk"), Edge("b", "c.text", "text", mode="chunk")),
    tasks=(
        Task("echo", entries={"text": "a"}, outputs={"text": "c"}),
        Task("tokens", entries={"text": "a"}, outputs={"text": "a"}),
        Task("stream", entries={"text": "b.text"}, outputs={"text": "c"}),
    ),
    doc="Three stages without a model: a → b → c.",
)
