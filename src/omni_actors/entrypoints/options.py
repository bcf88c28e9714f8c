"""What an operator decides about the server, apart from the model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server's own settings. Capacities and deadlines of the deployment are in ``Plan.limits``."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free port."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Without one, no key is asked for."""
    cors_origins: tuple[str, ...] = ("*",)
    """Browser origins that may call; ``*`` is any (without credentials), empty is none."""
    model_aliases: tuple[str, ...] = ()
    """Further names under which the model answers."""
    body_idle_s: float = 30.0
    """Longest silence of a client that is still sending its body; then 408."""
    body_s: float = 600.0
    """What a client gets for sending its whole body; then 408."""
    audio_history_s: float = 3600.0
    """How long a spoken answer can be referred to by its id in a later turn (``expires_at``)."""
    log_level: str = "INFO"
