"""The demo's declaration."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

from omni_actors.models.omni_demo.pipeline import PIPELINE
from omni_actors.pipelines.validate import check_declaration


def test_the_declaration_makes_sense() -> None:
    check_declaration(PIPELINE)


def test_its_own_adapters_and_bridges_exist() -> None:
    names = [stage.adapter for stage in PIPELINE.stages] + [edge.bridge for edge in PIPELINE.edges if edge.bridge]
    for name in names:
        assert callable(pkgutil.resolve_name(name)), name


def test_the_serving_process_can_import_it_for_nothing() -> None:
    check = (
        "import sys, omni_actors.models.omni_demo.pipeline; "
        "heavy = {'numpy', 'torch', 'transformers', 'onnxruntime'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
