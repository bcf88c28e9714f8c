"""Checks that the files of a model's folder are whole, without loading them.

Three sources describe a file:

- a record of sizes and digests (:data:`RECORD`), written when the folder was made;
- in the hub client's cache, the name of the file's blob, which is the digest of the content;
- the file's format: the header of a safetensors file states the file's length, and JSON must parse.

A quick check reads headers and small files, in some milliseconds for a checkpoint of any size. A whole check reads
every byte (0.6 to 1.5 s per GB on one core).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_actors.pipelines.weights.files import INDEX_SUFFIX, SUFFIX, read_json, shards_of, weights_of
from omni_actors.pipelines.weights.hub import checkpoint_of

RECORD = "omni_files.json"
"""Name of the record in folders that this package made."""

MARKER = "omni_weights.json"
"""Name of the file that says which of the built-in demo's weights a folder holds."""

PULL_COMMAND = "python -m omni_actors models pull"

SMALL = 16 << 20
"""Bytes. A quick check too reads files up to this size as a whole."""

_LARGEST_HEADER = 100_000_000
"""Bytes of the largest header that the safetensors format allows."""

_READ_AT_LOAD = re.compile(
    r"(?:config|model_index|scheduler_config|generation_config|tokenizer|tokenizer_config|special_tokens_map|preprocessor_config|processor_config"
    r"|video_preprocessor_config|audio_tokenizer_config|chat_template|vocab|added_tokens|tekken|.*\.index)\.json"
)


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged file, and what is wrong with it."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def damage_of(folder: Path, *, whole: bool = False) -> list[Damage]:
    """Return the damage of a model's folder and of its direct subfolders.

    Args:
        folder: The folder; a folder that does not exist has no damage.
        whole: Whether to compare every byte with the known digests.

    Raises:
        OSError: The folder cannot be listed.
    """
    found: dict[Path, Damage] = {}
    if not folder.is_dir():
        return []
    for one in (*_recorded(folder, whole), *_blobs(folder, whole), *_formats(folder)):
        found.setdefault(one.path, one)
    return list(found.values())


def described(damage: list[Damage], folder: Path) -> str:
    """Return an error message about damage in a folder: each file, and the command that repairs the folder."""
    listed = "\n".join(f"  {one}" for one in damage)
    return f"Weights in {folder} are damaged:\n{listed}\n{repair_of(folder)}"


def repair_of(folder: Path) -> str:
    """Return a sentence that says what to do about damage in a folder."""
    if (name := _pulled(folder)) is not None:
        return f"Run: {PULL_COMMAND} {name}"
    return "Replace each of these files by an undamaged copy, from where the folder came from."


def check_of(folder: Path) -> str:
    """Return a sentence that says how to check every byte of a folder."""
    if (name := _pulled(folder)) is not None:
        return f"To check and repair them, run: {PULL_COMMAND} --check {name}"
    return "Compare its files with those where the folder came from."


def _pulled(folder: Path) -> str | None:
    """Return the name by which the pull command knows a folder, or ``None``."""
    try:
        return str(read_json(folder / MARKER)["name"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if (public := checkpoint_of(folder)) is None:
        return None
    name, commit = public
    return name if commit is None else f"{name} --revision {commit}"


# ---- the record


def record(folder: Path) -> None:
    """Write the record of a folder that is whole: sizes and SHA-256 of all files. Raises OSError."""
    files = {name: _entry(path) for name, path in _files(folder)}
    _write(folder, files)


def _recorded(folder: Path, whole: bool) -> Iterator[Damage]:
    """Yield the differences from the folder's record. A file of the right size is read only if it was written to since,
    or for a whole check."""
    try:
        files: dict[str, dict[str, Any]] = read_json(folder / RECORD)["files"]
        expected = {name: (int(it["size"]), str(it["sha256"]), int(it["mtime_ns"])) for name, it in files.items()}
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield Damage(folder / RECORD, f"it cannot be read ({error})")
        return
    moved = False
    for name, (size, digest, written) in expected.items():
        path = folder / name
        try:
            now = path.stat()
            if now.st_size != size:
                yield Damage(path, f"it has {now.st_size:,} bytes instead of {size:,}")
            elif whole or now.st_mtime_ns != written:
                if _digest(path) != digest:
                    yield Damage(path, "its SHA-256 is not what it was when the file was made")
                elif now.st_mtime_ns != written:
                    files[name]["mtime_ns"], moved = now.st_mtime_ns, True
        except FileNotFoundError:
            yield Damage(path, "it is missing")
        except OSError as error:
            yield Damage(path, f"it cannot be read ({error.strerror or error})")
    if moved:  # the folder was copied and need not be read again
        try:
            _write(folder, files)
        except OSError:
            pass


def _entry(path: Path) -> dict[str, Any]:
    known = path.stat()
    return {"size": known.st_size, "sha256": _digest(path), "mtime_ns": known.st_mtime_ns}


def _write(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    written = folder / f"{RECORD}.{os.getpid()}"
    try:
        written.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
        os.replace(written, folder / RECORD)
    finally:
        written.unlink(missing_ok=True)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in (RECORD, MARKER) and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix(), path


# ---- blobs of the hub's cache


def _blobs(folder: Path, whole: bool) -> Iterator[Damage]:
    if checkpoint_of(folder) is None:
        return
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink():
            continue
        blob = path.resolve()
        try:
            size = blob.stat().st_size
            if (whole or size <= SMALL) and not matches(blob, blob.name):
                yield Damage(path, "its content is not what its digest says")
        except FileNotFoundError:
            yield Damage(path, "its blob is missing")
        except OSError as error:
            yield Damage(path, f"it cannot be read ({error.strerror or error})")


def matches(path: Path, name: str) -> bool:
    """Return whether a file's content has the digest that is the name of its blob: SHA-256 for large files, git's
    digest for small files. A name that is no digest allows any content. Raises OSError."""
    if re.fullmatch("[0-9a-f]{64}", name):
        return _digest(path) == name
    if re.fullmatch("[0-9a-f]{40}", name):
        return git_digest(path) == name
    return True


def git_digest(path: Path) -> str:
    """Return the digest that git gives to a content."""
    hashed = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            hashed.update(piece)
    return hashed.hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- formats


def _formats(folder: Path) -> Iterator[Damage]:
    """Yield the damage of files that a loader reads and that break the rules of their format."""
    names = [path.relative_to(folder).as_posix() for path in (*folder.glob("*"), *folder.glob("*/*"))]
    for name in names:
        if _READ_AT_LOAD.fullmatch(name.rpartition("/")[2]) and (reason := _json_fault(folder / name)):
            yield Damage(folder / name, reason)
    for name in sorted(weights_of(names, lambda name: read_json(folder / name))):
        if reason := _safetensors_fault(folder / name):
            yield Damage(folder / name, reason)


def _json_fault(path: Path) -> str | None:
    if path.is_dir():
        return None
    try:
        read = read_json(path)
        if path.name.endswith(INDEX_SUFFIX):
            shards_of(read)
        elif not isinstance(read, dict):
            return "it holds no JSON object"
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    except ValueError as error:
        return f"it is no valid JSON ({error})"
    return None


def _safetensors_fault(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            known = os.fstat(file.fileno())
            if not stat.S_ISREG(known.st_mode):
                return "it is no file"
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_LARGEST_HEADER, known.st_size - 8):
                return f"its {known.st_size:,} bytes hold no safetensors header"
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        whole = 8 + length + max(ends, default=0)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "its safetensors header makes no sense"
    return None if whole == known.st_size else f"it has {known.st_size:,} bytes instead of {whole:,}"


__all__ = ["Damage", "MARKER", "PULL_COMMAND", "RECORD", "SUFFIX", "damage_of", "described", "matches", "record"]
