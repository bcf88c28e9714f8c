"""Conversion of a request's fields to the section ``sampling``, and of stages' usage to OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_actors.entrypoints.openai.fields import refuse_unserved
from omni_actors.entrypoints.openai.schemas import SamplingFields
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Constraint, Sampling
from omni_actors.protocol.request import TokenLogprob, Usage


def sampling_of(
    fields: SamplingFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    echo: bool = False,
    constraint: Constraint | None = None,
    lora: str | None = None,
) -> Sampling:
    """Return the section ``sampling``. Raises 400 for fields that contradict each other."""
    if fields.stream_options is not None:
        refuse_unserved(fields.stream_options, "stream_options.")
        if not fields.stream:
            raise invalid_request("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    if max_tokens is not None and fields.min_tokens > max_tokens:
        raise invalid_request(f"'min_tokens' is over the limit of {max_tokens} tokens.", "min_tokens")
    stop = [fields.stop] if isinstance(fields.stop, str) else (fields.stop or [])
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=fields.repetition_penalty,
        seed=fields.seed,
        stop=stop,
        stop_token_ids=fields.stop_token_ids or [],
        include_stop_str_in_output=fields.include_stop_str_in_output,
        ignore_eos=fields.ignore_eos,
        logprobs=logprobs,
        logit_bias=fields.logit_bias or {},
        n=fields.n or 1,
        echo=echo,
        skip_special_tokens=fields.skip_special_tokens,
        constraint=constraint,
        lora=lora,
    )


def usage_of(plan: Plan, task: str, usage: Mapping[str, Usage]) -> dict[str, Any]:
    """Return OpenAI's ``usage`` object of a finished request.

    ``prompt_tokens`` counts the prompt of the stage that writes the text, including input from other stages.
    ``completion_tokens`` counts the stages whose output the client gets. ``audio_tokens`` is the audio's share of them:
    tokens of the audio stage or, if that stage makes no tokens, the frames of codes from the stage before.
    """
    outputs = plan.tasks[task].outputs
    text = usage.get(outputs.get("text", ""), Usage())
    audio = 0
    if (audio_stage := outputs.get("audio", "")) in usage:
        makers = [
            audio_stage,
            *(edge.source for edge in plan.edges if edge.target == audio_stage and edge.kind == "codes"),
        ]
        audio = next((made for maker in makers if (made := usage.get(maker, Usage()).completion_tokens)), 0)
    return totals(text.prompt_tokens, text.cached_tokens, text.completion_tokens, audio)


def used(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's ``usage`` object for the output of one stage."""
    return totals(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def totals(prompt: int, cached: int, text: int, audio: int = 0) -> dict[str, Any]:
    """Return OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": text + audio,
        "total_tokens": prompt + text + audio,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {"text_tokens": text, "audio_tokens": audio, "reasoning_tokens": 0},
    }


def chat_logprobs(tokens: list[TokenLogprob] | None) -> dict[str, Any] | None:
    """Return ``choices[].logprobs`` of a chat; ``None`` if there are none."""
    if not tokens:
        return None
    return {
        "content": [
            {**_entry(it.token, it.logprob), "top_logprobs": [_entry(token, logprob) for _, token, logprob in it.top]}
            for it in tokens
        ],
        "refusal": None,
    }


def _entry(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(token)}


def finite(logprob: float) -> float:
    """Return a log probability for JSON, which has no infinity: an excluded token gets OpenAI's -9999."""
    return max(logprob, -9999.0)
