"""The engine: it owns the chain and the requests that are being written, under the worker's loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omni_actors.author import (
    Engine,
    Hello,
    Outbox,
    Payload,
    Prompt,
    Sampling,
    TextDelta,
    Usage,
    Work,
    invalid_request,
)
from omni_markov.chain import END, TEXT, Chain, draw

MOST_CHARACTERS = 200
"""Characters of an answer for which the request names no limit."""


@dataclass(slots=True)
class Writing:
    """A request that is being written."""

    state: int
    seed: int
    temperature: float
    limit: int
    position: int
    """Characters written so far, those of an earlier attempt included."""
    usage: Usage | None
    """The usage of the prompt, until the first delta has told it."""
    prompt_tokens: int
    ended: bool = False


class MarkovEngine(Engine):
    """Advances every request by one character in a step, all of them in one operation.

    One thread calls everything: ``admit`` and ``abort`` when frames arrive, then ``step`` while ``runnable``. No method
    waits.
    """

    contract = 1

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._max_batch: int = hello.options["max_batch"]
        self._requests: dict[int, Writing] = {}
        self._steps = 0

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Make the model. A real one reads its weights from ``self.hello.model`` here, and runs once."""
        progress("counting characters", None)
        self._chain = Chain(TEXT)
        return {"symbols": len(self._chain.symbols)}

    def admit(self, work: Work) -> None:
        """Take a request in, or refuse it with a 400 that names the field."""
        prompt, sampling = work.params["prompt"], work.params["sampling"]
        _refuse_unserved(sampling)
        text = _text_of(prompt)
        writing = Writing(
            state=self._chain.state_of(text),
            seed=sampling.seed or 0,
            temperature=1.0 if sampling.temperature is None else sampling.temperature,
            limit=sampling.max_tokens or MOST_CHARACTERS,
            position=0,
            usage=Usage(prompt_tokens=len(text)),
            prompt_tokens=len(text),
        )
        if work.prefix is not None and work.prefix.tokens:  # a worker died on this request: go on behind its text
            written = work.prefix.tokens[0]
            writing.state = self._chain.follow(writing.state, written)
            writing.position = len(written)
            writing.ended = self._chain.symbols[written[-1]] == END if written else False
        self._requests[work.key] = writing

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        raise invalid_request("this stage has no ports")

    def abort(self, key: int) -> None:
        self._requests.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self._requests)

    def step(self, out: Outbox) -> bool:
        """One iteration: a character for each request whose consumers have room for one."""
        batch = [(key, writing) for key, writing in self._requests.items() if out.ready(key)][: self._max_batch]
        if not batch:
            return False
        self._steps += 1
        symbols, states = self._chain.advance(
            [writing.state for _, writing in batch],
            [writing.temperature for _, writing in batch],
            [draw(writing.seed, writing.position) for _, writing in batch],
        )
        for (key, writing), symbol, state in zip(batch, symbols.tolist(), states.tolist(), strict=True):
            tokens = [] if writing.ended or writing.position >= writing.limit else [symbol]
            if tokens:
                writing.state, writing.position = state, writing.position + 1
                writing.ended = self._chain.symbols[symbol] == END
            self._tell(key, writing, tokens, out)
        return True

    def _tell(self, key: int, writing: Writing, tokens: list[int], out: Outbox) -> None:
        reason = "stop" if writing.ended else "length" if writing.position >= writing.limit else None
        text = "".join(self._chain.symbols[token] for token in tokens).removesuffix(END)
        usage, writing.usage = writing.usage, None
        out.text(TextDelta(key, 0, text, tokens, reason, usage=usage))
        if reason is not None:
            out.finish(key, Usage(prompt_tokens=writing.prompt_tokens, completion_tokens=writing.position))
            del self._requests[key]

    def counters(self) -> dict[str, float]:
        """Gauges are zero at idle; names of counters end in ``_total``."""
        return {"running": len(self._requests), "steps_total": self._steps}


def _text_of(prompt: Prompt) -> str:
    """Return the text that the chain goes on from."""
    if prompt.token_ids is not None:
        raise invalid_request("this model has no token ids; send text", param="prompt")
    if prompt.text is not None:
        return prompt.text
    said = [message["content"] for message in prompt.messages or () if isinstance(message.get("content"), str)]
    return said[-1] if said else ""


def _refuse_unserved(sampling: Sampling) -> None:
    """Refuse the fields that this engine does not serve: nothing that is asked for is ignored."""
    unserved = {
        "n": sampling.n != 1,
        "stop": bool(sampling.stop),
        "logprobs": sampling.logprobs is not None,
        "response_format": sampling.constraint is not None,
    }
    for field, asked in unserved.items():
        if asked:
            raise invalid_request(f"this model does not serve {field}", param=field)
