"""Both pipelines."""

from __future__ import annotations

from tests.chaos.mortal import mortal

from omni_actors.models.sd3.pipeline import PIPELINE as SD3
from omni_actors.models.stub.image import PIPELINE as STUB

PAINTER = mortal(STUB, engine="tests.chaos.mortal.painter:Mortal")
DIFFUSION = mortal(SD3, adapter="tests.chaos.mortal.sd3:Mortal")
