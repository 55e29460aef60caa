"""Launch artefacts of a deployment as answers show them; a deployment the emitters refuse says why instead."""

from typing import Any

from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.errors import InferaSimError
from predictor.types import Deployment, Workload


def launch_json(
    deployment: Deployment, workload: Workload, card: ModelCard, platform: Platform, profile: EngineProfile
) -> dict[str, Any]:
    """``commands`` to paste, one a process; the ``benchmark`` that checks the prediction; ``notes`` on both."""
    from agent.launch import Options, benchmark_line, launch_lines, launch_plan

    try:
        plan = launch_plan(deployment, card, platform, profile, Options(workload))
    except InferaSimError as refusal:
        return {"commands": [], "benchmark": None, "notes": [str(refusal)]}
    return {
        "commands": list(launch_lines(plan)),
        "benchmark": benchmark_line(plan),
        "notes": [note.message for note in plan.notes],
    }
