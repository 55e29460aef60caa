"""One schedule serves every step model, and gives what the full simulation gives."""

import pytest

from predictor.des.metrics import HostTimes
from predictor.des.rules import Admission, SchedulerRules, Victim
from predictor.des.schedule import price, schedule
from predictor.des.simulator import simulate
from predictor.errors import BadInput
from predictor.step.model import DecodeLine, PrefillCurve, TableStepModel
from predictor.types import Arrival, StartMode, Workload

VLLM = SchedulerRules("vllm", max_running=64, token_budget=2048, block_tokens=16, overlap_depth=1)
SGLANG = SchedulerRules(
    "sglang",
    max_running=48,
    token_budget=16384,
    chunk_tokens=2048,
    block_tokens=1,
    mixed_steps=False,
    single_chunked_request=True,
    admission=Admission.ESTIMATE_RATIO,
    victim=Victim.FEWEST_GENERATED,
    requeue_front=False,
)


class Kinked:
    """A line that steepens three times."""

    prefill = PrefillCurve(9.0, 0.02, 1e-7, 3.0, 0.5)
    tokens_per_step = 1.0

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        kinks = [0.0, 9000.25, 20000.0, 31000.0]
        piece = max(index for index, kink in enumerate(kinks) if context_tokens >= kink)
        value = (
            6.0 + 0.1 * batch + sum(1e-5 * (kinks[index] - kinks[index - 1]) * index for index in range(1, piece + 1))
        )
        slope = 1e-5 * (piece + 1)
        end = kinks[piece + 1] if piece < 3 else float("inf")
        return DecodeLine(value - slope * kinks[piece], slope, end)


def straight(scale: float) -> TableStepModel:
    curve = PrefillCurve(9.0 * scale, 0.02, 1e-7, 3.0, 0.5)
    return TableStepModel((6.0, 6.2, 6.4), (1.7e-5 * scale,) * 3, curve)


@pytest.mark.parametrize("rules", [VLLM, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("start", [StartMode.BURST, StartMode.WARM])
def test_one_schedule_prices_every_model_as_the_timed_simulation_does(rules: SchedulerRules, start: StartMode) -> None:
    workload = Workload(900, 130, 24, length_range_frac=0.5, requests_per_client=4, start=start, seed=3)
    host = HostTimes(12.0, 6.0, poll_interval_steps=10, first_wave_stall_ms=500.0)
    log = schedule(workload, rules, kv_blocks=40_000, poll_interval_steps=10)
    for model in (straight(1.0), straight(0.3), Kinked()):
        priced = price(log, model, host)
        timed = simulate(model, workload, rules, kv_blocks=40_000, host=host, engine="timed_runs")
        for name in ("ttft_ms", "ttft_from_admission_ms", "tpot_ms", "itl_ms", "e2e_ms"):
            ours, theirs = getattr(priced, name), getattr(timed, name)
            assert ours.count == theirs.count
            for percent in (0, 50, 90, 99, 100):
                assert ours.percentile(percent) == pytest.approx(theirs.percentile(percent), rel=1e-12)
            assert ours.mean == pytest.approx(theirs.mean, rel=1e-12)
        assert priced.output_tok_s == pytest.approx(timed.output_tok_s, rel=1e-12)
        assert priced.mean_running == pytest.approx(timed.mean_running, rel=1e-12)
        assert (priced.steps, priced.runs, priced.preemptions) == (timed.steps, timed.runs, timed.preemptions)


def test_a_workload_that_reads_the_clock_is_refused() -> None:
    for workload in (
        Workload(100, 100, arrival=Arrival.POISSON, request_rate_per_s=1.0),
        Workload(100, 100, think_time_ms=1.0),
        Workload(100, 100, start=StartMode.STAGGERED),
    ):
        with pytest.raises(BadInput, match="reads the clock"):
            schedule(workload, VLLM, kv_blocks=1000)


def test_a_schedule_serves_only_models_that_commit_the_same_tokens() -> None:
    log = schedule(Workload(100, 100, 4), VLLM, kv_blocks=1000, tokens_per_step=2.0)
    with pytest.raises(BadInput, match="tokens a step"):
        price(log, straight(1.0))


@pytest.mark.parametrize(("range_frac", "most"), [(1.0, 0.3), (0.5, 2.0)])
def test_runs_stay_few(range_frac: float, most: float) -> None:
    """Lost compression shows here on any machine, where a time limit would not."""
    rules = SchedulerRules("vllm", max_running=1024, token_budget=8192, block_tokens=16)
    log = schedule(Workload(1024, 1024, 64, length_range_frac=range_frac), rules, kv_blocks=200_000)
    assert len(log.runs) / len(log.requests) <= most
