"""A one-shot stage with a module of every kind that an engine prepares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from omni_actors.protocol.errors import OmniError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Result


class Adapter(GenerationAdapter[Work, Work]):
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        dtype = getattr(torch, self.hello.dtype)
        self._module = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.Conv1d(4, 4, 1, groups=4))
        self._module.to(self.hello.device, dtype).eval()
        self._inside = [torch.nn.Linear(4, 2).to(self.hello.device, dtype).eval()]
        return {}

    def open(self, work: Work) -> tuple[Work, Sequence[Work]]:
        raise NotImplementedError

    def run(self, items: Sequence[Work]) -> Sequence[Result | OmniError]:
        raise NotImplementedError
