"""What a search takes for granted about its model is a flag that says how to settle it, and nothing else changes."""

from pathlib import Path

from tests.agent.llm.conftest import FINISH, SUMMARY, Json, Run, plan, served, step

TUNE = (
    "tune", "--model", "Llama-3.1-8B", "--cluster", "MI355X:8", "--engine", "sglang", "--budget", "20", "--json",
)  # fmt: skip
REPLIES = [plan({"tp": 2, "max_running": 64}), step("read_best"), FINISH, SUMMARY, plan(), FINISH, SUMMARY]
UNSET = ""  # an empty variable counts as none


def flagged(run: Run, path: Path, **settings: object) -> dict[str, str]:
    """Flags of a search whose model answers as it should."""
    with served(REPLIES) as llm:
        done = run(*TUNE, "--ledger", str(path), llm=llm, **settings)
    assert done.code == 0, done.stderr
    answer: Json = done.answer
    assert answer["best"]
    assert answer["planner"]["proposals"] > 0
    return {flag["code"]: flag["message"] for flag in answer["flags"]}


def test_a_context_window_that_nobody_knows_is_assumed_and_said(run: Run, tmp_path: Path) -> None:
    found = flagged(run, tmp_path / "l.db", context_tokens=UNSET)
    assert set(found) == {"llm_context_assumed"}
    assert "openai/scripted" in found["llm_context_assumed"]
    assert "32768 tokens" in found["llm_context_assumed"]
    assert "INFERASIM_LLM_CONTEXT_TOKENS" in found["llm_context_assumed"]


def test_a_window_that_is_set_or_known_is_not_assumed(run: Run, tmp_path: Path) -> None:
    assert flagged(run, tmp_path / "set.db") == {}
    assert "llm_context_assumed" not in flagged(run, tmp_path / "known.db", context_tokens=UNSET, model="openai/gpt-4o")


def test_a_cap_on_money_without_a_price_is_said(run: Run, tmp_path: Path) -> None:
    found = flagged(run, tmp_path / "l.db", max_cost_usd=0.5)
    assert set(found) == {"llm_price_unknown"}
    for words in ("openai/scripted", "$0.5", "INFERASIM_LLM_USD_PER_M_INPUT", "INFERASIM_LLM_USD_PER_M_OUTPUT"):
        assert words in found["llm_price_unknown"]


def test_a_price_that_is_set_or_a_cap_that_is_not_needs_no_flag(run: Run, tmp_path: Path) -> None:
    priced = {"max_cost_usd": 0.5, "usd_per_m_input": 0.1, "usd_per_m_output": 0.1}
    assert flagged(run, tmp_path / "priced.db", **priced) == {}
    assert flagged(run, tmp_path / "uncapped.db") == {}  # the default cap is nobody's wish
