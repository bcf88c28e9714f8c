"""A fixture that serves ``stub-voice``: real processes, real sockets, no model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.demo.server import Server, serving


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the settings that the module names in ``SETTINGS``."""
    settings = getattr(request.module, "SETTINGS", ())
    arguments = [part for setting in settings for part in ("--set", setting)]
    with serving(tmp_path_factory.mktemp("served"), "stub-voice", "--platform", "cpu", *arguments) as it:
        yield it
