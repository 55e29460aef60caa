"""Each harvest check with the case that taught it (paper App. E, and measurements on busy machines)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.harvest import checks
from agent.harvest.facts import read_start_log
from agent.harvest.idle import check_idle, judge_gpus, judge_load, parse_nvidia, parse_rocm
from agent.harvest.plan import make_plan, prefill_lengths, wave_batches
from agent.harvest.state import Kept
from predictor.anchors.fit import fit_prefill
from predictor.errors import BadInput
from predictor.step.model import PrefillCurve, TableStepModel


def test_a_prefix_cache_is_read_back() -> None:
    assert not checks.prefix_cache_off(True).passed
    assert checks.prefix_cache_off(False).passed
    assert checks.prefix_cache_off(None).passed


@pytest.mark.parametrize(
    ("fresh", "repeated", "shortest", "hits", "passed"),
    [
        (782.0, 775.0, 143.0, 0.0, True),  # paper App. E: off, 143-782 ms over 1024-8192 tokens
        (89.0, 70.0, 68.0, None, True),  # on from the start: 68-89 ms; time alone cannot tell
        (782.0, 150.0, 143.0, None, False),
        (782.0, 775.0, 143.0, 8192.0, False),  # the counter knows better
        (30.0, 12.0, 28.0, 0.0, True),  # a short prompt on a busy machine: the counter knows better
    ],
)
def test_a_prompt_sent_again_is_prefilled_again(
    fresh: float, repeated: float, shortest: float, hits: float | None, passed: bool
) -> None:
    check = checks.prompts_not_cached(fresh, repeated, shortest, hits)
    assert check.passed is passed
    assert f"{repeated:.1f}" in check.detail


@pytest.mark.parametrize(("ratio", "passed"), [(0.63, True), (1.0, True), (1.39, True), (3.59, False), (7.06, False)])
def test_packed_probes_of_the_paper(ratio: float, passed: bool) -> None:
    assert checks.packing(4, 1024, ratio * 100.0, 8192, 100.0).passed is passed


def test_a_probe_beyond_the_budget_is_serialised_whatever_it_costs() -> None:
    check = checks.packing(4, 1024, 100.0, 2048, 100.0)
    assert not check.passed
    assert "the budget 2048 does not admit them together" in check.detail


def test_a_starved_client_is_caught_by_its_span() -> None:
    """One run of a 27M model gave a batch-2 median gap of 0.01 ms on a busy machine."""
    apart = checks.disagreement_pct((0.01, 8.0, 8.1))
    assert apart > 1e4
    assert not checks.readings_agree([(2, apart)]).passed
    assert checks.readings_agree([(1, 3.0), (2, apart), (4, 2.0)]).passed  # one of three: named, not refused
    assert "batch 2" in checks.readings_agree([(1, 3.0), (2, apart), (4, 2.0)]).detail
    marked = checks.every_reading_agrees([(1, 3.0), (2, apart), (4, 2.0)])
    assert not marked.passed
    assert "batch 2" in marked.detail
    assert marked.name not in checks.REFUSING
    assert checks.every_reading_agrees([(1, 3.0), (4, 2.0)]).passed


def test_a_reading_of_zero_and_missing_readings() -> None:
    assert checks.disagreement_pct((0.0, 8.0, None)) == float("inf")
    assert checks.disagreement_pct((8.0, 8.4, None)) == pytest.approx(5.0)
    assert "a reading that is not positive" in checks.readings_agree([(1, float("inf"))]).detail


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=3))
def test_disagreement_is_symmetric_and_scale_free(values: list[float]) -> None:
    assert checks.disagreement_pct(values) == pytest.approx(checks.disagreement_pct(values[::-1]))
    assert checks.disagreement_pct([v * 3.0 for v in values]) == pytest.approx(
        checks.disagreement_pct(values), abs=1e-6
    )


def test_steps_that_fall_are_named() -> None:
    check = checks.monotone("decode_1024", [(1, 8.0), (2, 8.2), (4, 7.0), (8, 9.0)])
    assert not check.passed
    assert "4 takes 7 ms, 2 took 8.2" in check.detail
    assert checks.monotone("decode_1024", [(1, 8.0), (2, 7.9), (4, 8.5)]).passed  # within what repeats differ


def test_tokens_of_a_message_must_be_counted() -> None:
    assert checks.tokens_counted(1.0, False).passed
    assert checks.tokens_counted(2.0, True).passed
    assert not checks.tokens_counted(2.0, False).passed


def test_limits_an_engine_changed_by_itself_are_named() -> None:
    assert checks.as_asked([]).passed
    assert checks.as_asked([("max_running", 256, 256)]).passed
    clamped = checks.as_asked([("max_running", 256, 48), ("token_budget", 8192, 8192)])
    assert not clamped.passed
    assert clamped.detail == "max_running 48, asked 256"


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("'x': 1, 'cudagraph_capture_sizes': [1, 2, 4, 8], 'cudagraph_copy_inputs'", (1, 2, 4, 8)),
        ("'cudagraph_mode': <CUDAGraphMode.NONE: 0>, 'cudagraph_capture_sizes': [], 'x'", ()),
        ("Capture cuda graph bs [1, 2, 4]\nCapture cuda graph bs [1, 2, 4, 8]", (1, 2, 4, 8)),
        ("Capture cuda graph bs [1, 2, 4, ...]", None),
        ("nothing of the kind", None),
    ],
)  # fmt: skip
def test_captured_sizes_are_read_from_the_start_log(text: str, sizes: tuple[int, ...] | None) -> None:
    assert read_start_log(text).capture_sizes == sizes


def test_the_start_log_tells_pool_and_dummy_weights() -> None:
    log = read_start_log("load_format=dummy\nINFO CPU KV cache size: 46,592 tokens, Maximum concurrency")
    assert log.dummy_weights
    assert log.pool is not None
    assert log.pool.tokens == 46592


def test_the_server_counts_the_prompt() -> None:
    assert checks.prompt_length(1024, 1025).passed  # a token the tokenizer adds
    assert checks.prompt_length(64, 66).passed
    assert not checks.prompt_length(1024, 1100).passed
    assert not checks.prompt_length(1024, 0).passed


def test_a_fit_that_does_not_reproduce_its_sweep_is_marked() -> None:
    good = fit_prefill([256, 512, 1024, 2048], [10.0, 15.0, 25.0, 45.0])
    assert checks.fit_quality(good, [10.0, 15.0, 25.0, 45.0]).passed
    times = [10.0, 90.0, 25.0, 45.0]
    assert not checks.fit_quality(fit_prefill([256, 512, 1024, 2048], times), times).passed


# Idleness


def test_a_cpu_engine_wants_its_cores() -> None:
    assert judge_load(0.4, 2).idle
    assert not judge_load(4.0, 2).idle


def test_busy_gpus_are_named() -> None:
    usage = parse_nvidia("0, 0, 500, 143771\n1, 97, 120000, 143771\n")
    found = judge_gpus("nvidia-smi", usage, ())
    assert not found.idle
    assert "GPU 1: 97% busy, 83% of memory used" in found.detail
    assert judge_gpus("nvidia-smi", usage, (0,)).idle


def test_memory_of_the_engine_that_serves_is_no_other_job() -> None:
    usage = parse_rocm("device,GPU use (%),GPU Memory Allocated (VRAM%)\ncard0,0,88\n")
    assert not judge_gpus("rocm-smi", usage, ()).idle
    assert judge_gpus("rocm-smi", usage, (), serving=True).idle


def test_the_tool_that_is_there_is_asked() -> None:
    answers = {"rocm-smi": "device,GPU use (%),GPU Memory Allocated (VRAM%)\ncard0,55,1\n"}
    found = check_idle(run=lambda argv: answers.get(argv[0]))
    assert not found.idle
    assert found.detail.startswith("rocm-smi: GPU 0: 55% busy")
    assert "load average" in check_idle(run=lambda argv: None).detail


# The plan


@given(st.integers(1, 2048), st.integers(1, 4096), st.booleans())
def test_batches_are_captured_sizes_that_can_run(running: int, pool: int, graphs: bool) -> None:
    sizes = tuple(sorted({1, 2, 4, *range(8, 257, 8)})) if graphs else ()
    batches = wave_batches(sizes, running, pool)
    assert batches[0] == 1
    assert batches == tuple(sorted(set(batches)))
    assert batches[-1] <= max(1, min(running, pool))
    assert not graphs or all(batch in sizes for batch in batches)


@given(st.integers(1, 16384), st.integers(64, 131072))
def test_prefill_lengths_fit_the_context(prompt: int, longest: int) -> None:
    lengths = prefill_lengths(prompt, longest)
    assert lengths == tuple(sorted(set(lengths)))
    assert 1 <= len(lengths) <= 5
    assert lengths[-1] <= max(longest, 16)


def test_a_plan_holds_what_the_paper_asks() -> None:
    plan = make_plan(1024, batches=(1, 2, 4, 8, 16), longest=32768, second_prompt_tokens=8192, token_budget=8192)
    assert len(plan.prefill_tokens) == 5
    assert plan.second_batches == (1, 4, 16)
    assert plan.probe_sequences == 4
    assert make_plan(8192, batches=(1,), longest=32768, token_budget=8192).probe_sequences == 0
    with pytest.raises(BadInput, match="over the context of 1024"):
        make_plan(1024, batches=(1,), longest=1024)


def test_minutes_grow_with_the_work() -> None:
    model = TableStepModel((8.0, 9.0, 10.0, 11.0), (0.0,) * 4, PrefillCurve(5.0, 0.05, 0.0, 0.0))
    small = make_plan(1024, batches=(1,), longest=32768)
    large = make_plan(1024, batches=(1, 2, 4), longest=32768)
    assert small.minutes(model) < large.minutes(model)
    assert small.minutes(None) > 0.0
    assert small.key("a") != small.key("b")
    assert small.key("a") != large.key("a")


# What an interrupt leaves


def test_a_line_that_was_cut_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    kept = Kept.open(tmp_path, "key")
    kept.keep("one", {"x": 1.0})
    kept.keep("two", {"x": 2.0})
    text = kept.path.read_text()
    kept.path.write_text(text[: len(text) - 5])
    again = Kept.open(tmp_path, "key")
    assert again.get("one") == {"name": "one", "x": 1.0}
    assert again.get("two") is None
    again.forget()
    assert not kept.path.exists()
    again.forget()
