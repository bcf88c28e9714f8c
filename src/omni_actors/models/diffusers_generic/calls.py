"""One call of a diffusers pipeline, stopped after each of its steps.

The call runs in a thread of its own, and only while the engine's thread waits for it: the two pass a baton. The thread
stops where its scheduler's timesteps are set (the prompt is encoded by then) and behind each of the scheduler's steps.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

STOP_S = 60.0
"""Seconds that an abandoned call has to unwind. The call is at a stop of its own, so nothing is computed any more."""


class Abandoned(BaseException):
    """The call is over before its end. No code of the pipeline handles this exception."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The call has set its timesteps."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The call has done a step: the denoiser's prediction as the scheduler got it, and the latents before and after.

    ``clean`` are the clean latents that the scheduler says the prediction points at, if it says so.
    """

    prediction: torch.Tensor
    before: torch.Tensor
    latents: torch.Tensor
    clean: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Returned:
    """The call has returned."""

    result: Any


class PipelineCall:
    """One call of a pipeline.

    Args:
        pipe: The pipeline. Its components are shared; its scheduler and its own attributes are copied.
        arguments: The arguments of the call.
    """

    def __init__(self, pipe: Any, arguments: Mapping[str, Any]) -> None:
        self.pipe = copy.copy(pipe)
        self.pipe.scheduler = self._watched(copy.deepcopy(pipe.scheduler))
        self._arguments = dict(arguments)
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._event: Scheduled | Stepped | Returned | BaseException | None = None

    @property
    def scheduler(self) -> Any:
        """The call's own scheduler."""
        return self.pipe.scheduler

    def resume(self) -> Scheduled | Stepped | Returned:
        """Run the call to its next stop, and say where that is. An exception of the pipeline is raised here."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)
            self._thread.start()
        self._go.release()
        self._stopped.acquire()
        event = self._event
        assert event is not None
        if isinstance(event, BaseException):
            raise event
        return event

    def close(self) -> None:
        """End the call, wherever it stands. A call that is over is left as it is."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._abandoned = True
        self._go.release()
        thread.join(STOP_S)

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._abandoned:
                with torch.inference_mode():
                    self._event = Returned(self.pipe(**self._arguments))
        except Abandoned:
            self._event = None
        except BaseException as error:
            self._event = error
        finally:
            self._arguments.clear()
            self._stopped.release()

    def _stop(self, event: Scheduled | Stepped) -> None:
        self._event = event
        self._stopped.release()
        self._go.acquire()
        if self._abandoned:
            raise Abandoned

    def _watched(self, scheduler: Any) -> Any:
        """Return the scheduler with stops behind ``set_timesteps`` and ``step``."""
        step, set_timesteps = scheduler.step, scheduler.set_timesteps

        @functools.wraps(set_timesteps)
        def setting(*args: Any, **kwargs: Any) -> Any:
            found = set_timesteps(*args, **kwargs)
            self._stop(Scheduled())
            return found

        taken = inspect.signature(step)

        @functools.wraps(step)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            bound = taken.bind(*args, **kwargs)
            named = bound.arguments.get("return_dict", True)
            if "return_dict" in taken.parameters:
                bound.arguments["return_dict"] = True
            found = step(*bound.args, **bound.kwargs)
            whole = not isinstance(found, tuple)
            clean = getattr(found, "pred_original_sample", getattr(found, "denoised", None)) if whole else None
            latents = found.prev_sample if whole else found[0]
            self._stop(Stepped(bound.arguments["model_output"], bound.arguments["sample"], latents, clean))
            return found if named or not whole else found.to_tuple()

        scheduler.step, scheduler.set_timesteps = stepping, setting
        return scheduler
