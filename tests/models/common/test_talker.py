"""What a talker keeps of a request."""

from __future__ import annotations

import pytest
import torch

from omni_actors.models.common.talker import Rows

WIDTH, BATCH = 8, 64


@pytest.mark.parametrize("count", [0, 1, Rows.TOGETHER - 1, Rows.TOGETHER, 3 * Rows.TOGETHER + 5])
def test_rows_are_found_by_their_place(count: int) -> None:
    given = torch.randn(count, WIDTH)
    rows = Rows()
    rows.extend(given)
    assert len(rows) == count
    assert all(torch.equal(rows[place], given[place]) for place in range(count))
    with pytest.raises(IndexError):
        rows[count]


def test_rows_do_not_keep_what_steps_made_for_other_requests() -> None:
    rows, count = Rows(), 20 * Rows.TOGETHER
    for _ in range(count):
        rows.append(torch.randn(BATCH, WIDTH)[3])
    held = {rows[place].untyped_storage().data_ptr(): rows[place].untyped_storage().nbytes() for place in range(count)}
    assert sum(held.values()) == count * WIDTH * 4
    rows.append(torch.randn(BATCH, WIDTH)[3])
    assert rows[count].untyped_storage().nbytes() == BATCH * WIDTH * 4
