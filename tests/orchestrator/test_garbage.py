"""What a request holds dies with it: for the collector of cycles, which is seldom woken, nothing is left."""

from __future__ import annotations

import gc

import pytest

from omni_actors.protocol.errors import OmniError

from .spine import collect, stub, stub_orchestrator

_MANY = 40


@pytest.mark.parametrize("fails", [False, True])
async def test_requests_leave_no_cycles(fails: bool) -> None:
    async with stub_orchestrator() as orchestrator:

        async def one() -> None:
            if fails:
                with pytest.raises(OmniError):
                    await collect(orchestrator, stub(fail="b"))
            else:
                await collect(orchestrator, stub(text="hello"))

        await one()
        gc.collect()
        gc.disable()
        try:
            for _ in range(_MANY):
                await one()
            found = gc.collect()
        finally:
            gc.enable()
        assert found < _MANY
