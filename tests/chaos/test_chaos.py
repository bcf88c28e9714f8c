"""A short run of the chaos; ``make chaos`` is the long one, of another seed each time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.__main__ import run


@pytest.mark.slow
@pytest.mark.deadline(240)
async def test_faults_under_load_hang_nothing_change_nothing_and_leave_nothing(tmp_path: Path) -> None:
    done, outcomes, wrong = await run("stub-voice", 20.0, 1, tmp_path / "server.log")
    said = f"{dict(done)}, {dict(outcomes.counts)}"
    assert not outcomes.wrong, said
    assert not outcomes.hung, said
    assert not outcomes.untyped, f"{said}: {outcomes.untyped[:5]}"
    assert not wrong, f"{said}: {wrong}"
    assert outcomes.counts["whole"] > 50, said


@pytest.mark.slow
@pytest.mark.deadline(120)
async def test_faults_under_load_cost_no_picture(tmp_path: Path) -> None:
    done, outcomes, wrong = await run("stub-image", 6.0, 1, tmp_path / "server.log")
    said = f"{dict(done)}, {dict(outcomes.counts)}"
    assert not [*outcomes.wrong, *outcomes.hung, *outcomes.untyped, *wrong], said
    assert outcomes.counts["whole"] > 10, said


@pytest.mark.slow
@pytest.mark.deadline(120)
async def test_a_full_disk_under_its_log_does_not_stop_a_server() -> None:
    _, outcomes, wrong = await run("stub-voice", 4.0, 1, Path("/dev/full"))
    assert not [*outcomes.wrong, *outcomes.hung, *outcomes.untyped, *wrong]
    assert outcomes.counts["whole"] > 5
