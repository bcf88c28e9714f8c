"""Exceptions of the hub's client in words for an operator.

Runs in :mod:`.child`; only there is the hub's client imported.
"""

from __future__ import annotations

from huggingface_hub import constants, get_token
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from omni_actors.models.weights.disk import is_full
from omni_actors.models.weights.hub.repository import Refused, of_the_network

_LOG_IN = "log in with 'hf auth login', or set HF_TOKEN"


def failure_of(error: Exception, name: str, revision: str | None) -> tuple[str, str]:
    """Return the kind of a failure (a word for programs) and its description."""
    endpoint = constants.ENDPOINT.rstrip("/")
    if isinstance(error, Refused):
        return error.kind, str(error)
    if isinstance(error, GatedRepoError):
        accept = f"Accept its terms at {endpoint}/{name}"
        if get_token() is None:
            return "gated", f"'{name}' is gated. {accept}, then {_LOG_IN} to a token of that account."
        return "gated", (
            f"'{name}' is gated, and the account of the token that was sent has no access to it. {accept} with that "
            "account, or wait until its owners have granted access."
        )
    if isinstance(error, RevisionNotFoundError):
        return "no_revision", f"'{name}' has no branch, tag or commit '{revision or 'main'}'."
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, RepositoryNotFoundError) or (status == 401 and get_token() is None):
        if get_token() is None:
            return "not_found", f"The hub has no '{name}' that is public. For a private one, {_LOG_IN}."
        return "not_found", f"The hub has no '{name}', or the account of the token that was sent may not see it."
    if isinstance(error, HfHubHTTPError):
        if status == 401:
            return "token", f"The hub refuses the token that was sent (401). {_LOG_IN[0].upper()}{_LOG_IN[1:]} anew."
        if status == 403:
            return (
                "forbidden",
                f"The hub forbids access to '{name}' (403): {error.server_message or 'it says no more'}.",
            )
        return "hub", f"The hub ({endpoint}) answers {status} for '{name}'. Try again later."
    if is_full(error):
        return "full", f"The disk is full: {error}"
    if of_the_network(error):
        return "unreachable", f"The hub ({endpoint}) cannot be reached, or broke off: {_said(error)}."
    return "failed", f"Fetching '{name}' failed: {_said(error)}."


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
