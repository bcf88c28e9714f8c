"""The check that keeps actors in the thread of their trio run."""

from __future__ import annotations

from threading import get_ident

__all__ = ["check_thread", "get_ident"]


def check_thread(owner: int, whose: str, call: str) -> None:
    """Check that the current thread is the thread ``owner``, a number from :func:`threading.get_ident`.

    Args:
        owner: The thread of the trio run.
        whose: The actor or supervisor, for the message of the error.
        call: The name of the method that was called, for the message of the error.

    Raises:
        RuntimeError: The current thread is another one. A trio run cannot be woken from there.
    """
    if get_ident() != owner:
        how = "trio.from_thread.run" if call == "ask" else "trio.from_thread.run_sync"
        raise RuntimeError(
            f"{call}() of {whose} was called in another thread than the thread of its trio run, where the call would "
            f"wake nobody; call it through {how}(..., trio_token=token), with the token of that run "
            "(trio.lowlevel.current_trio_token())"
        )
