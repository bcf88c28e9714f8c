"""Pulling a public checkpoint and the further repositories named by the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from omni_actors.models.weights.hub.companions import companions_of
from omni_actors.models.weights.hub.download import Reporter, download
from omni_actors.models.weights.hub.records import is_whole
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.planning.choose import pipeline_of_folder
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.weights.hub import snapshot_folder
from omni_actors.protocol.errors import OmniError


def bring_public(
    name: str,
    reporter: Reporter,
    *,
    revision: str | None = None,
    check: bool = False,
    pipeline: str | None = None,
    strict: bool = True,
    wanted: Callable[[], None] = lambda: None,
) -> Path:
    """Fetch the missing or damaged files of a public checkpoint and of the repositories named by the checkpoint.

    The pipeline chooses further files: the forced pipeline, the pipeline that names the checkpoint, or the pipeline
    chosen by ``config.json``. A checkpoint without a pipeline is refused before weights are fetched if ``strict``.
    Returns the checkpoint's folder. Raises :class:`OmniError`, for an unknown name with the nearest known name.
    """
    registry = Registry.installed()

    def patterns(folder: Path) -> Sequence[str]:
        try:
            named = registry.load(pipeline) if pipeline else registry.for_checkpoint(name)
            return (named or pipeline_of_folder(folder, registry)).files
        except PlanError:
            if strict:
                raise
            return ()

    try:
        folder = download(name, reporter, revision=revision, check=check, patterns=patterns, wanted=wanted)
    except OmniError as error:
        if error.info.code != "weights_not_found":
            raise
        known = nearest(name, registry.checkpoints())
        message = f"{error.info.message[:-1]}; {known}" if "did you mean" in known else error.info.message
        raise PlanError(message) from error
    bring_companions(folder, reporter, wanted, check=check)
    return folder


def bring_companions(folder: Path, reporter: Reporter, wanted: Callable[[], None], *, check: bool = False) -> None:
    """Fetch the missing repositories named by a checkpoint's folder."""
    for name in companions_of(folder) if check else companions_lacking(folder):
        download(name, reporter, check=check, wanted=wanted)


def companions_lacking(folder: Path) -> list[str]:
    """Return the missing or incomplete repositories named by a checkpoint's folder."""
    return [name for name in companions_of(folder) if not is_whole(snapshot_folder(name))]
