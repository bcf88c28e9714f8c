"""The check of a request against the facts that workers have reported of their models, before any work is done for
it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import Request


def check_known(request: Request, facts: Mapping[str, Any], sections: Collection[str]) -> None:
    """Raise the error that a stage is certain to raise for a request, by the facts that its worker has reported.

    The stage checks the same of every request. The check here comes before media are decoded or fetched in vain.

    Args:
        request: The request; its media may still be missing.
        facts: ``vocab_size``, ``max_model_len`` (tokens), ``longest_token`` (characters) and ``reserved_variables``
            (names that a chat template's variables cannot have). A fact that is missing is not checked.
        sections: Names of the sections that the stage reads.

    Raises:
        OmniError: Status 400, with the field as ``param``.
    """
    sampling, prompt = (request.params.get(it) if it in sections else None for it in ("sampling", "prompt"))
    context, size = facts.get("max_model_len"), facts.get("vocab_size")
    if isinstance(sampling, Sampling) and size is not None:
        for name, ids in (("stop_token_ids", sampling.stop_token_ids), ("logit_bias", sampling.logit_bias)):
            for token_id in ids:
                if not 0 <= token_id < size:
                    raise invalid_request(f"'{name}': token id {token_id} is not below {size}.", name)
    if not isinstance(prompt, Prompt) or prompt.messages is None:
        return
    for name in sorted(prompt.chat_template_kwargs.keys() & set(facts.get("reserved_variables", ()))):
        raise invalid_request(f"'{name}' is not a variable of the chat template.", f"chat_template_kwargs.{name}")
    if context is None:
        return
    if isinstance(sampling, Sampling) and sampling.max_tokens is not None and sampling.max_tokens >= context:
        raise _too_long(context, f"{sampling.max_tokens} are asked for behind the prompt")
    length = sum(map(_length, prompt.messages))
    if "longest_token" in facts and length > context * facts["longest_token"]:
        raise _too_long(context, f"the prompt's {length} characters cannot fit")


def _too_long(context: int, why: str) -> OmniError:
    message = f"This model's maximum context length is {context} tokens; {why}."
    return invalid_request(message, "messages", "context_length_exceeded")


def _length(message: Mapping[str, Any]) -> int:
    """Return the number of characters in a message's texts."""
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text") or "") for part in content or ())
