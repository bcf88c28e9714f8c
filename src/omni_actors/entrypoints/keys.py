"""Keys that clients send as ``Authorization: Bearer KEY``: API keys and admin keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence


def check_key(key: str, name: str) -> None:
    """Refuse a key that no client could send, or that anybody could.

    Args:
        key: The key as an operator gave it.
        name: What the operator calls it (an option or a variable), for the message.

    Raises:
        ValueError: The key is empty, or has blanks around it (HTTP removes them on the way).
    """
    if not key.strip():
        raise ValueError(f"{name} is empty: give a key, or leave it out")
    if key != key.strip():
        raise ValueError(f"{name} has blanks around the key: HTTP removes them, so no client could send it")


def bearer(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the key that a request carries, or ``None`` if it carries none. Names in ``headers`` are in lower case."""
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else None


class Keys:
    """A set of keys, kept as digests. The time of a search reveals nothing about the keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, given: bytes | None) -> int | None:
        """Return the place of a key in this set, or ``None``. The key is compared with every member,
        in constant time."""
        if given is None:
            return None
        digest = hashlib.sha256(given).digest()
        found = None
        for place, known in enumerate(self._digests):
            if hmac.compare_digest(digest, known):
                found = place
        return found
