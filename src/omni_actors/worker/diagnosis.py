"""The reason why a worker could not load: the exception, and damage to the model's files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from omni_actors.pipelines.weights.intact import Damage, check_of, damage_of, described
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.worker.checks import OutputError, WarmUpError


def why_not_loaded(hello: Hello, error: Exception) -> ErrorInfo:
    """Return the operator's error for an exception while loading. If the stage's weights are damaged, the error names
    the folder, the files and the command for the repair, since the exception itself seldom does."""
    if isinstance(error, OmniError):
        info = error.info
    else:
        info = ErrorInfo(message=str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}")
    folder = None if hello.model is None else Path(hello.model)
    message = info.message
    if isinstance(error, WarmUpError) and folder is not None:
        message = (
            f"{error}: the weights in {folder} are damaged, or they do not compute in {hello.dtype}. {check_of(folder)}"
        )
    if folder is not None and (damage := _damage(folder)):
        message = f"{described(damage, folder)}\nLoading them failed: {message}"
    return msgspec.structs.replace(info, message=message, stage=hello.stage)


def _damage(folder: Path) -> list[Damage]:
    try:
        return damage_of(folder)
    except OSError:
        return []
