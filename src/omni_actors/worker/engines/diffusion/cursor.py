"""A cursor: one picture under way, with its whole state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work


class Phase(Enum):
    """The part of the work that a cursor needs next."""

    INPUT = "input"
    """Input on a port has not ended."""
    ENCODE = "encode"
    DENOISE = "denoise"
    DECODE = "decode"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of a cursor in bytes: an estimate from sizes alone, made before any work.

    Args:
        state: From the begin of denoising to the end of the cursor: latents, the scheduler's history, conditioning,
            step caches.
        encode: Beside other state, at the peak of encoding the prompt and the pictures.
        step: Beside the state, at the peak of a denoising step, for this cursor's rows.
        decode: Beside the state, at the peak of decoding.
    """

    state: int
    encode: int = 0
    step: int = 0
    decode: int = 0

    @property
    def peak(self) -> int:
        """The most that the cursor needs at any time."""
        return max(self.encode, self.state + max(self.step, self.decode))


@dataclass(eq=False, slots=True)
class Cursor:
    """One picture under way.

    The engine owns ``phase``, ``begun``, ``step`` and ``restoring``; the adapter sets the rest in
    :meth:`DiffusionAdapter.open`, :meth:`DiffusionAdapter.begin` and :meth:`DiffusionAdapter.advance`. Nothing of a
    cursor is shared with another one but what neither changes (a request's conditioning).

    Args:
        work: The request.
        image: The section ``image`` of the request, with the stage's defaults filled in.
        index: The picture among the ``n`` of the request.
        seed: The seed of this picture alone: making one picture with this seed makes the picture again.
        width: The width in pixels.
        height: The height in pixels.
        steps: The number of denoising steps.
        footprint: The estimate of the cursor's memory.
        weight: Latent tokens x guidance branches of one step: the unit of remaining work.
    """

    work: Work
    image: ImageGeneration
    index: int
    seed: int
    width: int
    height: int
    steps: int
    footprint: Footprint
    weight: int = 1
    phase: Phase = Phase.ENCODE
    begun: bool = False
    """Whether :meth:`DiffusionAdapter.begin` has returned."""
    step: int = 0
    """Denoising steps that are done."""
    skipped: int = 0
    """Steps whose forward a step cache answered, wholly or in part."""
    inputs: dict[str, list[Payload]] = field(default_factory=dict)
    """Input by port, in order; shared by the cursors of a request and not to be changed."""
    restoring: Payload | None = None
    """The payload of another stage from which the picture is to go on, until it does."""
    conditioning: Any = None
    """What :meth:`DiffusionAdapter.encode` returned."""
    latents: Any = None
    scheduler: Any = None
    """The cursor's own scheduler object, with its own counter and history."""
    timesteps: Sequence[Any] = ()
    generator: Any = None
    """The source of the cursor's draws; every draw is a function of the seed and the step."""
    state: dict[str, Any] = field(default_factory=dict)
    """The family's own state (image tokens of an edit, sizes, step caches)."""

    @property
    def key(self) -> int:
        """The request's key."""
        return self.work.key

    @property
    def over(self) -> bool:
        """Whether the cursor gets no more work: its picture has left, or the request has ended otherwise."""
        return self.phase is Phase.DONE

    @property
    def remaining(self) -> int:
        """The work of the steps that are left, in latent tokens."""
        return (self.steps - self.step) * self.weight
