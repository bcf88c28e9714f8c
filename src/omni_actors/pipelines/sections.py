"""The check that every field of a request is read by a stage of its subgraph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from omni_actors.pipelines.subgraph import Subgraph
from omni_actors.protocol.errors import invalid_request


def check_sections(needed: Subgraph, params: Mapping[str, Any]) -> None:
    """Check that every field that a request sets is read by a stage of its subgraph.

    Args:
        needed: The request's subgraph.
        params: The request's sections by name. A section whose fields all have their defaults may be unread.

    Raises:
        OmniError: 400; ``param`` is the field, or ``params.NAME`` for a section without fields.
    """
    for name, field in unread(needed, params):
        known = ", ".join(sorted(needed.sections)) or "none"
        raise invalid_request(
            f"'{field or name}' has no effect: no stage of this request reads the section '{name}'; "
            f"they read: {known}.",
            field or f"params.{name}",
            "unsupported_parameter",
        )


def unread(needed: Subgraph, params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each field that is set and that no stage reads, as section and name. The name is empty for a section that
    is no struct."""
    if params.keys() <= needed.sections:
        return
    for name, section in params.items():
        if name in needed.sections:
            continue
        if not isinstance(section, msgspec.Struct):
            if section:
                yield name, ""
            continue
        for field in msgspec.structs.fields(section):
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            if getattr(section, field.name) != default:
                yield name, field.name
