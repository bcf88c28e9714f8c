"""Several choices of one request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import ar_driver, tiny_models


@pytest.mark.parametrize(
    "sampling", [{"max_tokens": 5, "temperature": 1.0, "seed": 1}, {"max_tokens": 0, "echo": True}]
)
def test_choices_that_end_in_the_same_step_all_arrive(tmp_path: Path, sampling: dict[str, Any]) -> None:
    adapter = ar_driver.load_adapter(tiny_models.save(tmp_path))
    engine = ar_driver.engine_of(adapter)
    works = [ar_driver.work(key, [1, 2, 3], n=3, ignore_eos=True, **sampling) for key in range(4)]
    out = ar_driver.run(engine, works)
    for key in range(4):
        assert [out.answers[key][i].finish_reason for i in range(3)] == ["length"] * 3
        assert out.usage[key].completion_tokens == 3 * sampling["max_tokens"]
    ar_driver.assert_idle(engine)
