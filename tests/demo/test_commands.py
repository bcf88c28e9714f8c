"""Commands to a deployment of real engines: what they cannot do is said in an operator's words."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from omni_actors.entrypoints.commands.replicas import replicas_group
from omni_actors.protocol.errors import OmniError

from .server import Server

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(60)]


def replicas(server: Server, *words: str) -> Result:
    """``omni-actors replicas …``, which finds the server's admin key by itself."""
    return CliRunner().invoke(replicas_group, [*words, "--url", server.url, "--json"])


def test_no_engine_of_the_demo_sleeps_and_each_says_so(server: Server) -> None:
    """A one-shot model, an autoregressive one on torch, and the media process."""
    listed = json.loads(replicas(server, "list").output)
    assert {"llm", "asr", "acoustic", "media"} <= {it["stage"] for it in listed}
    for it in listed:
        for action in ("sleep", "wake"):
            refused = replicas(server, action, it["stage"], "0").exception
            assert isinstance(refused, OmniError)
            said = str(refused)
            assert said.startswith(f"Cannot {action} replica 0 of stage '{it['stage']}': ")
            assert ("the media process has no model" if it["stage"] == "media" else "cannot sleep; vLLM's") in said
            assert "question" not in said
    assert json.loads(replicas(server, "list").output)[0]["state"] == "ready"
    assert server.healthy()
