"""Sessions put together again, and the agentic error factor."""

import pytest

from evals.agentic import error_factors, recorded_turns
from evals.agentic_turns import (
    Turn,
    as_requests,
    growing_sessions,
    matched,
    sessions_of,
)
from evals.corpus import CorpusAbsent, data_dir


def test_sessions_of_the_public_replay() -> None:
    try:
        folder = data_dir() / "measured"
    except CorpusAbsent:
        pytest.skip("the measured data is not on this machine")
    turns = recorded_turns(folder, "dsv4_b1")
    sessions = sessions_of(turns, 4)
    assert len(turns) == 1769
    assert sorted(index for session in sessions for index in session) == list(range(1769))
    assert len(sessions) == 150
    for session in sessions:
        prompts = [turns[index].input_tokens for index in session]
        assert prompts == sorted(prompts)
    free = [0.0] * 4
    for session in sessions:  # four at a time, no pauses: the recorded run time comes out, 10,138.3 s
        slot = free.index(min(free))
        free[slot] += sum(turns[index].e2e_ms for index in session)
    assert max(free) == pytest.approx(10_138_300, rel=0.005)


def test_what_is_no_replay_is_refused() -> None:
    with pytest.raises(ValueError, match="turn 0 fits no slot"):
        sessions_of([Turn(5000, 1, 10.0)], 4)


def test_turns_of_another_tokenizer() -> None:
    turns = [Turn(1000, 7, 1.0), Turn(2000, 7, 2.0), Turn(500, 9, 3.0)]
    others = [Turn(450, 9, 30.0), Turn(1900, 7, 20.0), Turn(950, 7, 10.0)]
    assert matched(turns, others) == [others[2], others[1], others[0]]
    with pytest.raises(ValueError, match="different answers"):
        matched(turns, [Turn(1, 1, 1.0)] * 3)


def test_prompts_hold_what_came_before() -> None:
    requests = as_requests(growing_sessions(2, shared=640, first=320, turns=3, new=64, answer=64), shared_tokens=640)
    prompts = [request.prompt for request in requests]
    assert [request.input_tokens for request in requests[:3]] == [960, 1088, 1216]
    assert prompts[0] is not None
    assert prompts[1] is not None
    assert prompts[3] is not None
    assert prompts[0].shared_blocks(prompts[1]) == 15
    assert prompts[0].shared_blocks(prompts[3]) == 10
    assert requests[2].waits_on == ("s0:1",)


def test_error_factor_is_a_geometric_mean_of_either_direction() -> None:
    rows = [{"predicted_over_measured": {"tput": ratio}} for ratio in (2.0, 0.5, 1.0)]
    assert error_factors(rows) == {"tput": pytest.approx(4 ** (1 / 3), abs=1e-4), "itl": None, "ttft": None}
