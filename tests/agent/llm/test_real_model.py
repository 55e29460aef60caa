"""A real small language model over real HTTP. It proves plumbing, not judgement: a model that obeys a schema and knows
nothing must not be able to get a wrong name, number or unit into a request, or an unpriced best out of a search.

Nothing here is timed; a machine too busy to serve the model in the time these tests may take is a visible skip.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import prompts
from agent.llm.lm import Backbone
from agent.llm.program import Program, load_program, save_program
from agent.llm.session import TOOL_TEXTS, open_session
from agent.llm.settings import LlmSettings
from agent.llm.text_request import NeedsAnswer, read_request, settle
from agent.request import TuningRequest
from evals.small_llm import Unavailable, small_llm
from ledger import open_ledger
from levers.catalog import LEVERS
from tests.agent.llm.conftest import Run

SERVED_TOKENS, CONTEXT_TOKENS = 4608, 3072  # small, so that prompts are cut to it; it is what a busy machine can read
TIME_BUDGET_S = 420.0  # of each of the two tests; an idle machine needs about a minute
TOO_BUSY = "this machine is too busy to serve a language model: "
SETTINGS: dict[str, Any] = {
    "model": "openai/smollm2", "response_schema": "on", "context_tokens": CONTEXT_TOKENS, "max_tokens": 600,
    "temperature": 0, "timeout_s": 180, "max_wall_s": TIME_BUDGET_S, "attempts": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The model's address; a visible skip where its packages could not be installed."""
    try:
        with small_llm(SERVED_TOKENS) as address:
            yield address
    except Unavailable as why:
        pytest.skip(str(why))


# What each sentence says, told by hand: the fields of its request, or the field that has to be asked about.
SENTENCES: dict[str, dict[str, Any] | str] = {
    "Tune Llama 3.1 8B on 8xMI355X with SGLang, TTFT under 1 s and at least 50 tok/s per user": {
        "model": "Llama-3.1-8B", "cluster": "MI355X:8", "engine": "SGLang",
        "slos": ("ttft_ms<=1000", "interactivity_tok_s_user>=50"),
    },
    "deepseek r1 on two nodes of eight H200s using vLLM; 8k/1k, 64 users, p99 TTFT below 2 seconds": {
        "model": "DeepSeek-R1", "cluster": "H200:8x2", "engine": "vLLM", "isl": 8192, "osl": 1024, "concurrency": 64,
        "slos": ("ttft_ms_p99<=2000",),
    },
    "GLM-5.2 on 8 B200, TensorRT-LLM, 20 ms per token": {
        "model": "GLM-5.2", "cluster": "B200:8", "engine": "TensorRT-LLM", "slos": ("tpot_ms<=20",),
    },
    "gpt-oss 120b on MI300X:8 with SGLang, not vLLM: half a second TTFT, 40 trials": {
        "model": "gpt-oss-120b", "cluster": "MI300X:8", "engine": "SGLang", "slos": ("ttft_ms<=500",), "budget": 40,
    },
    "Qwen3-32B, a single H200, vllm; 2048 in, 512 out; concurrency 32; TP1": {
        "model": "Qwen3-32B", "cluster": "H200:1", "engine": "vLLM", "isl": 2048, "osl": 512, "concurrency": 32,
        "pins": ("tp=1",),
    },
    "Kimi-K2.5 on 4 B200 with vLLM, prompts of 4k tokens and answers of 500 tokens, mean E2E below 1 minute": {
        "model": "Kimi-K2.5", "cluster": "B200:4", "engine": "vLLM", "isl": 4096, "osl": 500,
        "slos": ("e2e_ms<=60000",),
    },
    "Qwen3-32B with vLLM on whatever is cheapest": "gpu",
    "Qwen3 on 8 H100 with vLLM, TPOT under 15 ms": "model",
    "Llama-3.1-70B on 8 A100 with vLLM, 30 tok/s per user": "gpu",
    "MiniMax M3 on H100:8 with SGLang, latency under 2 s": "slos",
}  # fmt: skip
DEFAULTS = {"isl": 1024, "osl": 1024, "concurrency": 64, "budget": 300, "slos": (), "pins": ()}


def test_ten_sentences_end_in_a_true_request_or_in_a_question(server: str) -> None:
    started = time.monotonic()
    session = open_session(LlmSettings(**{**SETTINGS, "api_base": server}))
    assert isinstance(session.backbone, Backbone)
    requests = claims = 0
    asked: list[str] = []
    for number, (sentence, said) in enumerate(SENTENCES.items()):
        if time.monotonic() - started > TIME_BUDGET_S:
            pytest.skip(f"{TOO_BUSY}{number} of {len(SENTENCES)} sentences in {TIME_BUDGET_S:g} s, all of them right")
        reading = read_request(sentence, session.read_form)
        if reading.flag is not None and reading.flag[0] in ("llm_timeout", "cap_llm_wall_time"):
            pytest.skip(f"{TOO_BUSY}{reading.flag[1]}")
        assert reading.flag is None, (sentence, reading.flag)
        claims += len(reading.notes)
        try:
            request = TuningRequest(**{"objective": "output_tok_s_per_gpu", **settle(reading, {}, accept=False)})
        except NeedsAnswer as question:
            asked.append(str(question))
            assert not isinstance(said, str) or said in {one.field for one in reading.questions}, sentence
            continue
        requests += 1
        request.context()
        assert isinstance(said, dict), f"{sentence}: {said} is open, and was filled in with {request}"
        assert {name: getattr(request, name) for name in {*DEFAULTS, *said}} == {**DEFAULTS, **said}, sentence
        assert not [one for one in reading.assumed if one.field not in ("isl", "osl", "concurrency", "objective")]
    assert all("?" in question for question in asked)
    assert len(asked) >= 4
    usage = session.backbone.usage
    assert usage.calls == len(SENTENCES)
    assert usage.prompt_tokens > 1000 * usage.calls
    assert usage.completion_tokens > 0
    assert requests > 0, "the model's questions hid every request"
    assert claims > 0, "a model without judgement was wrong nowhere: its answers were not compared"


REQUEST = """
model = "Llama-3.1-8B"
cluster = "MI355X:8"
engine = "sglang"
objective = "output_tok_s_per_gpu"
slos = ["tpot_ms<=6"]
budget = 20
pins = [
  "pp=1", "dcp=1", "attn_dp=1", "disagg=off", "attn_backend=auto", "graph_max_bs=default", "token_budget=default",
  "chunk_size=default", "kv_mem_fraction=default", "block_size=default", "spec_method=none", "spec_depth=1",
  "prefix_cache=on", "host_kv_gb=0", "eplb_redundant=0", "allreduce=custom", "graph_mode=full", "max_running=default",
  "prefill_tp=1", "prefill_attn_dp=1", "prefill_replicas=1",
]
"""
# Two prompts of some 2,600 tokens are read once, each step adds some 140: two minutes of one slow core. In a longer
# prompt the model loses sight of its demonstrations; without a cap it repeats itself until ten steps were idle.
SEARCH = {**SETTINGS, "max_tokens": 180, "context_tokens": 2560, "max_calls": 6}
BRIEF = Path(prompts.__file__).parent / "compiled" / "brief.json"


def taught(path: Path) -> str:
    """The brief program with demonstrations, which so small a model copies: widths that were tried, and an illegal one.

    What the model says is its own; only its habit of copying makes sure that it repeats and oversteps.
    """
    program = Program(TOOL_TEXTS)
    load_program(str(BRIEF), program)
    tried, illegal, fresh = ([{"lever": "tp", "value": value}] for value in ("2", "3", "8"))
    program.planner.demos = [
        {
            **dict.fromkeys(program.planner.signature.input_fields, "{}"),
            "rationale": "Try widths.",
            "hypotheses": ["Width cuts the step."],
            "configurations": [{"hypothesis": 1, "changes": one} for one in (tried, illegal, fresh)],
            "polish": "Vary the width.",
        }
    ]
    program.investigation.react.demos = [
        {
            **dict.fromkeys(program.investigation.react.signature.input_fields, "{}"),
            "next_thought": "Try a width.",
            "next_tool_name": "evaluate",
            "next_tool_args": {"changes": one, "hypothesis": 1, "text": ""},
        }
        for one in (illegal, tried)
    ]
    save_program(str(path), program)
    return str(path)


def test_a_search_of_20_evaluations_ends_in_a_legal_priced_best_with_its_waste_in_the_ledger(
    server: str, run: Run, tmp_path: Path
) -> None:
    path, file = tmp_path / "l.db", tmp_path / "r.toml"
    file.write_text(REQUEST)
    program = taught(tmp_path / "p.json")
    done = run(
        "tune", "--request", str(file), "--json", "--ledger", str(path), api_base=server, program=program, **SEARCH
    )
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    answer = done.answer
    with open_ledger(str(path), create=False, write=False) as book:
        trials, notes = book.trials(1), book.notes(1)
        assert book.get_search(1).status == "done"
    best = trials[answer["best"]["index"]]
    assert best.legal
    assert best.score == answer["best"]["score"] == max(one.score for one in trials if one.legal and one.score)
    assert best.metrics["tpot_ms"] <= 6
    assert all(one.reasons for one in trials if not one.legal)
    assert len([one for one in trials if one.origin != "seed" or len(one.levers) == len(LEVERS)]) <= 20
    usage = answer["planner"]["llm"]
    calls = [one for one in notes if one.kind == "llm_call"]
    assert usage["calls"] == len(calls) > 0
    assert usage["prompt_tokens"] == sum(int(one.costs["prompt_tokens"] or 0) for one in calls)
    proposed = [one for one in trials if one.origin in ("planner", "investigator")]
    repeats = [one for one in notes if one.kind == "repeat"]
    assert len(proposed) == answer["planner"]["proposals"]
    assert len(repeats) == answer["planner"]["repeats"]
    illegal = [one for one in proposed if not one.legal]
    codes = {flag["code"] for flag in answer["flags"]}
    if codes & {"llm_timeout", "cap_llm_wall_time"} and not (illegal and repeats):
        why = answer["flags"][0]["message"]
        pytest.skip(f"{TOO_BUSY}{why} after {len(calls)} calls; the best was legal and priced")
    ended = {"no_proposals", "llm_unreadable", "llm_timeout", "cap_llm_wall_time", "cap_llm_calls"}
    assert codes <= {*ended, "llm_prompt_shortened"}
    longest = max(int(one.costs["prompt_tokens"] or 0) for one in calls)
    assert longest + SEARCH["max_tokens"] <= SEARCH["context_tokens"], "a prompt was longer than what is free"
    assert usage["prompt_tokens"] > 0
    assert illegal, f"none of {len(proposed)} proposals was refused"
    assert any(code == "out_of_set" for one in illegal for code, _ in one.reasons)
    assert repeats, f"no repeat among {len(proposed)} proposals"
    assert all("tried before as trial" in str(one.facts["why"]) for one in repeats)
