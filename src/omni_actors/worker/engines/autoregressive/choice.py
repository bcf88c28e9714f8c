"""One choice of a request as its client sees it: text, tokens, log-probabilities, and why it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import TextDelta, TokenLogprob, Usage
from omni_actors.worker.engines.autoregressive.detokenize import TextStream
from omni_actors.worker.engines.autoregressive.sampling import SamplingState
from omni_actors.worker.engines.autoregressive.sequence import Sequence as Tokens


class Choice:
    """Follows one sequence token by token.

    Nothing leaves that the stop matcher holds back: no text, and no log-probability of a token whose text is held. What
    belongs to a stop string or to an end-of-sequence token never leaves, unless the request wants it in the text.
    ``limit`` is the most tokens that may be sampled; ``ends`` are the ids that stop it. Without a ``stream`` the tokens
    are no text.
    """

    def __init__(
        self,
        sequence: Tokens,
        sampling_state: SamplingState,
        stream: TextStream | None,
        sampling: Sampling,
        ends: frozenset[int],
        limit: int,
    ) -> None:
        self.sequence = sequence
        self.sampling_state = sampling_state
        self.finish_reason: str | None = None
        self.completion_tokens = 0
        self._stream = stream
        self._sampling = sampling
        self._ends = ends
        self.limit = limit
        self._text = ""
        self._token_ids: list[int] = []
        self._released = 0
        self._logprobs: deque[TokenLogprob] = deque()
        self._ready_logprobs: list[TokenLogprob] = []
        self.handed_on = 0
        """Tokens of the sequence, from the first, whose side vectors have gone to the next stage."""
        self.replayed: str | None = None
        """Text that an earlier attempt has told the client; the next stages get it again. ``None`` once they have, and
        for a choice that is not resumed."""
        self.end_emitted = False
        """Whether an earlier attempt has told the client that this choice is over."""
        self.closed = False
        """Whether all of it has been handed out."""
        self._without_logprob = 0

    @property
    def certain(self) -> int:
        """Tokens of the sequence, prompt included, that no stop string may still take back."""
        released = self.completion_tokens if self._stream is None else self._stream.released_tokens
        return self.sequence.prompt_len + released

    def echo(self, text: str, logprobs: list[TokenLogprob]) -> None:
        """Put the prompt before the answer."""
        self._text += text
        self._ready_logprobs += logprobs

    def resume(self, token_ids: Iterable[int]) -> None:
        """Take tokens that an earlier attempt sampled and reported. The choice is then as it was there: what was held
        back of its text is held back still, and nothing of the rest is told again. Log-probabilities of tokens whose
        text is held back are wanted anew (``sequence.logprob_positions``, :meth:`add_logprobs`).

        Raises :class:`ValueError` for a token behind the choice's end."""
        for token_id in token_ids:
            if self.finish_reason is not None:
                raise ValueError("a choice is resumed behind its end")
            self.push(token_id, None)
        self.end_emitted = self.finish_reason is not None
        self.replayed, self._text, self._token_ids, self._ready_logprobs = self._text, "", [], []
        if self._stream is not None and not self.end_emitted and self._sampling.logprobs is not None:
            self._released = self._stream.released_tokens
            self._without_logprob = self.certain
            self.sequence.logprob_positions = range(self.certain, len(self.sequence.tokens))

    def add_logprobs(self, place: int, logprobs: Sequence[TokenLogprob]) -> None:
        """Log-probabilities of resumed tokens, from this place of the sequence on; those that came before are
        ignored."""
        new = logprobs[max(0, self._without_logprob - place) :]
        self._logprobs += new
        self._without_logprob += len(new)

    def push(self, token_id: int, logprob: TokenLogprob | None) -> None:
        """Take the token that was sampled. The choice is over when ``finish_reason`` is set."""
        self.completion_tokens += 1
        self.sequence.tokens.append(token_id)
        self.sampling_state.append(token_id)
        self._token_ids.append(token_id)
        stream = self._stream
        ended = token_id in self._ends and self.completion_tokens > self._sampling.min_tokens
        if stream is not None and (not ended or self._sampling.include_stop_str_in_output):
            self._text += stream.push(token_id)
            if logprob is not None:
                self._logprobs.append(logprob)
        if ended or (stream is not None and stream.stopped is not None):
            self.finish_reason = "stop"
        elif self.completion_tokens >= self.limit:
            self.finish_reason = "length"
        if stream is None:
            return
        if self.finish_reason is not None:
            self._text += stream.finish()
            if stream.stopped is not None:
                self.finish_reason = "stop"
        while self._logprobs and self._released < stream.released_tokens:
            self._released += 1
            self._ready_logprobs.append(self._logprobs.popleft())

    def end(self, reason: str) -> None:
        """Nothing is to be sampled any more; a choice that has ended already keeps its reason."""
        self.finish_reason = self.finish_reason or reason

    def take(self, key: int, usage: Usage | None = None) -> TextDelta:
        """Take the text since the last call, with the usage of the prompt where that is still to be told."""
        delta = TextDelta(
            key,
            self.sequence.index,
            self._text,
            self._token_ids,
            self.finish_reason,
            self._ready_logprobs if self._sampling.logprobs is not None else None,
            usage=usage,
        )
        self._text, self._token_ids, self._ready_logprobs = "", [], []
        return delta
