"""Checks of what the adapter of a stage that reads prompts gives back: see :mod:`omni_actors.worker.returned`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import torch

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import TextDelta
from omni_actors.worker.checks import OutputError, check_payload
from omni_actors.worker.engines.autoregressive.adapter import (
    AutoregressiveAdapter,
    PromptAdapter,
    PromptInput,
    Release,
    State,
)
from omni_actors.worker.engines.autoregressive.decoder import Decoder, StepInputs, StepOutput
from omni_actors.worker.engines.autoregressive.detokenize import Vocabulary
from omni_actors.worker.returned import facts_of, kind_of, payload_problem, text_problem, wrong


def load_facts(adapter: PromptAdapter, facts: Any) -> dict[str, Any]:
    """Return the result of ``load``, if it is right and the attributes are set that it must set."""
    name = type(adapter).__name__
    for attribute, kind, expected in _ATTRIBUTES:
        if attribute == "decoder" and not isinstance(adapter, AutoregressiveAdapter):
            continue
        try:
            value = getattr(adapter, attribute)
        except AttributeError:
            raise OutputError(f"{name}.load did not set '{attribute}' ({expected})") from None
        if not isinstance(value, kind) or (kind is int and value < 1):
            raise OutputError(f"{name}.load set '{attribute}' to {kind_of(value)}; expected {expected}")
    return facts_of(adapter, facts)


_ATTRIBUTES: tuple[tuple[str, Any, str], ...] = (
    ("vocabulary", Vocabulary | None, "a Vocabulary, or None where tokens are no text"),
    ("eos", frozenset, "a frozenset of token ids"),
    ("max_model_len", int, "a whole number of tokens, 1 or more"),
    ("sampling_defaults", Mapping, "a mapping"),
    ("decoder", object, "a Decoder"),
)


def prompt_of(adapter: PromptAdapter, method: str, prompt: Any) -> PromptInput:
    """Return the result of ``open`` or ``feed``, if it is a part of a prompt."""
    if not isinstance(prompt, PromptInput):
        raise wrong(adapter, method, kind_of(prompt), "PromptInput")
    if type(prompt.tokens) is not list:
        raise wrong(adapter, method, f"a PromptInput whose tokens are {kind_of(prompt.tokens)}", "a list of token ids")
    try:
        array("q", prompt.tokens)
    except (TypeError, OverflowError):
        raise wrong(adapter, method, "a PromptInput with a token that is no int", "a list of token ids") from None
    if type(prompt.root) is not bytes:
        raise wrong(adapter, method, f"a PromptInput whose root is {kind_of(prompt.root)}", "bytes")
    if prompt.max_tokens is not None and type(prompt.max_tokens) is not int:
        raise wrong(adapter, method, f"a PromptInput whose max_tokens is {kind_of(prompt.max_tokens)}", "int or None")
    return prompt


def sampling_of(adapter: PromptAdapter, sampling: Any) -> Sampling:
    """Return the result of ``sampling``, if it is sampling parameters."""
    if not isinstance(sampling, Sampling):
        raise wrong(adapter, "sampling", kind_of(sampling), "Sampling")
    return sampling


def record_of(adapter: PromptAdapter, data: Any) -> bytes:
    """Return the result of ``record``, if it is bytes."""
    if type(data) is not bytes:
        raise wrong(adapter, "record", kind_of(data), "bytes")
    return data


def output_of(adapter: PromptAdapter, release: Release) -> Payload | None:
    """The payload that ``output`` makes of a release, if there is one, and as the adapter declares it."""
    payload = adapter.output(release)
    if payload is None:
        return None
    if (problem := payload_problem(payload)) is not None:
        raise wrong(adapter, "output", *problem)
    check_payload(payload, adapter.tensors.get(payload.kind, {}))
    return payload


def shown_of(adapter: PromptAdapter, delta: TextDelta) -> TextDelta:
    """Call ``shown`` for a delta and return its result, if it is one."""
    shown = adapter.shown(delta)
    if shown is not delta and (problem := text_problem(shown, delta.key)) is not None:
        raise wrong(adapter, "shown", *problem)
    return shown


def state_of(adapter: AutoregressiveAdapter, key: int) -> State:
    """Call ``export_state`` and return its result, if it is a state."""
    state = adapter.export_state(key)
    if not isinstance(state, State):
        raise wrong(adapter, "export_state", kind_of(state), "State")
    return state


def check_step(decoder: Decoder, inputs: StepInputs, output: Any) -> None:
    """Raise unless a pass gave logits [rows, vocab_size], and hidden states for as many rows, if any."""
    if not isinstance(output, StepOutput):
        raise wrong(decoder, "forward", kind_of(output), "StepOutput")
    rows, vocab = len(inputs.rows), decoder.vocab_size
    if not isinstance(output.logits, torch.Tensor):
        raise wrong(decoder, "forward", f"logits that are {kind_of(output.logits)}", "a tensor")
    if output.logits.shape != (rows, vocab):
        raise wrong(decoder, "forward", f"logits of shape {list(output.logits.shape)}", f"[{rows}, {vocab}]")
    if output.hidden is not None and len(output.hidden) != rows:
        raise wrong(decoder, "forward", f"hidden states of {len(output.hidden)} rows", f"{rows} rows")
