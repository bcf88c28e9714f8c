"""Snapshots of the tree of supervisors and actors, for telemetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_actors.moved import moved_names

__getattr__ = moved_names(__name__, {"Down": "omni_actors.actors.ref:Down"})


@dataclass(frozen=True, slots=True)
class Branch:
    """A supervisor or an actor at the moment of the snapshot, with its children. ``str`` draws the branch.

    >>> from omni_actors.actors import Branch
    >>> counter = Branch("counter", "actor", "running", depth=3, capacity=256)
    >>> print(Branch("app", "supervisor", "running", children=(counter,)))
    app [running]
      counter [running] 3/256
    """

    name: str
    kind: Literal["actor", "supervisor"]
    state: str
    depth: int = 0
    """Messages that wait in the mailbox, at most ``capacity``."""
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
    """Return the class and the text of an error in one line, or ``None`` for no error."""
    return None if error is None else f"{type(error).__name__}: {error}"
