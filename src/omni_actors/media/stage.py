"""The declaration of the implicit stage ``media``: a deployment has it when a task takes media or gives audio."""

from __future__ import annotations

import msgspec

from omni_actors.media.limits import DOC, Limits
from omni_actors.pipelines.declaration import Stage
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
