"""Capture of decode steps as graphs when an engine loads, where the device can replay them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter
from omni_actors.worker.engines.autoregressive.runner import ModelRunner
from omni_actors.worker.isolation import Faults

log = logging.getLogger(__name__)


def capture_steps(
    runner: ModelRunner,
    adapter: AutoregressiveAdapter,
    faults: Faults,
    max_batch: int,
    max_len: int,
    progress: Callable[[str, float | None], None],
) -> None:
    """Capture decode steps of up to ``max_batch`` sequences, and what the adapter computes after them.

    Where that fails, the failure is logged and the steps run as they are written. Raises only an error that says that
    the device is lost.
    """
    graphs = faults.runtime.graphs()
    if graphs is None:
        return
    if runner.shared:
        log.info("decode steps run eagerly: other ranks take part in them")
        return
    progress("recording decode steps", None)
    try:
        count = runner.capture(graphs, max_batch, max_len)
        log.info("%d decode steps are recorded as graphs", count)
        adapter.capture(graphs, max_batch)
    except RuntimeError as error:
        faults.classify(error)
        what = "decode steps are" if runner.captured is None else "what follows a decode step is"
        log.warning("%s not recorded (%s): %s", what, type(adapter).__name__, error)
