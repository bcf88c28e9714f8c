"""The facts of an error that its client gets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omni_actors.entrypoints.openai.errors import error_headers
from omni_actors.protocol.errors import (
    OmniError,
    link_lost,
    not_resumable,
    out_of_memory,
    stage_died,
    stage_replaced,
    stage_unavailable,
)


@pytest.mark.parametrize("make", [stage_unavailable, stage_died, stage_replaced, link_lost, not_resumable])
def test_an_error_that_will_pass_has_a_retry_after(make: Callable[[str], OmniError]) -> None:
    info = make("llm").info
    assert (info.status, info.stage) == (503, "llm")
    assert int({name.lower(): value for name, value in error_headers(info)}["retry-after"]) >= 1


def test_an_error_that_will_not_pass_has_no_retry_after() -> None:
    info = out_of_memory("llm").info
    assert info.status == 503
    assert "retry-after" not in [name.lower() for name, _ in error_headers(info)]
