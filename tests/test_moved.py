"""Names that have moved are found by their old address."""

from __future__ import annotations

import pytest

from omni_actors.moved import moved_names
from omni_actors.protocol.errors import OmniError


def test_an_old_name_gives_the_new_object_and_a_warning() -> None:
    find = moved_names("somewhere", {"OldError": "omni_actors.protocol.errors:OmniError"})
    with pytest.warns(DeprecationWarning, match=r"somewhere\.OldError is now omni_actors\.protocol\.errors\.OmniError"):
        assert find("OldError") is OmniError


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    find = moved_names("somewhere", {})
    with pytest.raises(AttributeError, match="module 'somewhere' has no attribute 'Nothing'"):
        find("Nothing")
