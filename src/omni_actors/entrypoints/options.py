"""An operator's settings of the server, apart from the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from omni_actors.entrypoints.keys import check_key
from omni_actors.entrypoints.server.limits import Limits


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server's own settings. Capacities and deadlines of the deployment are in ``Plan.limits``.

    >>> from omni_actors import ServerOptions
    >>> options = ServerOptions(hosts=("::",), port=8080, api_keys=("a-long-random-text",))
    >>> options.port, options.cors_origins
    (8080, ('*',))
    >>> ServerOptions(api_keys=("shared",), admin_keys=("shared",))
    Traceback (most recent call last):
    ...
    ValueError: ...
    """

    hosts: tuple[str, ...] = ("127.0.0.1",)
    """Names and addresses to listen on; ``::`` is every address of both families."""
    port: int = 8000
    """Port to listen on; 0 takes a free port."""
    unix_path: str | None = None
    """A unix socket to listen on, instead of hosts and port."""
    tls_certificate: str | None = None
    """File of the certificate chain (PEM). With a certificate, only TLS is spoken."""
    tls_key: str | None = None
    """File of the private key, unless the certificate's file contains it."""
    server: Literal["builtin", "hypercorn"] = "builtin"
    limits: Limits = field(default_factory=Limits)
    """Limits on clients' connections. Hypercorn has limits of its own instead."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys of which a client must send one; empty means that no key is needed."""
    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys for the admin routes only. ``serve`` adds one of its own."""
    cors_origins: tuple[str, ...] = ("*",)
    """Browser origins that may call; ``*`` allows any (without credentials), empty allows none."""
    model_aliases: tuple[str, ...] = ()
    """Further names under which the model answers."""
    lora_dirs: tuple[str, ...] = ()
    """Folders from which an operator may load LoRA adapters while the server runs; empty allows none."""
    audio_history_s: float = 3600.0
    """Seconds for which later turns can refer to a spoken answer by its id (``expires_at``)."""
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` for an unusable key, and for an API key that is an admin key too."""
        for name, keys in (("an API key", self.api_keys), ("an admin key", self.admin_keys)):
            for key in keys:
                check_key(key, name)
        if set(self.api_keys) & set(self.admin_keys):
            raise ValueError(
                "an API key is an admin key too: clients of the model must not be able to replace its workers"
            )
