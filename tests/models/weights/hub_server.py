"""A hub on loopback: what huggingface_hub's client asks of one to fetch a repository, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LARGE = 1 << 10
"""Files of so many bytes are listed with their SHA-256, as large ones are on a hub."""

_REVISION = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)/revision/(?P<revision>[^?]+)")
_TREE = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)/tree/(?P<revision>[^?]+)")
_FILE = re.compile(r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>[^?]+)")


@dataclass
class Repo:
    """A repository: its files by revision (a branch or tag), and who may read it."""

    files: dict[str, dict[str, bytes]]
    token: str | None = None
    gated: bool = False

    def commit(self, revision: str) -> str | None:
        """The commit of a branch, a tag, or of itself."""
        commits = {name: hashlib.sha1(name.encode()).hexdigest() for name in self.files}
        return commits.get(revision) or (revision if revision in commits.values() else None)

    def at(self, commit: str) -> dict[str, bytes]:
        return next(files for name, files in self.files.items() if self.commit(name) == commit)


@dataclass
class Hub:
    """``cut`` says after how many bytes of a file the connection breaks, each time that it is asked for; ``wrong``
    what is sent in a file's place. ``asked`` are the paths that were asked for, ``ranges`` the ranges, by path."""

    repos: dict[str, Repo] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    wrong: dict[str, bytes] = field(default_factory=dict)
    hold: dict[str, threading.Event] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ranges: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    agents: set[str] = field(default_factory=set)
    commit: str | None = None
    """What is said to be every repository's commit."""
    digests: dict[str, str] = field(default_factory=dict)
    """What is said to be a file's digest, by path."""

    def __post_init__(self) -> None:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        for event in self.hold.values():
            event.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fetched(self) -> set[str]:
        """The names of the files of which content was asked for."""
        return {match["path"] for path in self.asked if (match := _FILE.match(path))}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self.hub.asked.append(self.path)
        self.hub.agents.add(self.headers.get("User-Agent", ""))
        for pattern, answer in ((_REVISION, self._revision), (_TREE, self._tree), (_FILE, self._file)):
            match = pattern.match(self.path)
            if match:
                repo = self.hub.repos.get(match["name"])
                sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
                if sent == "refused":
                    self._fail(401, "", "Invalid credentials in Authorization header")
                elif repo is None or (repo.token is not None and not repo.gated and sent != repo.token):
                    self._fail(404 if sent else 401, "RepoNotFound" if sent else "", "Repository not found")
                elif repo.gated and sent != repo.token and pattern is _FILE:
                    self._fail(403 if sent else 401, "GatedRepo", "Access to this model is restricted.")
                elif (commit := repo.commit(match["revision"])) is None:
                    self._fail(404, "RevisionNotFound", "Invalid rev id")
                else:
                    answer(repo, commit, match)
                return
        self._fail(404, "", "there is no such route")

    def _revision(self, repo: Repo, commit: str, match: re.Match[str]) -> None:
        sha = self.hub.commit or commit
        self._json({"id": match["name"], "sha": sha, "siblings": [], "gated": "auto" if repo.gated else False})

    def _tree(self, repo: Repo, commit: str, match: re.Match[str]) -> None:
        listed: list[dict[str, Any]] = []
        for path, content in repo.at(commit).items():
            entry = {"type": "file", "path": path, "size": len(content), "oid": blob_of(content)}
            if len(content) >= LARGE:
                sha256 = self.hub.digests.get(path) or hashlib.sha256(content).hexdigest()
                entry |= {"lfs": {"oid": sha256, "size": len(content), "pointerSize": 130}}
            listed.append(entry)
        self._json(listed)

    def _file(self, repo: Repo, commit: str, match: re.Match[str]) -> None:
        path = match["path"]
        content = repo.at(commit).get(path)
        if content is None:
            self._fail(404, "EntryNotFound", "there is no such file")
            return
        content = self.hub.wrong.get(path, content)
        first = 0
        if asked := self.headers.get("Range"):
            self.hub.ranges[path].append(asked)
            first = int(asked.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        cuts = self.hub.cut.get(path)
        if cuts:
            self.wfile.write(content[first : first + cuts.pop(0)])
            self.wfile.flush()
            if path in self.hub.hold:
                self.hub.hold[path].wait()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.wfile.write(content[first:])

    def _json(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def blob_of(content: bytes) -> str:
    """The name that git gives to a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    """A checkpoint's folder as a repository's files."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
