"""The policy and the strategies by which a supervisor restarts its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""The children that are restarted after a failure, as in Erlang/OTP.

``one_for_one`` restarts the failed child alone. ``one_for_all`` restarts all children of the supervisor, because the
children share state. ``rest_for_one`` restarts the failed child and the children that were started after it, because a
child may depend on the children before it."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """The policy of a supervisor: when to restart a child, and when to give up.

    Failures are counted *in a row*. An incarnation that had been ready for ``healthy_s`` seconds when it failed starts
    a new row, so a setup that fails slowly counts like a setup that fails at once. With ``one_for_all`` and
    ``rest_for_one`` all children share one row. A supervisor that is restarted itself starts new rows.

    >>> from omni_actors.actors import Restarts
    >>> restarts = Restarts(limit=5, first_s=0.5, cap_s=3.0)
    >>> [restarts.delay(failures) for failures in (1, 2, 3, 4, 5)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """

    limit: int | None = 5
    """Failures in a row that are followed by a restart; the next failure escalates. ``None``: no failure escalates."""
    first_s: float = 0.05
    """Seconds before the first restart of a row. Every further restart of the row waits twice as long."""
    cap_s: float = 10.0
    """Seconds that a restart waits at most."""
    healthy_s: float = 60.0
    """Seconds of being ready after which a failure starts a new row."""

    def delay(self, failures: int) -> float:
        """Return the seconds to wait before a restart.

        Args:
            failures: The number of failures in a row, at least 1.
        """
        return min(self.cap_s, self.first_s * 2.0 ** min(failures - 1, 100))
