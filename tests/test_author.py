"""The authors' one import: every name is there, and torch comes with those alone that say so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from omni_actors import author


def test_the_table_and_the_types_say_the_same() -> None:
    """Type checkers read the imports, Python the table."""
    tree = ast.parse(Path(author.__file__).read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = {
        alias.asname: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    assert imports == {name: f"omni_actors.{where}" for name, where in author._WHERE.items()}


def test_every_name_is_there_and_documented() -> None:
    for name in author.__all__:
        found = getattr(author, name)
        assert found.__doc__, name
        assert getattr(author, name) is found
    with pytest.raises(AttributeError, match="no attribute 'Stages'"):
        author.__getattr__("Stages")
    assert set(author.__all__) <= set(dir(author))


def test_torch_comes_with_the_names_that_say_so_alone() -> None:
    script = """
import sys
from omni_actors import author
assert "omni_actors.worker" not in sys.modules
for name in author.__all__:
    if name not in author.TORCH:
        getattr(author, name)
heavy = {"torch", "transformers"} & set(sys.modules)
sys.exit(f"loaded {sorted(heavy)}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
