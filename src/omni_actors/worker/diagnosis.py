"""Why a worker could not load: what its exception says, and what is wrong with the files that it was given."""

from __future__ import annotations

from pathlib import Path

import msgspec

from omni_actors.pipelines.weights.intact import Damage, check_of, damage_of, described
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.worker.checks import OutputError, WarmUpError


def why_not_loaded(hello: Hello, error: Exception) -> ErrorInfo:
    """Return what the operator is told of an exception while loading. Where the stage's weights turn out to be damaged
    it names their folder, the files and the command that repairs them, since an exception about them seldom does."""
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
