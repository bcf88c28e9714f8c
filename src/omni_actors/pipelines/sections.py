"""Fields of a request that no stage of it reads are refused, since they would be without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from omni_actors.pipelines.subgraph import Subgraph
from omni_actors.protocol.errors import invalid_request


def check_sections(needed: Subgraph, params: Mapping[str, Any]) -> None:
    """Check that what a request's sections say is read by a stage of its subgraph.

    A section that says nothing beyond its defaults may be there all the same. Raises 400 with the field as ``param``,
    or the section (``params.NAME``) where it has no fields of its own.
    """
    for name, field in unread(needed, params):
        known = ", ".join(sorted(needed.sections)) or "none"
        raise invalid_request(
            f"'{field or name}' would have no effect: no stage of this request reads the section '{name}'; "
            f"they read: {known}.",
            field or f"params.{name}",
            "unsupported_parameter",
        )


def unread(needed: Subgraph, params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields, as section and name, that say something in sections that no stage of the request reads. The name is
    empty for a section that is no struct."""
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
