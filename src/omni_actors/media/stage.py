"""The declarations of two stages without a model.

The stage ``media`` is implicit: a deployment has it when a task takes media or gives audio. A pipeline that makes
pictures declares the stage ``pictures``.
"""

from __future__ import annotations

import msgspec

from omni_actors.media.limits import DOC, PICTURE_OPTIONS, Limits
from omni_actors.pipelines.declaration import Port, Stage
from omni_actors.protocol.options import Option

_DEFAULTS = msgspec.structs.asdict(Limits())

_LEAST = {int: 1, float: 0.001}
"""The least value of a number, by its type."""

STAGE = Stage(
    name="media",
    engine="omni_actors.media.worker.engine:MediaEngine",
    sections=("clips",),
    weight=0.0,
    dtypes=("float32",),
    options={name: Option(value, DOC[name], least=_LEAST.get(type(value))) for name, value in _DEFAULTS.items()},
    step_budget_s=60.0,
    doc="Decodes what clients send, encodes what they get, parses large bodies.",
)

PICTURES = Stage(
    name="pictures",
    engine="omni_actors.media.worker.pictures.engine:PictureEngine",
    ports=(Port("pixels", "pixels", mode="chunk", doc="Pictures and previews, one payload each."),),
    sections=("image",),
    emits="image",
    weight=0.0,
    dtypes=("float32",),
    options=PICTURE_OPTIONS,
    step_budget_s=60.0,
    host=True,
    doc="Writes pictures as PNG, WebP or JPEG, outside the serving process and apart from sound.",
)
"""The stage at the end of every pipeline that makes pictures: an edge of kind ``pixels`` leads to it.

A payload of kind ``pixels`` has the tensor ``pixels`` (uint8 [height, width, 1, 3 or 4]) and the metadata ``index``,
``seed``, perhaps ``layer``, and for a preview ``preview`` (the step, counted from 1) and ``side`` (the longest side
that the client gets, in pixels).
"""
