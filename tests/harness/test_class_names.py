"""No class name stands twice in the packages at the core, so that a name leads to one class (``style.md``)."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import omni_actors

SOURCE = Path(omni_actors.__file__).parent
CORE = ("worker", "orchestrator", "stages", "protocol", "connectors")


def test_no_class_name_is_defined_twice_in_the_core() -> None:
    places = defaultdict(list)
    for path in (path for package in CORE for path in sorted((SOURCE / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
