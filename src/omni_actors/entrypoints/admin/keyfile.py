"""The admin key that a server makes at its start, in a file that programs of the same user can find.

The file is in a folder of mode 700 under the cache (else under ``$XDG_RUNTIME_DIR``), has mode 600, and is locked while
its server lives. A file without a lock belongs to a killed server, and the next server to start removes it. A program
that has connected to a server finds the key by the other end of the connection, and so gives the key only to a live
server of this user on this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import os
import secrets
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from omni_actors.entrypoints.server.addresses import plain
from omni_actors.entrypoints.server.transport import peer_user
from omni_actors.models.weights.cache import cache_root

FILE_BYTES = 65_536
"""Most bytes of a file that are read."""

log = logging.getLogger("omni_actors.serve")


class KeyFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file, as JSON."""

    key: str
    urls: list[str]
    """The server's addresses: ``http://127.0.0.1:8000``, ``unix:/run/omni.sock`` (absolute)."""
    pid: int
    machine: str
    """The boot and the network namespace to which the addresses belong."""


def make_key() -> str:
    """Return a new key of 256 random bits."""
    return secrets.token_urlsafe(32)


def folders() -> list[Path]:
    """Return the folders of this user's key files, the preferred one first."""
    found = [cache_root() / f"admin-{os.geteuid()}"]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        found.append(Path(runtime) / "omni-actors-admin")
    return found


@contextlib.contextmanager
def published(key: str, urls: Sequence[str]) -> Iterator[Path | None]:
    """Publish the key of a server that listens at ``urls`` in a file while the block runs.

    The block gets the file's path; ``None`` if no folder is writable, which is logged and does not prevent serving.
    """
    with contextlib.ExitStack() as held:
        yield _publish(key, urls, held)


def find_key(connection: socket.socket, unix_path: str | None = None) -> str | None:
    """Return the admin key of the server at the other end of a connection.

    Args:
        connection: A connected TCP or unix socket; the socket may carry TLS.
        unix_path: The path to which a unix socket was connected.

    Returns:
        The key; ``None`` unless a live server of this user on this machine listens there and has published one.
    """
    for folder in folders():
        for entry in _live(folder):
            if _leads_to(connection, unix_path, entry):
                return entry.key
    return None


def _publish(key: str, urls: Sequence[str], held: contextlib.ExitStack) -> Path | None:
    where = [f"unix:{os.path.realpath(url[5:])}" if url.startswith("unix:") else url for url in urls]
    entry = KeyFile(key=key, urls=where, pid=os.getpid(), machine=_machine())
    failures = []
    for folder in folders():
        try:
            path = _write(folder, entry, held)
        except OSError as error:
            failures.append(f"{folder}: {error.strerror or error}")
            continue
        log.info("the admin key is in %s", path)
        return path
    log.warning(
        "the admin key cannot be written (%s): only 'serve --admin-key KEY', or the server's own user over a unix "
        "socket, opens the admin routes",
        "; ".join(failures),
    )
    return None


def _write(folder: Path, entry: KeyFile, held: contextlib.ExitStack) -> Path:
    directory = _open_folder(folder, make=True)
    held.callback(os.close, directory)
    port = "unix" if entry.urls[0].startswith("unix:") else urlsplit(entry.urls[0]).port
    # Processes of several containers may share the folder and have one number; hence the random part.
    name = f"{port}-{entry.pid}-{secrets.token_hex(4)}.json"
    fcntl.flock(directory, fcntl.LOCK_EX)  # until the file is locked nobody may take it for one that is left behind
    try:
        _remove_stale(directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=directory)
        held.callback(os.close, file)  # after the file is removed: it stays locked until then
        held.callback(_remove, name, directory)
        os.fchmod(file, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, msgspec.json.format(msgspec.json.encode(entry)) + b"\n")
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)
    return folder / name


def _open_folder(folder: Path, *, make: bool = False) -> int:
    """Return a descriptor of the folder. Raises ``OSError``, also for another user's folder or a symbolic link."""
    if make:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid():
            raise PermissionError(0, "the folder belongs to another user")
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(directory, 0o700)
    except BaseException:
        os.close(directory)
        raise
    return directory


def _live(folder: Path) -> Iterator[KeyFile]:
    """Yield the files of a folder whose servers live, skipping unreadable and foreign files."""
    try:
        directory = _open_folder(folder)
    except OSError:
        return
    try:
        for name in _names(directory):
            with contextlib.suppress(OSError, msgspec.DecodeError), _opened(name, directory) as file:
                if not _is_left_behind(file, fcntl.LOCK_SH):
                    yield msgspec.json.decode(os.read(file, FILE_BYTES), type=KeyFile)
    finally:
        os.close(directory)


def _remove_stale(directory: int) -> None:
    for name in _names(directory):
        with contextlib.suppress(OSError), _opened(name, directory) as file:
            if _is_left_behind(file, fcntl.LOCK_EX):
                os.unlink(name, dir_fd=directory)


def _names(directory: int) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".json"))


@contextlib.contextmanager
def _opened(name: str, directory: int) -> Iterator[int]:
    """Open a file that belongs to this user and that nobody else may read. Raises ``OSError`` for another file."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(0, "not a private file of this user")
        yield file
    finally:
        os.close(file)


def _is_left_behind(file: int, kind: int) -> bool:
    """Return whether no live server locks the file. In that case the caller holds the lock until the file is closed."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(name: str, directory: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


def _leads_to(connection: socket.socket, unix_path: str | None, entry: KeyFile) -> bool:
    if connection.family == socket.AF_UNIX:
        if unix_path is None or f"unix:{os.path.realpath(unix_path)}" not in entry.urls:
            return False
        return peer_user(connection) == os.geteuid()
    if entry.machine != _machine():
        return False
    peer, port = _address(connection.getpeername()[0]), connection.getpeername()[1]
    is_here = peer.is_loopback or peer == _address(connection.getsockname()[0])
    for url in entry.urls:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.port == port:
            listening = _address(parts.hostname or "")
            if listening == peer or (listening.is_unspecified and listening.version == peer.version and is_here):
                return True
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(plain(host.partition("%")[0]))
