"""What the guides tell people to type is run, or at least parsed; what the concept pages show is computed."""

import doctest
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from agent.cli.main import assemble

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = ("guide.md", "service.md", "harvest.md", "import.md", "ledger.md", "launch.md")
CONCEPTS = ("anchors", "coverage", "transfer", "staircase", "legality", "intervals")


def blocks(page: str, language: str = "") -> list[str]:
    """The fenced blocks of a page in a language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Every line of the guides that starts the program."""
    found = []
    for page in GUIDES:
        for block in (*blocks(page), *blocks(page, "bash")):
            for line in block.replace("\\\n", " ").splitlines():
                text = line.partition(" #")[0].strip()
                if text.startswith("inferasim "):
                    found.append((page, text))
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_of_the_guides_has_the_options_it_is_shown_with(page: str, line: str) -> None:
    words = shlex.split(re.sub(r"\s[|>]\s.*", "", line))[1:]
    command: Any = get_command(assemble(words[0]))
    options: set[str] = set()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert options, f"{page}: {line}"
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    assert unknown == [], f"{page}: {line}"


def test_the_recipe_for_ci_runs_and_gives_the_same_bytes(tmp_path: Path) -> None:
    """As a pipeline would: the lines of the guide's YAML with the guide's request, twice."""
    lines = [line[6:] for line in blocks("guide.md", "yaml")[0].splitlines() if line.startswith("    - ")]
    assert lines[0] == "pip install inferasim"
    exports = []
    for run in ("one", "two"):
        home = tmp_path / run
        (home / "deploy").mkdir(parents=True)
        (home / "deploy" / "request.toml").write_text(blocks("guide.md", "toml")[0], encoding="utf-8")
        (home / "out").mkdir()
        program = f"{shlex.quote(sys.executable)} -m agent.cli.main"
        script = "\n".join(re.sub("^inferasim", program, line) for line in lines[1:])
        script = script.replace("python -c", f"{shlex.quote(sys.executable)} -c")
        script += f"\n{program} ledger export 1 --stable --ledger out/ledger.db > out/rows"
        place = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["sh", "-euc", script], cwd=home, env=place, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
        assert (
            json.loads((home / "out" / "answer.json").read_text(encoding="utf-8"))["best"]["metrics"]["tpot_ms"] <= 10
        )
        exports.append((home / "out" / "rows").read_bytes())
    assert exports[0] == exports[1] != b""


def test_every_concept_has_its_page_and_the_guide_links_it() -> None:
    guide = (DOCS / "guide.md").read_text(encoding="utf-8")
    for name in CONCEPTS:
        assert f"(concepts/{name}.md)" in guide
        assert (DOCS / "concepts" / f"{name}.md").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda one: one.stem)
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
    gone = [one for one in targets if "://" not in one and not (path.parent / one).exists()]
    assert gone == []


def test_the_staircase_is_what_the_page_shows() -> None:
    failed, tried = doctest.testfile(str(DOCS / "concepts" / "staircase.md"), module_relative=False)
    assert (failed, tried) == (0, 6)


def test_the_page_on_coverage_tells_every_flag_of_the_code() -> None:
    code = (ROOT / "predictor" / "anchors" / "select.py").read_text(encoding="utf-8")
    flags = set(re.findall(r'Flag\(\s*"([a-z_]+)"', code))
    page = (DOCS / "concepts" / "coverage.md").read_text(encoding="utf-8")
    assert len(flags) > 10
    assert {flag for flag in flags if f"`{flag}`" not in page} == set()
