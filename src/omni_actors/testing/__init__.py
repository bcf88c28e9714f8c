"""Conformance tests for an author's pipeline: its stages are held against the contract of stages.

In the test file of a plug-in::

    from omni_actors.author import Speech
    from omni_actors.testing import PipelineConformance, Sample

    class TestMine(PipelineConformance):
        pipeline = "my_family.pipeline:PIPELINE"
        samples = (Sample({"speech": Speech(text="hello")}, task="speech", outputs=("audio",)),)

Every method of the class is a test: the output of the stages does not depend on the cutting of their input, on other
requests, on scarce credits, or on workers that die; an abort at any step leaves nothing behind; and a wrong input fails
its own request. :class:`StageBench` drives the stages in these tests, and can be used for tests of an author's own.

The stages run in the test's process, driven as by a worker's loop, and for the deaths in real workers. This package
imports pytest when a test skips, and torch if the stages do.
"""

from omni_actors.testing.bench import StageBench
from omni_actors.testing.outcome import Outcome
from omni_actors.testing.sample import Sample
from omni_actors.testing.suite import PipelineConformance

__all__ = ["Outcome", "PipelineConformance", "Sample", "StageBench"]
