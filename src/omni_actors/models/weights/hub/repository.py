"""Fetching one repository of the hub into the hub client's cache.

The cache has the client's layout: content lies in ``blobs``, named by digest; a snapshot's files are links to blobs;
``refs`` have the commit of a branch or tag at the time of the fetch. A file grows as ``blobs/<digest>.incomplete``,
from where a later process continues, and gets its final name when the digest is right.

The module runs in :mod:`.child`, the only process that imports the hub's client.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from omni_actors.models.weights.disk import as_text, free_bytes, is_full
from omni_actors.models.weights.hub.records import record_file, write_record
from omni_actors.models.weights.hub.wanted import needed_of, texts_of
from omni_actors.pipelines.weights.files import SUFFIX, read_json
from omni_actors.pipelines.weights.hub import BRANCH, cache_folder, repository_folder
from omni_actors.pipelines.weights.intact import damage_of
from omni_actors.version import __version__

WORKERS = 4
"""Files that are fetched at once."""

RETRIES = 5
PAUSE_S = 0.125
"""Tries of a file in a row that bring nothing, and the pause before the first of them, which doubles each time."""

REPORT_S = 0.2
"""Seconds between two reports of one file."""

_COMMIT = re.compile("[0-9a-f]{40}")
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


class Tell(Protocol):
    """Is told of events, by name, from several threads."""

    def __call__(self, event: str, **fields: Any) -> None: ...


class Refused(Exception):
    """A refusal to fetch a repository or its content. The message is for the operator."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in the hub's list. ``digest`` is the content's SHA-256 for large files, git's SHA-1 for small files."""

    name: str
    size: int
    digest: str

    @classmethod
    def of(cls, file: RepoFile) -> Listed:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts:
            raise Refused("unsound", f"The hub lists a file called '{file.path}'.")
        digest = file.blob_id if file.lfs is None else file.lfs.sha256
        if not _DIGEST.fullmatch(digest):  # it becomes a file's name
            raise Refused("unsound", f"The hub lists '{file.path}' with the digest {digest!r}, which is none.")
        return cls(file.path, file.size, digest)

    def hashed(self) -> Any:
        """Make a hash object for the file's kind of digest."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)


class Repository:
    """Fetches a repository: :meth:`describe`, then :meth:`complete`."""

    def __init__(self, name: str, revision: str | None, check: bool, tell: Tell) -> None:
        self.name = name
        self.revision = revision or BRANCH
        self._check = check
        self._tell = tell
        self._folder = repository_folder(name)
        self._headers: dict[str, str] = build_hf_headers(library_name="omni-actors", library_version=__version__)
        self._listed: dict[str, Listed] = {}
        self._commit: str
        self._snapshot: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time fetches a repository."""
        lock = cache_folder() / ".locks" / self._folder.name / "omni-actors.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with open(lock, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._tell("waiting")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def describe(self) -> Path:
        """Ask the hub what there is, and fetch the small files. Returns the snapshot's folder."""
        api = HfApi(library_name="omni-actors", library_version=__version__)
        self._commit = str(api.model_info(self.name, revision=self.revision).sha)
        if not _COMMIT.fullmatch(self._commit):  # it becomes a folder's name
            raise Refused("unsound", f"The hub says that '{self.name}' is at {self._commit!r}, which is no commit.")
        tree = api.list_repo_tree(self.name, revision=self._commit, recursive=True)
        self._listed = {file.path: Listed.of(file) for file in tree if isinstance(file, RepoFile)}
        self._snapshot = self._folder / "snapshots" / self._commit
        self._remove_damaged()
        texts = texts_of(self._listed)
        self._record(texts, complete=False)
        self._fetch(texts, report=False)
        return self._snapshot

    def complete(self, patterns: Iterable[str]) -> None:
        """Fetch all needed files, also files that match ``patterns``, and then let the branch or tag refer to the
        snapshot."""
        needed = needed_of(self._listed, patterns, lambda name: read_json(self._snapshot / name))
        if not any(name.endswith(SUFFIX) for name in needed):
            others = sorted({Path(name).suffix for name in self._listed if self._listed[name].size > 1 << 20})
            has = f" (large files there end in {', '.join(others)})" if others else ""
            raise Refused("no_weights", f"'{self.name}' has no weights in the safetensors format{has}.")
        self._record(needed, complete=True)
        self._fetch(needed, report=True)
        if not _COMMIT.fullmatch(self.revision):
            reference = self._folder / "refs" / self.revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(self._commit, encoding="utf-8")

    # ---- files

    def _record(self, names: Iterable[str], *, complete: bool) -> None:
        chosen = [self._listed[name] for name in sorted(names)]
        files = {listed.name: {"size": listed.size, "digest": listed.digest} for listed in chosen}
        write_record(record_file(self._snapshot), files, complete=complete)

    def _remove_damaged(self) -> None:
        """Remove damaged files, to fetch the files again."""
        for one in damage_of(self._snapshot, whole=self._check):
            if one.path.is_symlink() or one.path.exists():
                self._tell("damaged", text=str(one))
                content = one.path.resolve()
                if content.parent == (self._folder / "blobs").resolve():  # what else a link leads to is not ours
                    content.unlink(missing_ok=True)
                one.path.unlink(missing_ok=True)
        for listed in self._listed.values():
            blob = self._blob(listed)
            if blob.exists() and blob.stat().st_size != listed.size:
                self._tell("damaged", text=f"{self._snapshot / listed.name}: it has {blob.stat().st_size:,} bytes")
                blob.unlink()

    def _blob(self, listed: Listed) -> Path:
        return self._folder / "blobs" / listed.digest

    def _fetch(self, names: Iterable[str], *, report: bool) -> None:
        """Bring files into the snapshot, after a check of the free disk space for missing files."""
        lacking = [self._listed[name] for name in sorted(names) if not self._take(self._listed[name])]
        if not lacking:
            return
        blobs = self._folder / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        size = sum(listed.size - _size(_partial(self._blob(listed))) for listed in lacking)
        if free_bytes(blobs) < size:
            raise self._full(size)
        if report:
            self._tell("total", files=len(lacking), bytes=sum(listed.size for listed in lacking))
        stop = threading.Event()
        with ThreadPoolExecutor(WORKERS) as pool:
            futures = [pool.submit(self._fetch_one, listed, report, stop) for listed in lacking]
            try:
                for future in futures:
                    future.result()
            except BaseException as error:
                stop.set()
                pool.shutdown(cancel_futures=True)
                if is_full(error):
                    full = self._full(size)  # with what is free now
                    for listed in lacking:
                        _partial(self._blob(listed)).unlink(missing_ok=True)
                    raise full from error
                raise

    def _full(self, size: int) -> Refused:
        free = as_text(free_bytes(self._folder))
        return Refused(
            "full",
            f"The disk is too full for '{self.name}': what is still to be fetched needs {as_text(size)}, and {free} "
            f"are free in {cache_folder()}. Make room, or set HF_HUB_CACHE to a folder on another disk.",
        )

    def _take(self, listed: Listed) -> bool:
        """Whether the file is in the snapshot, linked now if its content is here."""
        pointer = self._snapshot / listed.name
        if _size(pointer) == listed.size:
            return True
        blob = self._blob(listed)
        if _size(blob) != listed.size:
            return False
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.unlink(missing_ok=True)
        try:
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:  # a file system without links
            shutil.move(blob, pointer)
        return True

    def _fetch_one(self, listed: Listed, report: bool, stop: threading.Event) -> None:
        blob = self._blob(listed)
        partial = _partial(blob)
        begun = _size(partial) if partial.exists() else 0
        if begun > listed.size:
            partial.unlink()
        digest = self._download(listed, partial, report, stop)
        if digest != listed.digest and begun:  # what an earlier process has left may have been damaged since
            partial.unlink()
            digest = self._download(listed, partial, report, stop)
        if digest != listed.digest:
            partial.unlink()
            raise Refused(
                "damaged",
                f"The content that was fetched for '{listed.name}' of '{self.name}' is damaged: its digest is "
                f"{digest}, and the hub says {listed.digest}. It was removed.",
            )
        os.replace(partial, blob)
        self._take(listed)
        if report:
            self._tell("file", name=listed.name, done=listed.size, total=listed.size)

    def _download(self, listed: Listed, partial: Path, report: bool, stop: threading.Event) -> str:
        """Fetch a file, or the rest of a partial file, and return the digest. After a broken connection the download
        continues at the same place, unless nothing comes any more."""
        with open(partial, "r+b" if partial.exists() else "w+b") as file:
            growing = _Growing(file, listed, self._tell if report else None)
            failures = 0
            while growing.done < listed.size:
                before = growing.done
                try:
                    self._stream(listed, growing, stop)
                except Exception as error:
                    failures = 0 if growing.done > before else failures + 1
                    if failures > RETRIES or not passing(error):
                        raise
                    if stop.wait(PAUSE_S * 2**failures):
                        raise
            file.flush()
            os.fsync(file.fileno())
        return str(growing.digest.hexdigest())

    def _stream(self, listed: Listed, growing: _Growing, stop: threading.Event) -> None:
        url = hf_hub_url(self.name, listed.name, revision=self._commit)
        headers = dict(self._headers) | {"Accept-Encoding": "identity"}
        if growing.done:
            headers["Range"] = f"bytes={growing.done}-"
        session = get_session()
        with session.stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
            hf_raise_for_status(response)
            if growing.done and response.status_code == 200:
                growing.begin_anew()  # this server does not send parts of files
            for piece in response.iter_bytes():
                if stop.is_set():
                    raise InterruptedError("another file could not be fetched")
                if growing.done + len(piece) > listed.size:  # room was found for that much alone
                    growing.begin_anew()
                    raise Refused("damaged", f"'{listed.name}' came with more than its {listed.size:,} bytes.")
                growing.write(piece)
        if growing.done != listed.size:
            raise Refused("damaged", f"'{listed.name}' came with {growing.done:,} bytes instead of {listed.size:,}.")


class _Growing:
    """A growing file: received bytes go to the disk, into the digest and, now and then, into a report."""

    def __init__(self, file: BinaryIO, listed: Listed, tell: Tell | None) -> None:
        self._file, self._listed, self._tell = file, listed, tell
        self.digest = listed.hashed()
        self.done = 0
        self._said = 0.0
        while piece := file.read(1 << 20):  # what an earlier process has left
            self._count(piece)

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._file.flush()  # what has come is kept, also when this process is killed now
        self._count(piece)

    def begin_anew(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.digest, self.done = self._listed.hashed(), 0

    def _count(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.done += len(piece)
        now = time.monotonic()
        if self._tell is not None and self.done < self._listed.size and now - self._said >= REPORT_S:
            self._said = now
            self._tell("file", name=self._listed.name, done=self.done, total=self._listed.size)


def passing(error: BaseException) -> bool:
    """Whether a failure to fetch may pass by itself."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (408, 429, 500, 502, 503, 504)
    return of_the_network(error)


def of_the_network(error: BaseException | None) -> bool:
    """Whether an exception came from the client's HTTP library, whose name differs between the client's versions."""
    while error is not None:
        library = type(error).__module__.partition(".")[0]
        if library in ("httpx", "httpx2") or isinstance(error, ConnectionError | TimeoutError):
            return True
        error = error.__cause__
    return False


def _partial(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.incomplete")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0 if path.name.endswith(".incomplete") else -1
