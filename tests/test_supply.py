"""What the product is shipped with: dependencies without known faults, a container file that a linter accepts."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_no_dependency_has_a_known_vulnerability() -> None:
    """``pip-audit`` over what is installed here; where its advisories cannot be reached it says so and skips."""
    pytest.importorskip("pip_audit", reason="pip-audit is not installed")
    line = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
        found = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        pytest.skip(f"dependencies not audited: no advisories can be reached here ({type(error).__name__})")
    audited = [one for one in found if "skip_reason" not in one]
    if not audited:
        pytest.skip("dependencies not audited: the package index here serves no advisories")
    assert [f"{one['name']} {one['version']}: {one['vulns']}" for one in audited if one["vulns"]] == []


def test_the_container_file_is_clean_and_runs_as_nobody() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    final = text[text.rindex("FROM ") :]
    assert "USER 10001" in final
    assert final.index("USER 10001") < final.index("ENTRYPOINT")
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{ROOT}") or shutil.which("hadolint")
    if linter is None:
        pytest.skip("container file not linted: hadolint is not installed")
    done = subprocess.run([linter, str(ROOT / "Containerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    copied = [
        name
        for line in (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    ]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert name in kept
