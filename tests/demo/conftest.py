"""One served demo for the tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_actors.models.weights.cache import CACHE_VARIABLE, cache_root

from .server import Server, serving
from .watch import Watch


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """What the served demo does besides."""
    return Watch.begin(tmp_path_factory.mktemp("watch"))


@pytest.fixture(scope="session")
def server(demo_weights: Path, watch: Watch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = watch.environment | {CACHE_VARIABLE: str(cache_root())}
    with serving(tmp_path_factory.mktemp("demo"), environment=environment) as it:
        yield it
