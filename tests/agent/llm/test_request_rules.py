"""Names, numbers and bounds read by rule: what the text says, in the product's units, and nothing it does not say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.llm.mentions import find_names, normalised
from agent.llm.quantities import Unit, find_quantities
from agent.llm.request_rules import read_rules
from agent.llm.text_request import NeedsAnswer, Reading, read_request, settle
from agent.request import TuningRequest
from predictor.errors import BadInput
from predictor.profiles.loader import engine_names, model_names, platform_names

FULL = {
    "Tune Llama 3.1 8B on 8xMI355X with SGLang, TTFT under 1 s and at least 50 tok/s per user": {
        "model": "Llama-3.1-8B", "cluster": "MI355X:8", "engine": "SGLang",
        "slos": ("ttft_ms<=1000", "interactivity_tok_s_user>=50"),
    },
    "cheapest way to serve deepseek r1 (FP8) on two nodes of eight H200s using vLLM 0.30.0; 8k/1k, 64 concurrent users,"
    " p99 TTFT below 2 seconds": {
        "model": "DeepSeek-R1", "cluster": "H200:8x2", "engine": "vLLM", "engine_version": "0.30.0", "isl": 8192,
        "osl": 1024, "concurrency": 64, "objective": "output_tok_s_per_gpu", "slos": ("ttft_ms_p99<=2000",),
        "pins": ("weight_dtype=fp8",),
    },
    "GLM-5.2 on 8 B200, TensorRT-LLM, max throughput, 20 ms per token": {
        "model": "GLM-5.2", "cluster": "B200:8", "engine": "TensorRT-LLM", "objective": "output_tok_s",
        "slos": ("tpot_ms<=20",),
    },
    "We move gpt-oss 120b from H100 to MI300X:8x2 with SGLang, not vLLM: half a second TTFT": {
        "model": "gpt-oss-120b", "cluster": "MI300X:8x2", "engine": "SGLang", "slos": ("ttft_ms<=500",),
    },
    "Qwen3-32B, a single H200, vllm, 99% of requests with TTFT within 800 ms; 2048 in, 512 out; concurrency 32; TP1": {
        "model": "Qwen3-32B", "cluster": "H200:1", "engine": "vLLM", "slos": ("ttft_ms_p99<=800",), "isl": 2048,
        "osl": 512, "concurrency": 32, "pins": ("tp=1",),
    },
    "MiniMax M3 in FP8, fp8 kv cache, 16 H100 on 2 nodes, SGLang, 10 requests per second, 80% prefix hits, 99 trials": {
        "model": "MiniMax-M3", "cluster": "H100:8x2", "engine": "SGLang", "request_rate": 10.0, "arrival": "poisson",
        "prefix_hit": 0.8, "budget": 99, "pins": ("kv_dtype=fp8", "weight_dtype=fp8"),
    },
    "Kimi-K2.5 on 4 B200 with vLLM, prompts of 4k tokens and answers of 500 tokens, mean E2E below 1 minute": {
        "model": "Kimi-K2.5", "cluster": "B200:4", "engine": "vLLM", "isl": 4096, "osl": 500,
        "slos": ("e2e_ms<=60000",),
    },
}  # fmt: skip


@pytest.mark.parametrize("text", FULL)
def test_a_complete_text_is_read_without_a_question(text: str) -> None:
    reading = read_request(text)
    assert reading.questions == []
    fields = settle(reading, {}, accept=False)
    assert {name: fields.get(name) for name in FULL[text]} == FULL[text]


ASKED = {
    "two models": ("Qwen3-32B or Llama-3.1-8B on H100:8 with vLLM", "model", "Qwen3-32B and Llama-3.1-8B"),
    "family": ("Qwen3 on 8 H100 with vLLM", "model", "Qwen3-14B or Qwen3-235B-A22B"),
    "unknown model": ("Mixtral-8x7B on 8 H100 with vLLM", "model", "Mixtral-8x7B"),
    "other checkpoint": ("Qwen3-32B-AWQ on 8 H100 with vLLM", "model", "is it Qwen3-32B?"),
    "newer version": ("GLM-5.7 on 8 H100 with vLLM", "model", "GLM-5.7"),
    "no model": ("8 H100 with vLLM", "model", "names none"),
    "two gpus": ("Qwen3-32B on H100:8 and H200:8, vLLM", "gpu", "H100 and H200"),
    "unknown gpu": ("Qwen3-32B on 8 A100 with vLLM", "gpu", "A100"),
    "ruled-out gpu": ("Qwen3-32B with vLLM, not on H100", "gpu", "names none"),
    "no count": ("Qwen3-32B on H100 with vLLM", "cluster", "H100:8"),
    "unclear nodes": ("Qwen3-32B on 8 H100 on 2 nodes with vLLM", "text", "8 on each, or 8 altogether"),
    "no engine": ("Qwen3-32B on 8 H100", "engine", "Proposed: vLLM"),
    "unknown engine": ("Qwen3-32B on 8 H100 with TGI", "engine", "TGI"),
    "two bounds": ("Qwen3-32B on 8 H100 with vLLM, TTFT under 1 s; TTFT under 2 s", "slos", "bounded twice"),
    "bare latency": ("Qwen3-32B on 8 H100 with vLLM, latency under 2 s", "slos", "2 s"),
    "a wish": ("Qwen3-32B on 8 H100 with vLLM, TTFT over 3 s", "text", "at least"),
    "as it is": ("Qwen3-32B on 8 H100 with vLLM, currently TTFT is 3 s", "text", "what you have now"),
    "odd percentile": ("Qwen3-32B on 8 H100 with vLLM, p95 TTFT under 1 s", "text", "percentile"),
    "two lengths": ("Qwen3-32B on 8 H100 with vLLM, 1024 input tokens, 2048 input tokens", "isl", "1024 and 2048"),
    "two widths": ("Qwen3-32B on 8 H100 with vLLM, TP4 or TP8", "pins", "4 and to 8"),
    "two objectives": ("cheapest and lowest TTFT for Qwen3-32B on 8 H100 with vLLM", "objective", "two objectives"),
    "money": ("Qwen3-32B on 8 H100 with vLLM for 20 dollars", "slos", "money"),
    "odd format": ("Qwen3-32B in int4 on 8 H100 with vLLM", "text", "int4"),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_is_open_or_said_twice_is_asked(case: str) -> None:
    text, field, words = ASKED[case]
    reading = read_request(text)
    assert [question.field for question in reading.questions] == [field]
    assert words in reading.questions[0].text
    with pytest.raises(NeedsAnswer) as caught:
        settle(reading, {}, accept=False)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yes_accepts_proposals_and_nothing_else() -> None:
    fields = settle(read_request("Qwen3-32B on H100"), {}, accept=True)
    assert (fields["model"], fields["cluster"], fields["engine"]) == ("Qwen3-32B", "H100:8", "vLLM")
    with pytest.raises(NeedsAnswer, match="which model"):
        settle(read_request("something on H100:8 with vLLM"), {}, accept=True)


def test_options_answer_questions_and_win_over_the_text() -> None:
    reading = read_request("Qwen3 on 8 H100 with vLLM, 1024 input tokens")
    fields = settle(reading, {"model": "Qwen3-14B", "isl": 512}, accept=False)
    assert (fields["model"], fields["isl"]) == ("Qwen3-14B", 512)
    assert any("512" in note and "1024" in note for note in reading.notes)


def test_what_is_assumed_is_said() -> None:
    reading = read_request("Qwen3-32B on 8 H100 with vLLM")
    assert {one.field: one.value for one in reading.assumed} == {
        "isl": 1024,
        "osl": 1024,
        "concurrency": 64,
        "objective": "output_tok_s_per_gpu",
    }
    assert reading.as_json()["missing"] == []


@pytest.mark.parametrize("text", ["", "   ", "x" * 5000])
def test_an_empty_or_endless_text_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput):
        read_request(text)


UNITS = {
    "1.5 s": (1500.0, Unit.TIME_MS), "20ms": (20.0, Unit.TIME_MS), "800 µs": (0.8, Unit.TIME_MS),
    "two minutes": (120_000.0, Unit.TIME_MS), "half a second": (500.0, Unit.TIME_MS), "a second": (1e3, Unit.TIME_MS),
    "50 tok/s/user": (50.0, Unit.TOK_S_USER), "50 tokens per second per user": (50.0, Unit.TOK_S_USER),
    "1,200 tok/s": (1200.0, Unit.TOK_S), "2k tok/s": (2000.0, Unit.TOK_S), "90 tok/s/GPU": (90.0, Unit.TOK_S_GPU),
    "8k tokens": (8192.0, Unit.TOKENS), "1,024 tokens": (1024.0, Unit.TOKENS), "12 rps": (12.0, Unit.REQ_S),
    "70%": (70.0, Unit.PERCENT), "64 users": (64.0, Unit.CLIENTS), "32 concurrent requests": (32.0, Unit.CLIENTS),
}  # fmt: skip


@pytest.mark.parametrize("text", UNITS)
def test_units_are_the_products_own(text: str) -> None:
    (found,) = find_quantities(text)
    assert (found.value, found.unit) == UNITS[text]


@pytest.mark.parametrize("separator", ["-", " ", "", "_"])
@pytest.mark.parametrize("name", [*model_names(), *platform_names(), *engine_names()])
def test_every_name_of_the_catalogues_is_found_however_it_is_typed(name: str, separator: str) -> None:
    typed = name.lower().replace("-", separator)
    names = find_names(normalised(f"please try {typed}, soon"))
    found = [one.name for one in (*names.models, *names.gpus, *names.engines)]
    assert found == [name]
    assert not any(one.isdigit() for one in names.masked)


WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            [*model_names(), *platform_names(), *engine_names(), "TTFT", "under", "1 s", "8x", "not", "and"]
        ),
        st.sampled_from(
            ["2 nodes", "of", "8k/1k", "p99", "TPOT", "50 tok/s", "per user", "tp=4", "fp8", "-AWQ", "%", "$"]
        ),
        st.text(max_size=12),
    ),
    max_size=14,
)


@given(WORDS)
def test_any_text_is_read_or_asked_about(words: list[str]) -> None:
    """No text crashes the reader, and nothing it does not hold gets into the request."""
    text = " ".join(words)
    try:
        reading = read_request(text)
    except BadInput:
        return
    rules = read_rules(text)
    mentioned = {one.name for one in (*rules.names.models, *rules.names.gpus, *rules.names.engines)}
    for field in ("model", "engine"):
        assert reading.fields.get(field) in {None, *mentioned}
    cluster = reading.fields.get("cluster")
    assert cluster is None or cluster.partition(":")[0] in mentioned
    assert isinstance(reading, Reading)


@pytest.mark.parametrize("words", ["colocated", "without disaggregation", "disagg=off"])
def test_pools_ruled_out_in_words_are_a_legal_pin(words: str) -> None:
    fields = settle(read_request(f"Qwen3-32B on 8 H100 with vLLM, {words}"), {}, accept=False)
    context = TuningRequest(**fields).context()
    assert fields["pins"] == ("disagg=off",)
    assert dict(context.pins) == {"disagg": "off"}
