"""Actors belong to the thread of their trio run; what other threads try is refused."""

from __future__ import annotations

from threading import get_ident

__all__ = ["check_thread", "get_ident"]


def check_thread(owner: int, whose: str, call: str) -> None:
    """Raise ``RuntimeError`` unless this is the thread ``owner`` (a :func:`threading.get_ident`)."""
    if get_ident() != owner:
        how = "trio.from_thread.run" if call == "ask" else "trio.from_thread.run_sync"
        raise RuntimeError(
            f"{call}() of {whose} was called in another thread than that of its trio run, where nothing would wake the "
            f"receiver; call it through {how}(..., trio_token=token), with the token of that run "
            "(trio.lowlevel.current_trio_token())"
        )
