"""Launch artefacts as text, kept under ``launch_golden``.

After a wanted change: ``REGENERATE_LAUNCH_GOLDEN=1 pytest tests/agent/test_launch_golden.py``, then read the diff.
"""

import os
from pathlib import Path

import pytest

from agent.launch import compose, kubernetes, script
from tests.agent.launch_examples import EXAMPLES, plan_of

FOLDER = Path(__file__).parent / "launch_golden"
CASES = [(name, "sh") for name in EXAMPLES] + [
    ("vllm-h200-disaggregated", "kubernetes.yaml"),
    ("sglang-mi300x-disaggregated", "kubernetes.yaml"),
    ("trtllm-b200-disaggregated", "kubernetes.yaml"),
    ("vllm-h100-replicas", "compose.yaml"),
    ("atom-mi355x-disaggregated", "compose.yaml"),
    ("trtllm-b200-disaggregated", "compose.yaml"),
]


def rendered(name: str, kind: str) -> str:
    """One artefact of one example."""
    if kind == "kubernetes.yaml":
        return kubernetes(plan_of(EXAMPLES[name], own_network=True), "tuned")
    plan = plan_of(EXAMPLES[name])
    return compose(plan) if kind == "compose.yaml" else script(plan)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_golden(name: str, kind: str) -> None:
    path = FOLDER / f"{name}.{kind}"
    text = rendered(name, kind)
    if os.environ.get("REGENERATE_LAUNCH_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_every_golden_file_has_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.{kind}" for name, kind in CASES}
