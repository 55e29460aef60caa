"""Launch artefacts of a deployment as answers show them; a deployment the emitters refuse says why instead."""

from typing import Any

from levers.context import SearchContext
from predictor.errors import InferaSimError
from predictor.types import Deployment, Workload


def launch_json(deployment: Deployment, workload: Workload, context: SearchContext) -> dict[str, Any]:
    """``commands`` to paste, one a process; the ``benchmark`` that checks the prediction; ``notes`` on both."""
    from agent.launch import Options, benchmark_line, launch_lines, launch_plan

    try:
        plan = launch_plan(deployment, context.card, context.platform, context.engine, Options(workload))
    except InferaSimError as refusal:
        return {"commands": [], "benchmark": None, "notes": [str(refusal)]}
    return {
        "commands": list(launch_lines(plan)),
        "benchmark": benchmark_line(plan),
        "notes": [note.message for note in plan.notes],
    }
