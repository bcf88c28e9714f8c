"""What an operator decides about the server, apart from the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from omni_actors.entrypoints.keys import check_key
from omni_actors.entrypoints.server.limits import Limits


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server's own settings. Capacities and deadlines of the deployment are in ``Plan.limits``."""

    hosts: tuple[str, ...] = ("127.0.0.1",)
    """Names and addresses to listen on; ``::`` is every address of both families."""
    port: int = 8000
    """0 takes a free port."""
    unix_path: str | None = None
    """A unix socket to listen on, instead of hosts and port."""
    tls_certificate: str | None = None
    """File of the certificate chain (PEM). With one, only TLS is spoken."""
    tls_key: str | None = None
    """File of its private key, where that is not in the same one."""
    server: Literal["builtin", "hypercorn"] = "builtin"
    limits: Limits = field(default_factory=Limits)
    """What one client may take of the connections. Hypercorn has limits of its own."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Without one, no key is asked for."""
    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys that open the admin routes (and no other ones). ``serve`` adds one of its own."""
    cors_origins: tuple[str, ...] = ("*",)
    """Browser origins that may call; ``*`` is any (without credentials), empty is none."""
    model_aliases: tuple[str, ...] = ()
    """Further names under which the model answers."""
    audio_history_s: float = 3600.0
    """How long a spoken answer can be referred to by its id in a later turn (``expires_at``)."""
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` for keys that open nothing, or more than they should."""
        for name, keys in (("an API key", self.api_keys), ("an admin key", self.admin_keys)):
            for key in keys:
                check_key(key, name)
        if set(self.api_keys) & set(self.admin_keys):
            raise ValueError("an API key is an admin key too: those who may use the model may not replace its workers")
