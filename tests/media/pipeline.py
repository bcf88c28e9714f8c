"""Pipelines that hear and see: the media process, and a stage that says how many bytes came and their checksum."""

from omni_actors.pipelines.declaration import Pipeline, Port, Stage, Task

PIPELINE = Pipeline(
    name="ear",
    stages=(
        Stage(
            name="ear",
            engine="omni_actors.worker.engines.stub:StubEngine",
            adapter="",
            ports=(Port("audio", "pcm", mode="chunk"),),
            sections=("stub",),
            emits="text",
        ),
    ),
    tasks=(Task("transcription", entries={"audio": "ear.audio"}, outputs={"text": "ear"}),),
    doc="media → ear.",
)

EYE = Pipeline(
    name="eye",
    stages=(
        Stage(
            name="eye",
            engine="omni_actors.worker.engines.stub:StubEngine",
            adapter="",
            ports=(Port("media", "media", mode="chunk"),),
            sections=("stub",),
            emits="text",
        ),
    ),
    tasks=(Task("look", dict.fromkeys(("audio", "image", "video"), "eye.media"), outputs={"text": "eye"}),),
    doc="media → eye.",
)
