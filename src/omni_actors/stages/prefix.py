"""Which replica is likely to have the beginning of a prompt in its cache: what the balancer ``prefix_cache`` goes by.

The serving process has no tokens, so this is an estimate, from what was sent where: prompts are cut into chunks of
text (or of token ids), each named by a hash of itself and all before it, and of each replica the names of the chunks
that were used last are kept, as many as its cache has room for. A replica that has begun another life, or whose cache
was given back, is believed to have nothing. An estimate that is wrong costs time and changes no answer.
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
"""Taken for as many tokens: three characters each. Text of more tokens than that is believed to be cached for too long,
text of fewer not for as long as it is."""

MEDIUM_CHUNKS = 16
"""What a clip or picture is taken for."""

MAX_CHUNKS = 512
"""What lies behind so many is not looked at."""

IMBALANCE = 8
"""So many requests more than the least busy one may a replica have to be chosen for a prompt that it has all of, and
proportionally fewer for a part. A beginning that all prompts share then outweighs no queue."""


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    """The beginnings of a prompt, the shortest first, and how many chunks all of it is taken for."""

    names: Sequence[int]
    chunks: int


def prefix_of(request: Request) -> PromptPrefix:
    """Empty for a request without a prompt. A prompt ends here before its first medium: a clip that comes again is not
    known for the same one."""
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
        # A template writes what it is given (tools, say) before the first message.
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
    """The text of messages, in an order in which a longer conversation begins like a shorter one, up to a medium."""
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
    """What one life of a replica is believed to have. A name is never there without those that it begins with: they
    were used after it."""

    incarnation: int
    room: int
    names: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def match(self, names: Sequence[int]) -> int:
        """How many of them it has."""
        return bisect_left(names, True, key=lambda name: name not in self.names)

    def add(self, names: Sequence[int]) -> None:
        held = self.names
        for name in reversed(names):
            held[name] = None
            held.move_to_end(name)
        while len(held) > self.room:
            held.popitem(last=False)


class PrefixIndex:
    """What the replicas of one pool are believed to have."""

    def __init__(self) -> None:
        self._caches: dict[int, _Cache] = {}

    def choose(self, replicas: Sequence[StageReplica], request: Request) -> StageReplica:
        """One of these, which are live, that the request then goes to: the least busy one, if what they have of its
        prompt counts for up to :data:`IMBALANCE` requests less; of equals the first."""
        prefix = prefix_of(request)
        caches = {replica.index: self._cache(replica) for replica in replicas}

        def burden(replica: StageReplica) -> float:
            held = caches[replica.index].match(prefix.names)
            return len(replica.requests) - (IMBALANCE * held / prefix.chunks if held else 0.0)

        chosen = min(replicas, key=burden)
        caches[chosen.index].add(prefix.names)
        return chosen

    def forget(self, replica: StageReplica) -> None:
        """Its cache is empty now."""
        self._caches.pop(replica.index, None)

    def held(self, replica: StageReplica) -> int:
        """How many chunks it is believed to have."""
        return len(self._cache(replica).names)

    def _cache(self, replica: StageReplica) -> _Cache:
        cache = self._caches.get(replica.index)
        if cache is None or cache.incarnation != replica.incarnation:
            tokens = int(replica.info.get("kv_blocks", 0)) * int(replica.info.get("block_size", 0))
            cache = self._caches[replica.index] = _Cache(replica.incarnation, tokens // CHUNK_TOKENS)
        return cache
