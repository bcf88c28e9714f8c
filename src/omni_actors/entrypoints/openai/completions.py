"""``POST /v1/completions``: text after text, for one prompt or several."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import trio

from omni_actors.actors.background import background
from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.bodies import read_json
from omni_actors.entrypoints.openai.constraints import constraint_of
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.parameters import own_parameters
from omni_actors.entrypoints.openai.sampling import finite, sampling_of, totals, used
from omni_actors.entrypoints.openai.schemas import CompletionRequest
from omni_actors.entrypoints.openai.tally import Tally
from omni_actors.entrypoints.openai.unread import keep_read
from omni_actors.entrypoints.services import Services
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import Prompt
from omni_actors.protocol.request import Completed, Request, TextDelta, TokenLogprob, Usage

TASK = "completion"

MAX_PROMPTS = 128

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route alone, in tokens."""


@dataclass(slots=True)
class _Choice:
    """The state of one choice. ``offset`` counts the characters of its text that have been reported."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str = "stop"
    offset: int = 0


@dataclass(slots=True)
class _ReplyFormat:
    id: str
    model: str
    created: int
    choices: int
    logprobs: bool
    include_usage: bool
    always_usage: bool
    usage: list[Usage] = field(default_factory=list)


async def create(services: Services, call: Call) -> Reply:
    """Continue texts. The reply waits for the first event of any prompt, so that an earlier failure still has its own
    status."""
    read = await read_json(services, call, (TASK, ("text",), ("text",)))
    body = decode(read.json, CompletionRequest)
    model = services.model(body.model)
    services.task(TASK, inputs=("text",), outputs=("text",))
    if body.max_tokens == 0 and not body.echo:
        raise invalid_request("'max_tokens' of 0 needs 'echo': the answer would be empty.", "max_tokens")
    prompts = _prompts(body.prompt)
    if len(prompts) * (body.n or 1) > MAX_PROMPTS:
        raise invalid_request(f"A request may have at most {MAX_PROMPTS} choices: its prompts times 'n'.", "n")
    sampling = sampling_of(
        body,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        echo=bool(body.echo),
        constraint=constraint_of(services.plan, TASK, None, body.structured_outputs),
        lora=services.adapter(body.model),
    )
    own = own_parameters(services, body, TASK, ("text",), ("text",))
    requests = [
        Request(
            task=TASK,
            params={"prompt": prompt, "sampling": sampling, **own},
            id=call.context.id,
            deadline_s=call.context.remaining(body.timeout),
            priority=call.context.combined_priority(body.priority),
            tenant=call.context.tenant,
        )
        for prompt in prompts
    ]
    for request in requests:
        keep_read(services, request, body)
    wanted = _ReplyFormat(
        id=f"cmpl-{call.context.unique}",
        model=model,
        created=int(time.time()),
        choices=sampling.n * len(requests),
        logprobs=body.logprobs is not None,
        include_usage=body.usage_last,
        always_usage=body.usage_always,
    )
    events = await _run(services, call, requests, sampling.n)
    first = await anext(events)
    if body.stream:
        return Reply(_stream(services, events, first, wanted), sse.HEADERS, events=True)
    return Reply(await _whole(services, events, first, wanted))


def _prompts(prompt: str | list[Any]) -> list[Prompt]:
    """Return the prompts of a body: one or several, each as text or as token ids."""
    if isinstance(prompt, list) and set(map(type, prompt)) == {int}:  # a long list: no loop in Python
        return [Prompt(token_ids=prompt)]
    many = [prompt] if isinstance(prompt, str) else prompt
    if not many or len(many) > MAX_PROMPTS:
        raise invalid_request(f"'prompt' takes 1 to {MAX_PROMPTS} prompts.", "prompt")
    made = []
    for place, one in enumerate(many):
        param = "prompt" if isinstance(prompt, str) else f"prompt[{place}]"
        if isinstance(one, int):
            raise invalid_request("'prompt' mixes token ids with prompts.", param)
        if not one:
            raise invalid_request(f"'{param}' is empty.", param)
        made.append(Prompt(text=one) if isinstance(one, str) else Prompt(token_ids=one))
    return made


Item = tuple[int, TextDelta | Completed]


async def _run(services: Services, call: Call, requests: list[Request], n: int) -> AsyncIterator[Item]:
    """Run all prompts at once and yield their events in order of arrival, each with the index of its prompt's first
    choice.

    One prompt runs in the request's own task. Several prompts have a task each, and the first failure ends all.
    """
    if len(requests) == 1:
        return aiter(await _one(services, call, requests[0]))
    nursery = await call.enter(background())  # no task outlives the reply
    send, receive = trio.open_memory_channel[Item | OmniError](0)

    async def pump(request: Request, base: int, to: trio.MemorySendChannel[Item | OmniError]) -> None:
        async with to:
            try:
                async with services.open(request) as stream:
                    async for event in stream:
                        if isinstance(event, TextDelta | Completed):
                            await to.send((base, event))
            except OmniError as error:
                await to.send(error)

    async with send:
        for place, request in enumerate(requests):
            nursery.start_soon(pump, request, place * n, send.clone())
    return _raising(receive)


async def _one(services: Services, call: Call, request: Request) -> AsyncGenerator[Item, None]:
    stream = await call.enter(services.open(request))
    await stream.peek()

    async def items() -> AsyncGenerator[Item, None]:
        async for event in stream:
            if isinstance(event, TextDelta | Completed):
                yield 0, event

    return items()


async def _raising(receive: trio.MemoryReceiveChannel[Item | OmniError]) -> AsyncGenerator[Item, None]:
    async for item in receive:
        if isinstance(item, OmniError):
            raise item
        yield item


async def _whole(services: Services, events: AsyncIterator[Item], item: Item, wanted: _ReplyFormat) -> bytes:
    choices = [_Choice() for _ in range(wanted.choices)]
    while True:
        base, event = item
        if isinstance(event, TextDelta):
            choice = choices[base + event.index]
            choice.texts.append(event.text)
            choice.logprobs.extend(event.logprobs or ())
            choice.finish = event.finish_reason or choice.finish
        else:
            wanted.usage.append(_used(services, event))
        try:
            item = await anext(events)
        except StopAsyncIteration:
            break
    return sse.encode(
        {
            "id": wanted.id,
            "object": "text_completion",
            "created": wanted.created,
            "model": wanted.model,
            "choices": [
                {
                    "index": index,
                    "text": "".join(choice.texts),
                    "logprobs": _logprobs(choice.logprobs, choice) if wanted.logprobs else None,
                    "finish_reason": choice.finish,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": _usage(wanted),
        }
    )


async def _stream(
    services: Services, events: AsyncIterator[Item], item: Item, wanted: _ReplyFormat
) -> AsyncGenerator[bytes, None]:
    template = sse.Template(wanted.id, "text_completion", wanted.created, wanted.model, usage=wanted.include_usage)
    choices = [_Choice() for _ in range(wanted.choices)]
    tallies: defaultdict[int, Tally] = defaultdict(Tally)  # of each prompt, by its first choice
    while True:
        base, event = item
        if isinstance(event, Completed):
            wanted.usage.append(_used(services, event))
        elif wanted.always_usage:
            tallies[base].take(event)
        if isinstance(event, TextDelta) and _shows(event, wanted):
            index = base + event.index
            choice = {
                "index": index,
                "text": event.text,
                "logprobs": _logprobs(event.logprobs or [], choices[index]) if wanted.logprobs else None,
                "finish_reason": event.finish_reason,
            }
            usage = used(tallies[base].of(event.index)) if wanted.always_usage else None
            yield template.chunk(sse.encode(choice), usage)
        try:
            item = await anext(events)
        except StopAsyncIteration:
            break
    if wanted.include_usage:
        yield template.usage(_usage(wanted))
    yield sse.DONE


def _shows(event: TextDelta, wanted: _ReplyFormat) -> bool:
    return bool(event.text or event.finish_reason or (event.logprobs and wanted.logprobs))


def _used(services: Services, event: Completed) -> Usage:
    return event.usage.get(services.plan.tasks[TASK].outputs["text"], Usage())


def _usage(wanted: _ReplyFormat) -> dict[str, Any]:
    """Return the usage, summed over the prompts."""
    return totals(
        sum(it.prompt_tokens for it in wanted.usage),
        sum(it.cached_tokens for it in wanted.usage),
        sum(it.completion_tokens for it in wanted.usage),
    )


def _logprobs(tokens: list[TokenLogprob], choice: _Choice) -> dict[str, Any] | None:
    """Return log probabilities in this route's older form of parallel lists, and advance the choice's offset."""
    if not tokens:
        return None
    made: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for it in tokens:
        text = it.token.decode(errors="replace")
        scored = not math.isnan(it.logprob)  # the first token of an echoed prompt has no probability
        top = {token.decode(errors="replace"): finite(logprob) for _, token, logprob in it.top}
        made["tokens"].append(text)
        made["token_logprobs"].append(finite(it.logprob) if scored else None)
        made["top_logprobs"].append(top if scored else None)
        made["text_offset"].append(choice.offset)
        choice.offset += len(text)
    return made
