"""Checks with names, run one after the other; their results are data."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping


class Skip(Exception):
    """A check has nothing to examine on this machine; the message says why."""


def expect(true: object, otherwise: str) -> None:
    """Raise AssertionError with a sentence unless a condition is true."""
    if not true:
        raise AssertionError(otherwise)


def run(checks: Mapping[str, Callable[[], None]]) -> dict[str, list[str]]:
    """Run the checks. Return name → ``["passed" | "failed" | "skipped", why]``. Each name is printed before its check
    runs, so that a process that dies in a check has the check's name as its last output."""
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
