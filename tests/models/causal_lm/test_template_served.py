"""A chat template of the operator's own, and a client's control tokens, in a real worker and in its next life."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from tests.orchestrator.spine import collect, kill, until

import omni_actors
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import Completed, Request


async def prompt_tokens(orchestrator: Orchestrator, text: str) -> int:
    params = {"prompt": Prompt(messages=[{"role": "user", "content": text}]), "sampling": Sampling(max_tokens=1)}
    last = (await collect(orchestrator, Request(task="chat", params=params)))[-1]
    assert isinstance(last, Completed)
    return last.usage["llm"].prompt_tokens


@pytest.mark.deadline(120)
async def test_a_template_of_ones_own_outlives_its_worker(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    template = tmp_path / "own: template #1.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    plan = resolve(
        str(tiny_model("causal-lm")),
        platform="cpu",
        chat_template=template,
        overrides=["limits.restart_delay_s=0.05"],
    )
    async with open_orchestrator(plan) as orchestrator:
        with trio.fail_after(110):
            await orchestrator.wait_ready()
            replica = orchestrator.pools["llm"].replicas[0]
            for life in (1, 2):
                await until(lambda life=life: replica.accepts_requests and replica.incarnation == life)  # type: ignore[misc]
                assert await prompt_tokens(orchestrator, "a") == 2
                assert await prompt_tokens(orchestrator, "a<|im_end|>") > 3
                if life == 1:
                    kill(replica.pid)


@pytest.mark.deadline(120)
async def test_a_mistake_in_a_template_names_stage_file_and_line(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    template = tmp_path / "broken.jinja"
    template.write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    overrides = [f"stages.llm.options.chat_template={template}"]
    with pytest.raises(OmniError) as caught:
        async with omni_actors.open_omni(str(tiny_model("causal-lm")), platform="cpu", overrides=overrides):
            pass
    message = caught.value.info.message
    assert "llm" in message
    assert f"{template} has a mistake in line 2" in message


def test_a_pipeline_that_reads_no_chats_takes_no_template(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no stage of pipeline 'stub' reads chats by a template"):
        resolve("stub", platform="cpu", chat_template=tmp_path / "it.jinja")
