"""Rules of the four engines, from their profiles."""

import pytest

from predictor.des.rules import Admission, QueuePolicy, Victim
from predictor.des.schedulers import SCHEDULERS, Replica, scheduler_rules
from predictor.errors import BadInput
from predictor.profiles.loader import engine_profile
from predictor.types import SchedulerSettings

PLAIN = SchedulerSettings()


@pytest.mark.parametrize("engine", SCHEDULERS)
def test_defaults_of_the_newest_release(engine: str) -> None:
    rules = scheduler_rules(engine, "", PLAIN)
    assert rules.engine == engine
    assert rules.version
    assert rules.overlap_depth == 1


def test_admission_and_victims_differ_by_engine() -> None:
    of = {engine: scheduler_rules(engine, "", PLAIN) for engine in SCHEDULERS}
    assert of["vLLM"].admission is Admission.FITS_FULL_ISL
    assert of["SGLang"].admission is Admission.ESTIMATE_RATIO
    assert of["SGLang"].victim is Victim.FEWEST_GENERATED
    assert not of["SGLang"].requeue_front
    assert of["ATOM"].admission is Admission.TAKE_FULL_PROMPT
    assert of["ATOM"].chunk_floor_tokens == 64
    assert of["TensorRT-LLM"].admission is Admission.RESERVE_MAX_OUTPUT
    assert not of["TensorRT-LLM"].chunked_prefill
    assert [engine for engine, rules in of.items() if rules.mixed_steps] == ["vLLM", "TensorRT-LLM"]


def test_sglang_divides_caps_over_ranks_and_cuts_conservativeness() -> None:
    settings = SchedulerSettings(max_running=256, chunk_size=16384)
    one, eight = (scheduler_rules("SGLang", "", settings, Replica(attn_dp=ranks)) for ranks in (1, 8))
    assert (one.max_running, one.chunk_tokens) == (256, 16384)
    assert (eight.max_running, eight.chunk_tokens) == (32, 2048)
    assert eight.ratio.start == pytest.approx(0.3 * one.ratio.start)


def test_sglang_speculation_caps_running_and_pp_ends_overlap() -> None:
    assert scheduler_rules("SGLang", "", PLAIN, Replica(draft_tokens=3)).max_running == 48
    assert scheduler_rules("SGLang", "", PLAIN, Replica(pp=4)).overlap_depth == 0
    assert scheduler_rules("vLLM", "", PLAIN, Replica(pp=4)).overlap_depth == 1


def test_atom_delays_prefill_under_attention_dp_only() -> None:
    assert scheduler_rules("ATOM", "", PLAIN).delayer is None
    assert scheduler_rules("ATOM", "", PLAIN, Replica(attn_dp=8)).delayer is not None


def test_what_an_engine_cannot_do_is_refused() -> None:
    with pytest.raises(BadInput, match="mixed_steps"):
        scheduler_rules("vLLM", "", SchedulerSettings(mixed_steps=False))
    with pytest.raises(BadInput, match="queue_policy 'lpm' of ATOM"):
        scheduler_rules("ATOM", "", SchedulerSettings(queue_policy="lpm"))


@pytest.mark.parametrize("name", ["vLLM", "SGLang", "ATOM", "TensorRT-LLM"])
def test_a_queue_policy_is_simulated_or_refused_with_those_that_are(name: str) -> None:
    simulated = {policy.value for policy in QueuePolicy} & set(engine_profile(name).queue_policies)
    assert "fcfs" in simulated
    for policy in engine_profile(name).queue_policies:
        settings = SchedulerSettings(queue_policy=policy)
        if policy in simulated:
            assert scheduler_rules(name, "", settings).queue_policy == policy
            continue
        with pytest.raises(BadInput) as refusal:
            scheduler_rules(name, "", settings)
        message = str(refusal.value)
        assert message.startswith(f"queue_policy '{policy}' of {name} is not simulated; legal: ")
        assert set(message.rpartition(": ")[2].split(", ")) == simulated


def test_what_sglang_has_and_the_simulator_has_not_is_known() -> None:
    has, simulated = set(engine_profile("SGLang").queue_policies), {policy.value for policy in QueuePolicy}
    assert has - simulated == {"dfs-weight", "hrrn", "random", "priority", "routing-key"}
