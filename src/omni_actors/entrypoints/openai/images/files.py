"""``GET /v1/images/files/TOKEN``: a picture by its URL."""

from __future__ import annotations

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai.images.encoding import CONTENT_TYPES
from omni_actors.entrypoints.picture_files import FILES
from omni_actors.entrypoints.services import Services
from omni_actors.protocol.errors import not_found


async def file(services: Services, call: Call, token: str) -> Reply:
    """Give a kept picture. The token is all that is needed; a picture that is unknown or past its time is a 404."""
    kept = services.pictures.get(token)
    if kept is None:
        raise not_found(
            "There is no such picture: it was never there, or its time is over. Ask for the picture again, with its "
            "seed.",
            code="picture_not_found",
        )
    headers = [
        ("content-type", CONTENT_TYPES[kept.format]),
        ("content-disposition", f'inline; filename="picture.{kept.format}"'),
        # No copy may outlive the picture, neither in a proxy nor in a browser.
        ("cache-control", "private, no-store"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ]
    return Reply(kept.data, headers)


def url_of(services: Services, call: Call, token: str) -> str:
    """Return the URL of a kept picture, under the host by which the client has reached this server.

    A proxy in front tells that host and its scheme by ``Host`` (or ``X-Forwarded-Host``) and ``X-Forwarded-Proto``.
    """
    given = call.headers
    scheme = _first(given.get(b"x-forwarded-proto")) or ("https" if services.options.tls_certificate else "http")
    host = _first(given.get(b"x-forwarded-host")) or _first(given.get(b"host")) or "localhost"
    return f"{scheme if scheme in ('http', 'https') else 'http'}://{host}{FILES}{token}"


def _first(value: bytes | None) -> str:
    return (value or b"").decode("latin-1").partition(",")[0].strip()
