"""The conformance kit of omni-actors, run on this platform."""

from __future__ import annotations

import pytest
from omni_sim import SimPlatform

from omni_actors.platforms.testing import PlatformConformance


@pytest.mark.slow
@pytest.mark.deadline(300)
class TestSimPlatform(PlatformConformance):
    platform = SimPlatform
