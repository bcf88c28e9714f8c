"""The settings of a step cache: of a stage, and of a request. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from omni_actors.protocol.errors import OmniError, invalid_request


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The settings of one picture's step cache.

    Args:
        threshold: The relative change of the first blocks' residual below which the other blocks' residual of the last
            full step is used again; 0 for no cache.
        first_blocks: The number of blocks at the beginning that every step computes, and whose residual is compared.
        last_blocks: The number of blocks at the end that every step computes.
        warmup: The number of steps at the beginning that are computed in full.
        max_skips: Most steps in a row that use the cache; 0 for no bound.
    """

    threshold: float = 0.0
    first_blocks: int = 1
    last_blocks: int = 0
    warmup: int = 0
    max_skips: int = 0

    @property
    def on(self) -> bool:
        """Whether steps can be skipped at all."""
        return self.threshold > 0


NAMES = tuple(field.name for field in fields(CacheSettings))


def stage_settings(options: Mapping[str, Any]) -> CacheSettings:
    """Return the settings for requests that name none, from a stage's options (``cache_threshold``, …)."""
    return CacheSettings(**{name: options[f"cache_{name}"] for name in NAMES})


def request_settings(given: Mapping[str, float], usual: CacheSettings, blocks: int) -> CacheSettings:
    """Return the settings of one request.

    Args:
        given: The settings that the request names.
        usual: The stage's settings, for the others.
        blocks: The number of the model's blocks that a cache can skip; 0 for a model that no cache fits.

    Raises:
        OmniError: The settings are none that the model can follow; status 400, with ``param`` ``cache``.
    """
    for name, value in given.items():
        if name not in NAMES:
            raise _refusal(f"'cache' has no setting {name!r}; its settings are {', '.join(NAMES)}")
        if not math.isfinite(value) or value < 0:
            raise _refusal(f"'{name}' of 'cache' must be a number of at least 0")
        if name != "threshold" and value != int(value):
            raise _refusal(f"'{name}' of 'cache' must be a whole number")
    numbers = {name: value if name == "threshold" else int(value) for name, value in given.items()}
    settings = replace(usual, **numbers)  # type: ignore[arg-type]
    if not settings.on:
        return settings
    if not blocks:
        raise _refusal("This model has no step cache; leave out 'cache'")
    if settings.first_blocks < 1:
        raise _refusal("'first_blocks' of 'cache' must be at least 1")
    if settings.first_blocks + settings.last_blocks >= blocks:
        raise _refusal(
            f"'first_blocks' and 'last_blocks' of 'cache' are {settings.first_blocks + settings.last_blocks} together, "
            f"and must be less than the model's {blocks} blocks"
        )
    return settings


def _refusal(message: str) -> OmniError:
    return invalid_request(f"{message}.", "cache")
