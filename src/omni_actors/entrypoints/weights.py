"""The weights of a deployment: whether they are here and whole before its stages start."""

from __future__ import annotations

from omni_actors.pipelines.factory import damaged_weights, missing_weights
from omni_actors.pipelines.intact import described
from omni_actors.pipelines.plan import Plan, PlanError


def check_weights(plan: Plan) -> None:
    """Raise :class:`PlanError` if weights of the plan are missing or damaged, as far as a quick look tells."""
    if absent := missing_weights(plan):
        raise PlanError(_absence(plan, absent))
    if damaged := damaged_weights(plan):
        raise PlanError("\n".join(described(damage, folder) for folder, damage in damaged.items()))


def _absence(plan: Plan, absent: list[str]) -> str:
    listed = "\n".join(f"  {path}" for path in absent)
    if plan.checkpoint is None:
        return f"weights are missing:\n{listed}"
    return (
        f"'{plan.checkpoint}' is not in the Hugging Face cache of this machine, or not whole:\n{listed}\n"
        f"Get it with 'hf download {plan.checkpoint}', or give the folder where it lies in place of the name."
    )
