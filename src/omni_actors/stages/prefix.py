"""The estimate of which replica has the beginning of a prompt in its cache, for the balancer ``prefix_cache``.

The serving process has no tokens, so it estimates from the prompts sent to each replica. Prompts are cut into chunks of
text (or of token ids). A chunk's name is a hash of the chunk and all chunks before it. For each replica the names of
the most recently used chunks are kept, as many as the replica's cache can hold. A replica with a new incarnation, or
with an emptied cache, is assumed to have no chunks. A wrong estimate costs time and changes no answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import Request

if TYPE_CHECKING:
    from omni_actors.stages.replica import StageReplica

CHUNK_TOKENS = 32
CHUNK_CHARACTERS = 96
"""Characters of a chunk, which counts as :data:`CHUNK_TOKENS` tokens of three characters each.

Text with more tokens is assumed to be cached for too long, text with fewer tokens for too short a time."""

MEDIUM_CHUNKS = 16
"""The number of chunks for which a clip or picture counts."""

MAX_CHUNKS = 512
"""The number of chunks after which the rest of a prompt is ignored."""

IMBALANCE = 8
"""Requests by which a chosen replica with all of a prompt in its cache may be busier than the least busy replica.

For a part of the prompt the number is proportionally smaller, so a beginning that all prompts share outweighs no
queue."""


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    """The names of a prompt's beginnings, the shortest first, and the number of chunks for which the prompt counts."""

    names: Sequence[int]
    chunks: int


def prefix_of(request: Request) -> PromptPrefix:
    """Return the beginnings of a request's prompt; none for a request without a prompt.

    The beginnings end before the first medium, since a repeated clip is not recognised.
    """
    params = request.params
    prompt, sampling = params.get("prompt"), params.get("sampling")
    if type(prompt) is not Prompt:
        return PromptPrefix((), 0)
    lora = sampling.lora if type(sampling) is Sampling else None
    if prompt.token_ids is not None:
        ids = prompt.token_ids[: MAX_CHUNKS * CHUNK_TOKENS]
        pieces: list[Any] = [tuple(ids[at : at + CHUNK_TOKENS]) for at in range(0, len(ids), CHUNK_TOKENS)]
        whole, name = len(ids) // CHUNK_TOKENS, hash((lora, "ids"))
    else:
        text = _text_of(prompt)
        pieces = [text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS)]
        # A template writes its arguments (tools, say) before the first message.
        given = msgspec.msgpack.encode(prompt.chat_template_kwargs) if prompt.chat_template_kwargs else b""
        whole, name = len(text) // CHUNK_CHARACTERS, hash((lora, prompt.messages is None, given))
    names = []
    for piece in pieces[:whole]:
        name = hash((name, piece))
        names.append(name)
    return PromptPrefix(names, len(pieces) + MEDIUM_CHUNKS * len(request.media))


def _text_of(prompt: Prompt) -> str:
    most = MAX_CHUNKS * CHUNK_CHARACTERS
    if prompt.messages is None:
        return (prompt.text or "")[:most]
    found, length = [], 0
    for piece in _written(prompt.messages):
        found.append(piece)
        length += len(piece)
        if length >= most:
            break
    return "".join(found)[:most]


def _written(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the text of messages up to a medium, in an order in which a longer conversation begins like a shorter
    one."""
    for message in messages:
        for key, value in message.items():
            if key == "content" and isinstance(value, list):
                for part in value:
                    text = part.get("text")
                    if type(text) is not str:
                        return
                    yield text
            else:
                yield f"\0{key}\0"
                yield value if isinstance(value, str) else repr(value)


@dataclass(slots=True)
class _Cache:
    """The chunks that one incarnation of a replica is assumed to have.

    A name is never without the names of its own beginnings, because the beginnings count as used later.
    """

    incarnation: int
    room: int
    names: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def match(self, names: Sequence[int]) -> int:
        """Return how many of the names the cache has, from the first on."""
        return bisect_left(names, True, key=lambda name: name not in self.names)

    def add(self, names: Sequence[int]) -> None:
        held = self.names
        for name in reversed(names):
            held[name] = None
            held.move_to_end(name)
        while len(held) > self.room:
            held.popitem(last=False)


class PrefixIndex:
    """The chunks that the replicas of one pool are assumed to have."""

    def __init__(self) -> None:
        self._caches: dict[int, _Cache] = {}

    def choose(self, replicas: Sequence[StageReplica], request: Request) -> StageReplica:
        """Choose the live replica to which a request goes.

        The least busy replica is chosen, where the cached part of the prompt counts for up to :data:`IMBALANCE`
        requests less. Of equals, the first is chosen.
        """
        prefix = prefix_of(request)
        caches = {replica.index: self._cache(replica) for replica in replicas}

        def burden(replica: StageReplica) -> float:
            held = caches[replica.index].match(prefix.names)
            return len(replica.requests) - (IMBALANCE * held / prefix.chunks if held else 0.0)

        chosen = min(replicas, key=burden)
        caches[chosen.index].add(prefix.names)
        return chosen

    def forget(self, replica: StageReplica) -> None:
        """Take note that the replica's cache is empty now."""
        self._caches.pop(replica.index, None)

    def held(self, replica: StageReplica) -> int:
        """Return how many chunks the replica is assumed to have."""
        return len(self._cache(replica).names)

    def _cache(self, replica: StageReplica) -> _Cache:
        cache = self._caches.get(replica.index)
        if cache is None or cache.incarnation != replica.incarnation:
            tokens = int(replica.info.get("kv_blocks", 0)) * int(replica.info.get("block_size", 0))
            cache = self._caches[replica.index] = _Cache(replica.incarnation, tokens // CHUNK_TOKENS)
        return cache
