"""What the documents say is so: their code runs, their options exist, their numbers are the defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.validate import check_declaration
from omni_actors.platforms import OmniPlatform

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def test_contributing_examples_are_a_platform_and_a_pipeline() -> None:
    made: dict[str, Any] = {}
    for block in blocks("CONTRIBUTING.md", "python"):
        exec(compile(block, "CONTRIBUTING.md", "exec"), made)
    platform = made["MyPlatform"]()
    assert isinstance(platform, OmniPlatform)
    assert platform.worker_environment("mine:3", 2, platform.options)["MINE_VISIBLE_DEVICES"] == "3"
    assert set(platform.options) == set(platform.options_doc)
    assert isinstance(made["PIPELINE"], Pipeline)
    check_declaration(made["PIPELINE"])


def test_contributing_names_files_that_exist() -> None:
    source = ROOT / "src" / "omni_actors"
    rooms = [path.name for path in source.iterdir() if path.is_dir()]
    named = re.findall(rf"`((?:{'|'.join(rooms)})/[\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 5
    assert [name for name in named if not (source / name).exists()] == []
