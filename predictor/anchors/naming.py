"""Names of anchors, which are also the names of their files."""

from predictor.types import Deployment


def anchor_name(deployment: Deployment) -> str:
    """Model, GPU, engine, release, layout, weights and drafter.

    >>> anchor_name(Deployment("Qwen3-32B", "MI355X", "SGLang", "0.5.19"))
    'qwen3-32b-mi355x-sglang-0.5.19-tp1-bf16'
    """
    parts = [deployment.model, deployment.gpu, deployment.engine, deployment.engine_version, deployment.layout.label()]
    parts.append(str(deployment.precision.weight))
    if deployment.speculation.active:
        parts.append(f"{deployment.speculation.method}{deployment.speculation.depth}")
    return "-".join("".join(c if c.isalnum() or c in ".-" else "-" for c in part) for part in parts if part).lower()
