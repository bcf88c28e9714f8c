"""The demo's declaration."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

from omni_actors.models.omni_demo.pipeline import PIPELINE
from omni_actors.pipelines.validate import check_declaration


def test_the_declaration_makes_sense() -> None:
    check_declaration(PIPELINE)


def test_its_bridges_exist() -> None:
    for edge in PIPELINE.edges:
        assert edge.bridge is None or callable(pkgutil.resolve_name(edge.bridge)), edge.bridge


def test_the_serving_process_can_import_it_for_nothing() -> None:
    check = (
        "import sys, omni_actors.models.omni_demo.pipeline; "
        "heavy = {'numpy', 'torch', 'transformers', 'onnxruntime'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
