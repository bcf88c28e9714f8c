"""The output of a choice: text to the client, tokens to the ledger, payloads to later stages."""

from __future__ import annotations

import msgspec

from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Outbox
from omni_actors.worker.engines.autoregressive.adapter import PromptAdapter, Release
from omni_actors.worker.engines.autoregressive.attention import KVCache
from omni_actors.worker.engines.autoregressive.checks import output_of, record_of, shown_of
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.request import PromptRequest


def emit_outputs(
    request: PromptRequest, choice: Choice, adapter: PromptAdapter, cache: KVCache | None, out: Outbox
) -> None:
    """Everything that is certain of this choice and has not left yet; with its last it is ``closed``. ``cache`` has
    the side vectors, where the next stage gets some.

    Raises what the adapter raises, and :class:`~omni_actors.worker.checks.OutputError` for a payload that breaks its
    declaration.
    """
    key, index = choice.sequence.key, choice.sequence.index
    shown = request.work.visible and adapter.vocabulary is not None
    usage = None
    if shown and not choice.end_emitted and not request.prompt_usage_emitted:
        request.prompt_usage_emitted = True
        usage = Usage(prompt_tokens=request.first.prompt_len, cached_tokens=request.first.cached or 0)
    delta = choice.take(key, usage)
    replayed, choice.replayed = choice.replayed, None
    if replayed is not None and shown:
        shown_of(
            adapter, msgspec.structs.replace(delta, text=replayed, token_ids=[], finish_reason=None, logprobs=None)
        )
    data = record_of(adapter, adapter.record(key)) if index == 0 else b""
    tokens = [] if shown else delta.token_ids
    if tokens or data:
        out.ledger(key, index, tokens, data)
    if request.work.routed and index == 0:
        payload = output_of(adapter, _release(choice, (replayed or "") + delta.text, cache))
        if payload is not None:
            out.emit(key, payload)
    if choice.finish_reason is not None:
        choice.closed = True
    if shown and not choice.end_emitted:
        out.text(shown_of(adapter, delta))


def _release(choice: Choice, text: str, cache: KVCache | None) -> Release:
    """Return the part of this step that is final for the next stage."""
    sequence, start, states = choice.sequence, choice.handed_on, None
    if cache is not None and cache.shape.side:
        choice.handed_on = max(start, min(sequence.computed, choice.certain))
        if count := choice.handed_on - start:
            states = cache.side_rows(sequence.blocks, start, count)
    tokens = sequence.tokens[start : choice.handed_on]
    return Release(sequence.key, text, start, tokens, sequence.prompt_len, states)
