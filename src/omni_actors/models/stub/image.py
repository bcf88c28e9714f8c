"""A painter without a model: pictures step by step and edits of pictures, computed from the words alone."""

from omni_actors.media.stage import PICTURES
from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.options import Option

SIDE = 64
"""Width and height of a picture whose size is left open."""

MULTIPLE = 8
"""The number that widths and heights divide by."""

PAINTER = Stage(
    name="image",
    engine="omni_actors.models.stub.painter:Painter",
    ports=(Port("pictures", "media", required=False, mode="chunk", doc="Pictures to edit, and a mask behind them."),),
    sections=("image",),
    options={
        "step_s": Option(0.0, "Seconds that a step with work takes.", least=0),
        "load_s": Option(0.0, "Seconds that loading takes.", least=0),
        "steps": Option(8, "Steps of a request that names none.", least=1),
        "max_steps": Option(1000, "Most steps of a request.", least=1),
        "max_pixels": Option(4096 * 4096, "Most pixels of a picture.", least=64),
        "preview_side": Option(256, "Longest side of a preview in pixels; larger previews are shrunk.", least=8),
    },
    doc="Paints pictures that follow from the prompt and the seed, step by step.",
)

PIPELINE = Pipeline(
    name="stub-image",
    stages=(PAINTER, PICTURES),
    edges=(Edge("image", "pictures.pixels", "pixels", mode="chunk", capacity=4),),
    tasks=(
        Task("image", entries={"text": "image"}, outputs={"image": "pictures"}),
        Task("image_edit", entries={"text": "image", "image": "image.pictures"}, outputs={"image": "pictures"}),
    ),
    doc="Pictures and edits without a model: image → pictures. For tests of what surrounds one.",
)
