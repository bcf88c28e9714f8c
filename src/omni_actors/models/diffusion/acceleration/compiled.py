"""Compilation by region: a denoiser's repeated blocks are compiled one kind at a time, and not the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import nn
from torch._dynamo.callback import CallbackArgs, callback_handler

from omni_actors.protocol.errors import invalid_request


class CompiledBlocks:
    """The compiled blocks of one loaded model.

    Blocks of one kind share their compiled code. A forward of a shape that needs other code compiles in the middle of
    a step, at any time of the worker's life; :meth:`forward` tells the worker of it.

    Args:
        compiling: The context in which the worker may take the time of a compilation.
    """

    backend: ClassVar[str] = "inductor"
    """torch's name of the compiler behind its tracing."""

    def __init__(self, compiling: Callable[[], AbstractContextManager[object]]) -> None:
        self._compiling = compiling
        self._told = ExitStack()
        self.compilations = 0
        self.blocks = 0

    def install(self, blocks: Sequence[nn.Module]) -> None:
        """Compile these blocks, each when it is first called. Sizes are variables of the code as far as possible."""
        if not blocks:
            raise invalid_request("This model has no repeated blocks to compile; leave out the option 'compile'.")
        for block in blocks:
            block.compile(backend=self.backend, dynamic=True)
        self.blocks = len(blocks)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Run the block of code, which calls the model; compilations inside are counted and told to the worker."""
        if not self.blocks:
            yield
            return
        callback_handler.register_start_callback(self._begins)
        callback_handler.register_end_callback(self._ends)
        try:
            # Recompilations by shape are the point here; torch's own bound would fall back to slow steps in silence.
            with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
                yield
        finally:
            self._told.close()
            callback_handler.remove_start_callback(self._begins)
            callback_handler.remove_end_callback(self._ends)

    def _begins(self, _: CallbackArgs) -> None:
        self.compilations += 1
        self._told.enter_context(self._compiling())

    def _ends(self, _: CallbackArgs) -> None:
        self._told.close()

    def counters(self) -> dict[str, Any]:
        """Return the number of compilations."""
        return {"compilations_total": self.compilations} if self.blocks else {}


RECOMPILE_LIMIT = 64
"""Most versions of one block's code; torch's default is 8."""
