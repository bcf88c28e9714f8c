"""Options of a stage that reads chats, as a deploy file may set them."""

from __future__ import annotations

from omni_actors.protocol.options import Option

CHAT_OPTIONS: dict[str, Option] = {
    "chat_template": Option(None, "File of a chat template (Jinja) to use instead of the model's own.", type=str),
    "allow_control_tokens": Option(
        False,
        "Whether text of a message that reads like a control token becomes one; clients can then forge turns.",
    ),
}
"""Option name → :class:`Option`."""
