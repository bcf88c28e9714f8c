"""What operators, model folders, URLs and a worker's page of liveness may say."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.inputs import refusing
from tests.fuzz.target import One, Target, chance, plain

from omni_actors.media.addresses import AllowList, carried, is_public, parse
from omni_actors.media.service.fetch import _target
from omni_actors.pipelines.deploy.overlay import peek_overlay, read_overlay, read_overrides
from omni_actors.pipelines.factory import resolve, settings_of
from omni_actors.pipelines.planning.checkpoint_facts import apply_checkpoint_facts, read_checkpoint_facts
from omni_actors.pipelines.planning.choose import choose
from omni_actors.pipelines.planning.missing import missing_weights
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.weights.hub import missing_shards
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.liveness import PAGE_BYTES
from omni_actors.stages.liveness import LivenessPage

RAM = "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextmanager
def _overlay() -> Iterator[One]:
    """A deploy file; and its first line as a ``--set`` option. Now and then with all that is made of it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=RAM) as folder:
        file = Path(folder, "deploy.yaml")
        registry = Registry.installed()
        schema = settings_of(resolve("stub", platform="cpu", registry=registry))

        def one(data: bytes) -> None:
            file.write_bytes(data)
            option = data.partition(b"\n")[0].decode(errors="replace").replace(": ", "=", 1)
            with contextlib.suppress(OmniError):
                peek_overlay(file, "model", "pipeline")
            with contextlib.suppress(OmniError):
                read_overlay(file, schema)
            with contextlib.suppress(OmniError):
                read_overrides([option], schema)
            if chance(data).random() < 0.02:
                with contextlib.suppress(OmniError):
                    resolve("stub", overlay=file, platform="cpu", registry=registry)

        yield one


def _overlay_seeds() -> list[bytes]:
    return [
        b"pipeline: stub\nlimits:\n  max_body_bytes: 64 MiB\n  deadline_s: 5.0\nstages:\n  echo:\n    replicas: 2\n",
        b"stages.media.options: {max_seconds: 5, allowed_hosts: [10.0.0.0/8]}\nserved_model_name: &a x\nmodel: *a\n",
        b"stages.media.devices: [cpu, cpu]\n",
        b"limits.max_requests: !!int 5\n",
        b"limits.deadline_s: 1e400\n",
        b"stages.media.environment: {A: 1, B: 2001-01-01}\n",
    ]


_FAMILIES = ("qwen3-tts", "qwen3-tts-fused", "pocket-tts", "qwen3-omni", "causal-lm")
_FILES = ("config.json", "model.safetensors.index.json", "speech_tokenizer/config.json", "tokenizer_config.json")


@contextmanager
def _folder() -> Iterator[One]:
    """A model's folder whose files, cut at zero bytes, are the input. The first byte forces a family, or none."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=RAM) as made:
        folder, registry = Path(made), Registry.installed()
        (folder / "speech_tokenizer").mkdir()

        def one(data: bytes) -> None:
            parts = data[1:].split(b"\0")
            for name, part in zip(_FILES, parts, strict=False):
                (folder / name).write_bytes(part)
            for name in _FILES[len(parts) :]:
                (folder / name).unlink(missing_ok=True)
            forced = ((data[0] if data else 0) % (len(_FAMILIES) + 1)) - 1
            family = _FAMILIES[forced] if forced >= 0 else None
            list(missing_shards(folder))
            with contextlib.suppress(OmniError):
                chosen = choose(made, family, {}, None, registry).pipeline
                apply_checkpoint_facts(chosen, read_checkpoint_facts(chosen, folder))
                if chance(data).random() < 0.05:
                    missing_weights(resolve(made, pipeline=family, platform="cpu", registry=registry))

        yield one


def _folder_seeds() -> list[bytes]:
    speech = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "tts_model_type": "custom_voice",
        "talker_config": {"spk_id": {"vivian": 1}, "codec_language_id": {"english": 1}, "num_code_groups": 16},
    }
    codec = {"output_sample_rate": 24000, "encode_downsample_rate": 1920}
    index = {"weight_map": {"a": "model-1.safetensors"}}
    text = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}
    tail = [json.dumps(index).encode(), json.dumps(codec).encode()]
    return [
        bytes([kind]) + b"\0".join([json.dumps(it).encode(), *tail])
        for kind, it in ((0, speech), (1, speech), (2, speech), (0, text), (5, text), (3, {}))
    ]


def _url(data: bytes) -> None:
    """Nobody is sent to an address that Python's own tables call private, in whatever form it is written."""
    text = data.decode(errors="replace")
    with refusing():
        target = _target(text, "url")
        assert target.host
        assert 0 <= target.port <= 65535
        assert (target.path + target.authority).isascii()
        assert not set(target.path + target.authority) & set("\r\n \0")
        _address(target.host)
    _address(text)
    with contextlib.suppress(ValueError):
        AllowList(text.split(",")).host("a.example")


def _address(text: str) -> None:
    try:
        address = parse(text)
    except ValueError:
        return
    if is_public(address):
        inner = carried(address)
        assert inner.is_global, f"{address} counts as public"
        assert not inner.is_multicast, f"{address} counts as public"
        assert not isinstance(inner, ipaddress.IPv6Address) or inner.ipv4_mapped is None


@contextmanager
def _liveness() -> Iterator[One]:
    page = LivenessPage()
    theirs = mmap.mmap(page.fd, PAGE_BYTES)

    def one(data: bytes) -> None:
        theirs[:24] = data[:24].ljust(24, b"\0")
        beat = page.read()
        assert str(beat)

    try:
        yield one
    finally:
        theirs.close()
        page.close()


_YAML = (
    b"!!int ''",
    b"!!float x",
    b"!!timestamp x",
    b"!!bool x",
    b"!!binary x",
    b"!!python/object:a",
    b"!!set",
    b"!!omap [a]",
)
_MORE = (
    b"&a ",
    b"*a",
    b"<<: ",
    b"? ",
    b"- ",
    b"{[",
    b"1_0",
    b"0x",
    b".inf",
    b".nan",
    b"~",
    b"190:20",
    b"=",
    b"%YAML 9",
    b"\xef\xbb\xbf",
)
_HOSTS = (
    b"http://",
    b"https://",
    b"[::ffff:10.0.0.1]",
    b"0x7f.1",
    b"169.254.169.254",
    b"@",
    b"%0a",
    b"\xe3\x80\x82",
    b"2002:7f00:1::",
    b"64:ff9b::a00:1",
    b":99999",
    b"fe80::1%eth0",
)

TARGETS = (
    Target("overlay", "OmniError (PlanError)", _overlay, _overlay_seeds, _YAML + _MORE),
    Target(
        "folder",
        "OmniError (PlanError)",
        _folder,
        _folder_seeds,
        (b"null", b"[]", b"{}", b"1e999", b"\0", b"-1", b'"x"'),
    ),
    Target("url", "OmniError below 500", plain(_url), lambda: [b"https://a.example:80/b?c=d#e", *_HOSTS[2:]], _HOSTS),
    Target("liveness", "nothing", _liveness, lambda: [bytes(24), b"\x01" + bytes(7) + b"\x02"], ()),
)
