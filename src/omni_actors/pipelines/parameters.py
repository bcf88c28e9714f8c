"""A model family's own request parameters: their declaration and their values in a request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omni_actors.pipelines.declaration import Parameter, Pipeline
from omni_actors.pipelines.nearest import nearest
from omni_actors.protocol.errors import invalid_request

SECTION = "parameters"
"""The section of a request with the family's parameters. A stage that reads the section gets every declared
parameter."""


def complete(declared: Sequence[Parameter], given: object, param: str = SECTION) -> dict[str, Any]:
    """Return the given parameters, checked, with the defaults of the others. Raises 400 for anything but a mapping of
    declared names to values that they take; ``param`` is what the client called it."""
    if not isinstance(given, Mapping):
        raise invalid_request(f"'{param}' takes an object of names and values.", param, "invalid_value")
    known = {it.name: it for it in declared}
    for name, value in given.items():
        if name not in known:
            hint = nearest(str(name)[:100], known) if known else "this model has none"
            message = f"This model has no parameter '{str(name)[:100]}'; {hint}"
            raise invalid_request(message, f"{param}.{str(name)[:100]}", "unknown_parameter")
        if wrong := _against(known[name], value):
            raise invalid_request(f"'{param}.{name}' takes {wrong}.", f"{param}.{name}", "invalid_value")
    return {it.name: given.get(it.name, it.default) for it in declared}


def parameter_faults(pipeline: Pipeline) -> Iterator[str]:
    """Say what is wrong with the declaration of a pipeline's parameters."""
    names = [it.name for it in pipeline.parameters]
    for it in pipeline.parameters:
        if not it.name.isidentifier() or names.count(it.name) > 1:
            yield f"parameter '{it.name}': the name must be an identifier, and unique"
        if type(it.default) not in (bool, int, float, str):
            yield f"parameter '{it.name}': its default must be a bool, a number or a text, whose type values must have"
        elif wrong := _against(it, it.default):
            yield f"parameter '{it.name}': its own default is refused ({wrong})"
    if pipeline.parameters and all(SECTION not in stage.sections for stage in pipeline.stages):
        yield f"it declares parameters, and none of its stages reads the section '{SECTION}'"


def _against(declared: Parameter, value: object) -> str:
    """Say which values the parameter takes; empty if it takes this one."""
    kind = type(declared.default)
    if declared.choices:
        return "" if value in declared.choices else f"one of {', '.join(map(repr, declared.choices))}"
    if kind is bool:
        return "" if isinstance(value, bool) else "true or false"
    if kind is str:
        fits = isinstance(value, str) and len(value) <= MOST_CHARACTERS
        return "" if fits else f"a text of at most {MOST_CHARACTERS} characters"
    bounds = " ".join(
        f"{word} {bound:g}" for word, bound in (("from", declared.least), ("to", declared.most)) if bound is not None
    )
    what = f"{'a whole number' if kind is int else 'a number'} {bounds}".rstrip()
    fits = isinstance(value, int) if kind is int else isinstance(value, int | float)
    if not fits or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return what
    least, most = declared.least, declared.most
    inside = (least is None or value >= least) and (most is None or value <= most) and abs(value) < 2**63
    return "" if inside else what


MOST_CHARACTERS = 4096
"""Most characters of a parameter that is a text."""
