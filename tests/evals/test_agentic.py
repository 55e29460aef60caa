"""Sessions put together again, and the agentic error factor."""

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.agentic import error_factors
from evals.agentic_turns import (
    FIRST_PROMPT_BELOW_TOKENS,
    Turn,
    as_requests,
    growing_sessions,
    matched,
    sessions_of,
)

sessions_drawn = st.lists(
    st.lists(st.tuples(st.integers(200, 3000), st.integers(500, 60_000)), min_size=1, max_size=6),
    min_size=4,
    max_size=12,
)


def completions(sessions: list[list[tuple[int, int]]], slots: int) -> tuple[list[Turn], list[list[int]]]:
    """Turns in order of completion when so many sessions live at once, and their indices by session."""
    waiting = iter(range(len(sessions)))
    heap: list[tuple[float, int, int, int]] = []

    def start(now: float, session: int, turn: int, prompt: int) -> None:
        growth, e2e = sessions[session][turn]
        prompt = 1630 if turn == 0 else max(prompt + growth, 1900)
        heapq.heappush(heap, (now + e2e, session, turn, prompt))

    for session in [next(waiting) for _ in range(slots)]:
        start(0.0, session, 0, 0)
    turns: list[Turn] = []
    indices: list[list[int]] = [[] for _ in sessions]
    while heap:
        now, session, turn, prompt = heapq.heappop(heap)
        indices[session].append(len(turns))
        turns.append(Turn(prompt, 10, sessions[session][turn][1]))
        if turn + 1 < len(sessions[session]):
            start(now, session, turn + 1, prompt)
        elif (following := next(waiting, None)) is not None:
            start(now, following, 0, 0)
    return turns, indices


@settings(max_examples=25, deadline=None)
@given(sessions_drawn)
def test_sessions_found_keep_every_order(sessions: list[list[tuple[int, int]]]) -> None:
    turns, truth = completions(sessions, 4)
    found = sessions_of(turns, 4)
    assert sorted(index for session in found for index in session) == list(range(len(turns)))
    assert len(found) == len(truth)
    for session in found:
        assert turns[session[0]].input_tokens < FIRST_PROMPT_BELOW_TOKENS
        prompts = [turns[index].input_tokens for index in session]
        assert prompts == sorted(prompts)


def test_sessions_are_found_exactly_where_prompts_tell_them_apart() -> None:
    drawn = [[(10_000 * (s + 1) if t == 1 else 100, 1000 * (s + 1) + 7919 * t) for t in range(5)] for s in range(4)]
    turns, truth = completions(drawn, 4)
    assert sorted(sessions_of(turns, 4)) == sorted(truth)


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
