"""The declaration of the implicit stage ``media``: a deployment has it when a task takes media or gives audio."""

from __future__ import annotations

import msgspec

from omni_actors.media.limits import DOC, Limits
from omni_actors.pipelines.declaration import Stage

_DEFAULTS = msgspec.structs.asdict(Limits())

STAGE = Stage(
    name="media",
    engine="omni_actors.media.engine:MediaEngine",
    sections=("clips",),
    weight=0.0,
    dtypes=("float32",),
    defaults=_DEFAULTS,
    options_doc=DOC,
    options_least={
        name: 1 if type(value) is int else 0.001 for name, value in _DEFAULTS.items() if type(value) in (int, float)
    },
    step_budget_s=60.0,
    doc="Decodes what clients send, encodes what they get, parses large bodies.",
)
