"""Options that a deploy file may set on a stage that reads chats."""

from __future__ import annotations

from typing import Any

CHAT_OPTIONS: dict[str, Any] = {"chat_template": None, "allow_control_tokens": False}
"""Option → default."""

CHAT_OPTIONS_DOC: dict[str, str] = {
    "chat_template": "File of a chat template (Jinja) to use instead of the model's own.",
    "allow_control_tokens": "Whether text of a message that reads like a control token of the model becomes one: then "
    "a client can forge turns.",
}

CHAT_OPTIONS_TYPE: dict[str, type] = {"chat_template": str}
"""Of those whose default is ``None``."""
