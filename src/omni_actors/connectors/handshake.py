"""The handshake in which two ends of a TCP link authenticate each other before any frame.

Both ends have the link's secret from the orchestrator, over channels of their own. Each end proves its knowledge of the
secret by a keyed hash (HMAC-SHA256) over both ends' fresh random numbers, the link's id and its own role, so that an
answer can be neither repeated nor reflected::

    opening end    → accepting end    greeting:   magic and version, the link's id, a nonce
    accepting end  → opening end      challenge:  a nonce, proof of the accepting end
    opening end    → accepting end    proof of the opening end, and from here on frames

The frames behind the handshake are protected against accidents (a checksum), not against somebody with the power to
change packets on their way: across an untrusted network, put the links into a tunnel.

    >>> import secrets
    >>> secret = secrets.token_bytes(SECRET_BYTES)
    >>> opening = Opening(7, secret, version=1)
    >>> link_of(opening.greeting, version=1)
    7
    >>> accepting = Accepting(7, secret, opening.greeting)
    >>> accepting.check(opening.answer(accepting.challenge))  # both ends are sure of each other
    >>> accepting.check(bytes(PROOF_BYTES))
    Traceback (most recent call last):
    ...
    omni_actors.connectors.handshake.Refused: the caller has not proved who it is
"""

from __future__ import annotations

import hmac
import secrets
import struct

MAGIC = b"omnilink"
SECRET_BYTES = 32
NONCE_BYTES = 32
_PROOF_BYTES = 32

_GREETING = struct.Struct(f"<8sBQ{NONCE_BYTES}s")
GREETING_BYTES = _GREETING.size
CHALLENGE_BYTES = NONCE_BYTES + _PROOF_BYTES
PROOF_BYTES = _PROOF_BYTES


class Refused(Exception):
    """The other end failed to authenticate, or speaks another version. The text contains nothing secret."""


class Opening:
    """The handshake of the end that opens the connection. ``version`` is the protocol's."""

    def __init__(self, link: int, secret: bytes, version: int) -> None:
        _check(secret)
        self._link = link
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.greeting = _GREETING.pack(MAGIC, version, link, self._nonce)

    def answer(self, challenge: bytes) -> bytes:
        """Return the proof for the accepting end's challenge. Raises :class:`Refused`."""
        theirs, proof = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        if not hmac.compare_digest(proof, _prove(self._secret, b"accept", self._link, self._nonce, theirs)):
            raise Refused("the accepting end has not proved who it is")
        return _prove(self._secret, b"open", self._link, self._nonce, theirs)


def link_of(greeting: bytes, version: int) -> int:
    """Return the id of the link for which a caller asks. Raises :class:`Refused`."""
    magic, theirs, link, _nonce = _GREETING.unpack(greeting)
    if magic != MAGIC:
        raise Refused("the caller speaks another protocol")
    if theirs != version:
        raise Refused(f"the caller speaks version {theirs}")
    return int(link)


class Accepting:
    """The handshake of the end that was called, once the id of the link is known."""

    def __init__(self, link: int, secret: bytes, greeting: bytes) -> None:
        _check(secret)
        theirs = greeting[-NONCE_BYTES:]
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.challenge = nonce + _prove(secret, b"accept", link, theirs, nonce)
        self._expected = _prove(secret, b"open", link, theirs, nonce)

    def check(self, proof: bytes) -> None:
        """Raise :class:`Refused` unless the caller's proof is right."""
        if not hmac.compare_digest(proof, self._expected):
            raise Refused("the caller has not proved who it is")


def _prove(secret: bytes, role: bytes, link: int, opening: bytes, accepting: bytes) -> bytes:
    return hmac.digest(secret, role + link.to_bytes(8, "little") + opening + accepting, "sha256")


def _check(secret: bytes) -> None:
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a link's secret has {SECRET_BYTES} bytes")
