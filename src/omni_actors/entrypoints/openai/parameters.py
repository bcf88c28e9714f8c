"""Parameters of the model's own: an object beside a request's other fields."""

from __future__ import annotations

from typing import Any, Protocol

from omni_actors.entrypoints.services import Services
from omni_actors.pipelines.parameters import SECTION, complete
from omni_actors.protocol.errors import invalid_request

FIELDS = ("model_parameters", "vllm_xargs")
"""The names of the object: this server's, and vLLM's for the same."""


class HasParameters(Protocol):
    """A body that may have parameters of the model's own."""

    model_parameters: dict[str, Any] | None
    vllm_xargs: dict[str, Any] | None


def own_parameters(
    services: Services, body: HasParameters, task: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> dict[str, Any]:
    """Return the section with the model's own parameters, or nothing if the request has none and the defaults apply.

    Raises 400 for a name that the model does not know, for a value that the model does not take, and if no stage of
    this request reads the parameters.
    """
    given = {name: value for name in FIELDS if (value := getattr(body, name)) is not None}
    if not given:
        return {}
    if len(given) > 1:
        raise invalid_request(f"'{FIELDS[0]}' and '{FIELDS[1]}' are the same field: give only one.", FIELDS[1])
    ((name, values),) = given.items()
    found = complete(services.plan.pipeline.parameters, values, name)
    if SECTION in services.needed(task, inputs, outputs).sections:
        return {SECTION: found}
    if values:
        message = f"'{name}' has no effect: no stage of this request reads it."
        raise invalid_request(message, name, "unsupported_parameter")
    return {}
