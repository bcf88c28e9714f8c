"""The earlier names of the methods of :class:`Faults`, a class of the author's kit."""

from __future__ import annotations

import pytest

from omni_actors.author import Faults, Hello
from omni_actors.worker.isolation import BrokenModel


@pytest.fixture
def faults() -> Faults:
    return Faults(Hello(version=1, stage="a", replica=0, incarnation=1, engine="", adapter=""))


def test_earlier_names_still_work_with_a_warning(faults: Faults) -> None:
    with pytest.warns(DeprecationWarning, match="classify"):
        assert faults.weigh(MemoryError()) is faults.classify(MemoryError())
    with pytest.warns(DeprecationWarning, match="is_out_of_memory"):
        assert faults.about_memory(MemoryError()) is True
    with pytest.warns(DeprecationWarning, match="self_test"):
        faults.prove(lambda: None, ValueError("a bad input"))


def test_a_self_test_that_fails_means_a_broken_model(faults: Faults) -> None:
    def known() -> None:
        raise ValueError("a weight is gone")

    with pytest.raises(BrokenModel, match="a weight is gone"):
        faults.self_test(known, ValueError("a bad input"))
