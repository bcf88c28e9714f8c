"""Values that are nested too deeply."""

from __future__ import annotations

from typing import Any

import pytest

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.nesting import MOST, check_nesting, too_deep


def nested(levels: int, kind: type[Any] = dict) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind is dict else [value, 2]
    return value


@pytest.mark.parametrize("kind", [dict, list])
def test_a_value_may_have_a_hundred_levels(kind: type[Any]) -> None:
    check_nesting(nested(MOST, kind), "it")
    with pytest.raises(OmniError, match=f"'it' is nested more than {MOST} levels deep") as caught:
        check_nesting(nested(MOST + 1, kind), "it")
    assert (caught.value.info.status, caught.value.info.param) == (400, "it")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a":"{[\\"","it":%s}', "it"),
        (b'{"a":{"b":1},"c":[{"it":2}],"it":[%s],"d":1}', "it"),
        (b"[%s]", None),
        (b'{"a":"' + b'","b":"' * 60_000 + b'","it":%s}', None),
    ],
)
def test_the_field_that_is_too_deep_is_named(body: bytes, param: str | None) -> None:
    """Brackets in a text do not count, and a field late in the body is not looked for."""
    info = too_deep(body % (b'{"x":' * 2000 + b"1" + b"}" * 2000)).info
    assert (info.status, info.param) == (400, param)
    assert "nested too deeply" in info.message
