"""Sampling of the next token in an autoregressive stage: ranges, penalties, and a repeatable draw.

The draw is a pure function of (seed, stage, choice, position): one uniform number from a keyed hash, inverted through
the cumulative distribution in the order of token ids. So a token depends on its own logits and identity only, never on
the batch or on the process: a preempted or resumed request continues with the same tokens.

Order of operations, as in vLLM: log-probabilities are taken of the raw logits; then ``logit_bias``, the ban of stop
tokens before ``min_tokens``, repetition, frequency and presence penalties; then temperature, ``min_p``, ``top_k``,
``top_p``. Tokens tied with the last kept token are kept too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import TokenLogprob

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would overflow."""

MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOP_CHARS = 4096
"""Bound of all stop strings of a request together: they are compiled at admission."""

_BLOCK = 256  # tokens per block of the two-level cumulative distribution
_MOST_TOKENS = 1 << 31  # no vocabulary has more; a larger top_k need not fit into a tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """A request's sampling settings with every default filled in. ``top_k`` 0 is off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float]
    min_tokens: int = 0
    logprobs: int | None = None
    seed: int

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def resolve(sampling: Sampling, *defaults: Mapping[str, Any], request_id: str = "") -> SamplingParams:
    """Resolve the sampling parameters of a request. Call it after :func:`validate`.

    A field that the request leaves open comes from the first of ``defaults`` with a value (the deployment's, then the
    model's generation config), otherwise the neutral value is used. The orchestrator draws a missing seed; a stage that
    makes its own section gets the seed of the request's id. No seed is drawn here, because another attempt would not
    continue with the same seed.
    """

    def pick(name: str, neutral: Any) -> Any:
        for value in (getattr(sampling, name), *(d.get(name) for d in defaults)):
            if value is not None:
                return value
        return neutral

    return SamplingParams(
        temperature=float(pick("temperature", 1.0)),
        top_p=float(pick("top_p", 1.0)),
        top_k=min(max(0, int(pick("top_k", 0))), _MOST_TOKENS),
        min_p=float(pick("min_p", 0.0)),
        repetition_penalty=float(pick("repetition_penalty", 1.0)),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        min_tokens=sampling.min_tokens,
        logprobs=sampling.logprobs,
        seed=_seed_of(request_id) if sampling.seed is None else sampling.seed,
    )


def _seed_of(request_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little") >> 1


def validate(sampling: Sampling, vocab_size: int, *, constrained: bool = False) -> None:
    """Raise :class:`OmniError` (400, with ``param``) for a value out of its range. ``None`` is always in range.

    ``constrained`` says that the engine can hold an answer to a constraint.
    """

    def within(name: str, low: float, high: float) -> None:
        value = getattr(sampling, name)
        if value is None or low <= value <= high:
            return
        bounds = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise invalid_request(f"'{name}' must be {bounds}, not {value}.", param=name)

    if sampling.constraint is not None and not constrained:
        raise invalid_request("This stage's engine does not support structured output.", param="response_format")
    top = 3.4e38  # the greatest float32: infinity is not a temperature
    within("temperature", 0, top)
    within("top_p", 0, 1)
    within("min_p", 0, 1)
    within("top_k", -1, math.inf)
    within("presence_penalty", -2, 2)
    within("frequency_penalty", -2, 2)
    within("repetition_penalty", 0.01, top)  # far below, a logit divided by it is infinite
    within("max_tokens", 0 if sampling.echo else 1, math.inf)
    within("min_tokens", 0, math.inf)
    within("n", 1, MAX_CHOICES)
    within("logprobs", 0, MAX_LOGPROBS)
    within("seed", -(1 << 63), (1 << 64) - 1)
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise invalid_request("'min_tokens' must not exceed 'max_tokens'.", param="min_tokens")
    if any(not s for s in sampling.stop):
        raise invalid_request("'stop' must not hold an empty string.", param="stop")
    if sum(map(len, sampling.stop)) > MAX_STOP_CHARS:
        raise invalid_request(f"'stop' must not exceed {MAX_STOP_CHARS} characters in all.", param="stop")
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    _check_ids("logit_bias", sampling.logit_bias, vocab_size)
    if not all(-100 <= bias <= 100 for bias in sampling.logit_bias.values()):
        raise invalid_request("'logit_bias' values must be between -100 and 100.", param="logit_bias")


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise invalid_request(f"'{name}': token id {token_id} is not below {vocab_size}.", param=name)


class SamplingState:
    """One choice of one request, as the sampler sees it: settings, position, and which tokens it has seen.

    ``prompt`` counts for the repetition penalty only. ``stop_ids`` (end of sequence, stop token ids) are banned before
    ``min_tokens``. :meth:`append` every token of the output in order, forced ones (a resumed prefix) too.
    """

    __slots__ = ("_counts", "_ids", "_noise", "_slots", "_stop_ids", "_used", "params", "position")

    def __init__(
        self,
        params: SamplingParams,
        *,
        stage: str,
        choice: int = 0,
        prompt: Sequence[int] = (),
        stop_ids: Collection[int] = (),
    ) -> None:
        self.params = params
        self.position = 0
        key = (params.seed % (1 << 64)).to_bytes(8, "little") + choice.to_bytes(4, "little")
        self._noise = hashlib.blake2b(stage.encode(), digest_size=8, key=key)
        self._stop_ids = np.array(sorted(stop_ids), np.int64)
        # Tokens that a penalty touches, in the first ``_used`` places, and how often each is in the output.
        penalized = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        seen = np.unique(np.asarray(prompt, np.int64)) if params.repetition_penalty != 1 else np.empty(0, np.int64)
        self._used = len(seen)
        self._ids = np.concatenate([seen, np.empty(16, np.int64)])
        self._counts = np.zeros(len(self._ids), np.float32)
        self._slots: dict[int, int] | None = {int(t): i for i, t in enumerate(seen)} if penalized else None

    def append(self, token_id: int) -> None:
        """Append the token at the current position."""
        self.position += 1
        if self._slots is None:
            return
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = self._used
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty(slot, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(slot, np.float32)])
            self._ids[slot] = token_id
            self._used += 1
        self._counts[slot] += 1

    def uniform(self) -> float:
        """Return the number in [0, 1) of the current position."""
        noise = self._noise.copy()
        noise.update(self.position.to_bytes(8, "little"))
        return (int.from_bytes(noise.digest(), "little") >> 24) * 2.0**-40

    @property
    def banned(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Token ids that may not be chosen at the current position."""
        return self._stop_ids if self.position < self.params.min_tokens else self._stop_ids[:0]

    @property
    def penalized(self) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.float32]]]:
        """Distinct token ids that penalties touch, and what to subtract from each one's logit."""
        counts = self._counts[: self._used]
        weights = counts * np.float32(self.params.frequency_penalty)
        weights += (counts > 0) * np.float32(self.params.presence_penalty)
        return self._ids[: self._used], weights


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """A sampled token for each row. ``broken`` are rows with logits that were not finite, and meaningless tokens."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    broken: list[int]


def sample(
    logits: torch.Tensor, rows: Sequence[SamplingState], token_bytes: Callable[[int], bytes], kernels: Kernels
) -> SampledBatch:
    """Choose a token for each row of ``logits`` (float32 [len(rows), vocabulary], overwritten).

    Log-probabilities are natural, of the raw distribution. Does not advance the rows: see :meth:`SamplingState.append`.
    """
    logits = logits.contiguous()
    wants_logprobs = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    raw = logits[wants_logprobs] if wants_logprobs else None
    _edit(logits, rows)
    drawn = [i for i, row in enumerate(rows) if not row.params.greedy]
    if len(drawn) < len(rows):
        best, ids = logits.max(dim=-1)
        token_ids: list[int] = ids.tolist()
        broken = (~best.isfinite()).nonzero().flatten().tolist()
    else:
        token_ids, broken = [0] * len(rows), []
    if drawn:
        drawn_ids, drawn_broken = _draw(logits, rows, drawn, kernels)
        broken = sorted({*broken, *drawn_broken})
        for i, token_id in zip(drawn, drawn_ids, strict=True):
            token_ids[i] = token_id
    logprobs: list[TokenLogprob | None] = [None] * len(rows)
    if raw is not None:
        chosen = [token_ids[i] for i in wants_logprobs]
        counts = [rows[i].params.logprobs or 0 for i in wants_logprobs]
        for i, entry in zip(wants_logprobs, token_logprobs(raw, chosen, counts, token_bytes), strict=True):
            logprobs[i] = entry
    return SampledBatch(token_ids, logprobs, broken)


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int], token_bytes: Callable[[int], bytes]
) -> list[TokenLogprob]:
    """Return the log-probability of ``token_ids[i]`` under row ``i`` of float32 ``logits``, with the ``counts[i]`` best
    alternatives, or all of a smaller vocabulary."""
    norm = logits.logsumexp(dim=-1, keepdim=True)
    index = torch.tensor(token_ids, device=logits.device)
    own = (logits.gather(1, index[:, None]) - norm).flatten().tolist()
    best_values, best_ids = logits.topk(min(max(counts, default=0), logits.shape[1]), dim=-1)
    values, ids = (best_values - norm).tolist(), best_ids.tolist()
    return [
        TokenLogprob(
            token_id,
            token_bytes(token_id),
            own[i],
            tuple((t, token_bytes(t), v) for t, v in zip(ids[i][:count], values[i][:count], strict=True)),
        )
        for i, (token_id, count) in enumerate(zip(token_ids, counts, strict=True))
    ]


def _edit(logits: torch.Tensor, rows: Sequence[SamplingState]) -> None:
    """Bias, bans and penalties, in place, each over all rows at once."""
    width, device = logits.shape[1], logits.device
    flat = logits.view(-1)

    def where(places: list[tuple[int, Any]]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([i * width + np.asarray(ids, np.int64) for i, ids in places])).to(device)

    biased = [(i, row) for i, row in enumerate(rows) if row.params.logit_bias]
    if biased:
        bias = np.concatenate([np.fromiter(row.params.logit_bias.values(), np.float32) for _, row in biased])
        flat.index_add_(
            0, where([(i, list(row.params.logit_bias)) for i, row in biased]), torch.from_numpy(bias).to(device)
        )
    banned = [(i, row.banned) for i, row in enumerate(rows) if len(row.banned)]
    if banned:
        flat.index_fill_(0, where(banned), -math.inf)
    touched = [(i, row.params.repetition_penalty, *row.penalized) for i, row in enumerate(rows) if row._used]
    if touched:
        index = where([(i, ids) for i, _, ids, _ in touched])
        weight = torch.from_numpy(np.concatenate([weights for *_, weights in touched])).to(device)
        factors = [np.full(len(ids), factor, np.float32) for _, factor, ids, _ in touched]
        factor = torch.from_numpy(np.concatenate(factors)).to(device)
        values = flat[index]
        flat[index] = torch.where(values > 0, values / factor, values * factor) - weight


def _draw(
    logits: torch.Tensor, rows: Sequence[SamplingState], drawn: Sequence[int], kernels: Kernels
) -> tuple[list[int], list[int]]:
    """Return tokens for the rows ``drawn``, and the rows among them with logits that are not finite."""
    token_ids: list[int] = []
    broken: list[int] = []
    size = kernels.draw_rows or len(drawn)
    for start in range(0, len(drawn), size):
        part = drawn[start : start + size]
        params = [rows[i].params for i in part]
        first, last = part[0], part[-1] + 1
        picked = logits[first:last] if last - first == len(part) else logits[part]
        if kernels.draws_on_host:
            picked = picked.cpu()
        temperature = torch.tensor([[p.temperature] for p in params], device=picked.device)
        probs = (picked / temperature).softmax(dim=-1)
        _restrict(probs, params, kernels)
        uniform = torch.tensor([rows[i].uniform() for i in part], dtype=torch.float64, device=picked.device)
        ids, fine = _invert(probs, uniform)
        token_ids += ids.tolist()
        broken += [i for i, ok in zip(part, fine.tolist(), strict=True) if not ok]
    return token_ids, broken


def _restrict(probs: torch.Tensor, params: Sequence[SamplingParams], kernels: Kernels) -> None:
    """Zero what ``min_p``, ``top_k`` and ``top_p`` exclude, in place. Rows need not sum to one afterwards."""
    width = probs.shape[1]
    least = torch.tensor([[p.min_p] for p in params], dtype=torch.float32, device=probs.device)
    if any(p.min_p > 0 for p in params):
        least *= probs.amax(dim=-1, keepdim=True)
    ranked = [i for i, p in enumerate(params) if p.top_p < 1 or 0 < p.top_k < width]
    if len(ranked) == len(params):
        least = _rank(probs, least, params, kernels)
    elif ranked:
        least[ranked] = _rank(probs[ranked], least[ranked], [params[i] for i in ranked], kernels)
    elif all(p.min_p == 0 for p in params):
        return
    # Comparing into floats: torch is ten times slower at filling by a mask of booleans.
    probs *= torch.ge(probs, least, out=torch.empty_like(probs))


def _rank(probs: torch.Tensor, floor: torch.Tensor, params: Sequence[SamplingParams], kernels: Kernels) -> torch.Tensor:
    """Return the least probability, [rows, 1], that ``top_k`` and ``top_p`` keep among probabilities from ``floor``
    on."""
    width, device = probs.shape[1], probs.device

    def column(values: Iterable[float]) -> torch.Tensor:
        return torch.tensor([[v] for v in values], dtype=torch.float32, device=device)

    # How many of the greatest each row must look at. Of top_p alone: tokens each below (1 - top_p) / width are together
    # below 1 - top_p, so none of them is in the nucleus.
    alone = [p.top_p < 1 and p.min_p == 0 and not p.top_k for p in params]
    most = torch.tensor([[p.top_k or width] for p in params], device=device)
    if all(0 < p.top_k < width for p in params):
        deepest = max(p.top_k for p in params)
    else:
        tails = column((1 - p.top_p) * 0.999 / width if only else 0.0 for p, only in zip(params, alone, strict=True))
        enough = torch.ge(probs, torch.maximum(floor, tails), out=torch.empty_like(probs)).sum(dim=-1, keepdim=True)
        deepest = max(1, int(torch.minimum(enough, most).max()))
    values = kernels.greatest(probs, deepest)
    counted = (torch.arange(deepest, device=device) < most) & (values >= floor)
    mass = values.double() * counted
    before = mass.cumsum(dim=-1) - mass
    whole = torch.where(torch.tensor(alone, device=device)[:, None], 1.0, mass.sum(dim=-1, keepdim=True))
    share = column(p.top_p if p.top_p < 1 else math.inf for p in params)
    kept = counted & (before < share * whole)
    kept[:, 0] = True
    # What is kept is a beginning of the row: its last is the least.
    return values.gather(1, kept.sum(dim=-1, keepdim=True) - 1)


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for each row, the token at which the cumulative weight passes ``uniform`` of the sum, never a token of
    weight zero; and whether the weights are finite with a positive sum.

    The search has two levels: a cumulative sum over blocks, then within one block. Sums are float64, since a tail
    token's weight would vanish in float32 sums.
    """
    width = weights.shape[1]
    full = width // _BLOCK * _BLOCK
    blocks = weights[:, :full].unflatten(1, (-1, _BLOCK)).sum(dim=-1, dtype=torch.float32)
    if full < width:
        blocks = torch.cat([blocks, weights[:, full:].sum(dim=-1, keepdim=True)], dim=1)
    outer = blocks.double().cumsum(dim=-1)
    whole = outer[:, -1:]
    fine = (whole > 0) & whole.isfinite()
    target = uniform[:, None] * whole
    block = torch.searchsorted(outer, target, right=True).clamp_(max=outer.shape[1] - 1)
    rest = target - (outer - blocks).gather(1, block)
    fraction = (rest / blocks.gather(1, block).double()).clamp_(0.0, 1.0 - 1e-12)
    places = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, places.clamp(max=width - 1)).double().masked_fill_(places >= width, 0).cumsum(dim=-1)
    offset = torch.searchsorted(inside, fraction * inside[:, -1:], right=True).clamp_(max=_BLOCK - 1)
    return (block * _BLOCK + offset).flatten().clamp_(max=width - 1), fine.flatten()
