"""An author's pipeline, held against the contract of stages.

In the test file of a plug-in::

    from omni_actors.author import Speech
    from omni_actors.testing import PipelineConformance, Sample


    class TestMine(PipelineConformance):
        pipeline = "my_family.pipeline:PIPELINE"
        samples = (Sample({"speech": Speech(text="hello")}, task="speech", outputs=("audio",)),)

and every method is a test: what the stages say does not depend on how their input is cut, on who is beside them, on
credits that are short, or on workers that die; an abort at any step leaves nothing behind; and what is wrong fails its
own request. :class:`StageBench` is what the tests drive the stages with, for tests of an author's own.

The stages run in the test's process, driven as a worker's loop drives them, and for the deaths in real workers. This
package imports pytest when a test skips, and torch if the stages do.
"""

from omni_actors.testing.bench import StageBench
from omni_actors.testing.outcome import Outcome
from omni_actors.testing.sample import Sample
from omni_actors.testing.suite import PipelineConformance

__all__ = ["Outcome", "PipelineConformance", "Sample", "StageBench"]
