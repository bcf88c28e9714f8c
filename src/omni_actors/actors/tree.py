"""Facts about the tree of supervisors and actors: what telemetry shows and watchers are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from omni_actors.actors.ref import ActorRef


@dataclass(frozen=True, slots=True)
class Down:
    """A life of an actor ended: what those who :meth:`watch <omni_actors.actors.ref.ActorRef.watch>` it are told."""

    ref: ActorRef[Any]
    error: Exception | None
    """Why it crashed; ``None`` when it was stopped or cancelled."""
    final: bool
    """Whether no other life follows."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A supervisor or an actor as it is at this moment, with what is below it. ``str`` draws it."""

    name: str
    kind: Literal["actor", "supervisor"]
    state: str
    depth: int = 0
    """Messages that wait, of at most ``capacity``."""
    capacity: int = 0
    restarts: int = 0
    failures: int = 0
    """The latest failures in a row."""
    last_error: str | None = None
    children: tuple[Branch, ...] = ()

    def __str__(self) -> str:
        line = f"{self.name} [{self.state}]"
        if self.kind == "actor":
            line += f" {self.depth}/{self.capacity}"
        if self.last_error:
            line += f" restarts {self.restarts}, last after {self.last_error}"
        return "\n".join([line, *("  " + below for child in self.children for below in str(child).splitlines())])


def describe(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"
