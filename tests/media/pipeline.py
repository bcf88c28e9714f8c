"""A pipeline that hears: the media process, and a stage that says how many bytes of samples came and their checksum."""

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
