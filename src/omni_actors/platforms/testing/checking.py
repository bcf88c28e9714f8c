"""Checks by name, run one after the other: what became of each is data."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping


class Skip(Exception):
    """This check has nothing to look at here: the message says why."""


def expect(true: object, otherwise: str) -> None:
    """Raises AssertionError with that sentence unless it is true."""
    if not true:
        raise AssertionError(otherwise)


def run(checks: Mapping[str, Callable[[], None]]) -> dict[str, list[str]]:
    """Name → ``["passed" | "failed" | "skipped", why]``. The name of each is printed before it runs, so that the last
    words of a process that dies in one are its name."""
    found = {}
    for name, check in checks.items():
        print(f"in {name}", file=sys.stderr, flush=True)
        found[name] = _one(check)
    return found


def _one(check: Callable[[], None]) -> list[str]:
    try:
        check()
    except Skip as skipped:
        return ["skipped", str(skipped)]
    except AssertionError as failed:
        return ["failed", str(failed)]
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        return ["failed", f"{type(error).__name__}: {error} ({place})".replace("\n", " ")]
    return ["passed", ""]
