"""Sessions of a recorded multi-turn replay, put together again from its completions.

The public GB300 replay lists every turn (prompt, answer, end-to-end time) in order of completion, without its session.
With four sessions live and no pauses, a turn starts when its session's previous turn ends, prompts grow within a
session, and completions come in the order given. A beam search over the four slots finds the assignment that keeps both
orders with the shortest total time: it ends within 0.03% of the recorded run time, with no prompt that shrinks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.workload.blocks import NO_BLOCKS, BlockForest
from predictor.workload.trace import TraceRequest

BLOCK_TOKENS = 64
FIRST_PROMPT_BELOW_TOKENS = (
    1660  # first turns hold the system prompt and the task: 1,625 to 1,649 tokens; the next 1,865
)
_BEAM = 600
_TOLERANCE_MS = 300.0  # completions may be told out of order by this much
_SLACK_MS = 15_000.0  # idle slot time that weighs as much as ...
_GROWTH_TOKENS = 20_000.0  # ... this much growth of a prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """One recorded turn."""

    input_tokens: int
    output_tokens: int
    e2e_ms: float


_Slot = tuple[float, int]  # when its last turn ended, that turn's prompt (0: none yet)
_Link = tuple["_Link | None", int]


def sessions_of(turns: Sequence[Turn], slots: int) -> list[list[int]]:
    """Indices of the turns of each session, sessions in order of their start."""
    beam: list[tuple[float, float, tuple[_Slot, ...], _Link | None]] = [(0.0, 0.0, ((0.0, 0),) * slots, None)]
    for number, turn in enumerate(turns):
        found: dict[tuple[_Slot, ...], tuple[float, float, tuple[_Slot, ...], _Link | None]] = {}
        for cost, clock_ms, state, link in beam:
            for slot, (ended_ms, prompt) in enumerate(state):
                at_ms = ended_ms + turn.e2e_ms
                fresh = turn.input_tokens < FIRST_PROMPT_BELOW_TOKENS
                if at_ms < clock_ms - _TOLERANCE_MS or not (fresh or 0 < prompt <= turn.input_tokens):
                    continue
                at_ms = max(at_ms, clock_ms)
                grown = 0 if fresh else turn.input_tokens - prompt
                total = cost + grown / _GROWTH_TOKENS + (at_ms - clock_ms) / _SLACK_MS
                after = (*state[:slot], (at_ms, turn.input_tokens), *state[slot + 1 :])
                key = tuple(sorted(after))
                if key not in found or total < found[key][0]:
                    found[key] = (total, at_ms, after, (link, slot))
        if not found:
            raise ValueError(f"turn {number} fits no slot: the completions are not those of {slots} sessions")
        beam = sorted(found.values(), key=lambda each: each[0])[:_BEAM]
    return _by_session(turns, _slots_taken(beam[0][3]))


def _slots_taken(link: _Link | None) -> list[int]:
    taken = []
    while link is not None:
        link, slot = link
        taken.append(slot)
    return taken[::-1]


def _by_session(turns: Sequence[Turn], taken: Sequence[int]) -> list[list[int]]:
    live: dict[int, list[int]] = {}
    sessions: list[list[int]] = []
    for number, slot in enumerate(taken):
        if turns[number].input_tokens < FIRST_PROMPT_BELOW_TOKENS:
            live[slot] = []
            sessions.append(live[slot])
        live[slot].append(number)
    return sessions


def matched(turns: Sequence[Turn], others: Sequence[Turn]) -> list[Turn]:
    """The turn of ``others`` for each of ``turns``: the same answers behind prompts that another tokenizer counted."""

    def order(each: Sequence[Turn]) -> list[int]:
        return sorted(range(len(each)), key=lambda index: (each[index].output_tokens, each[index].input_tokens))

    result = list(turns)
    for mine, theirs in zip(order(turns), order(others), strict=True):
        if turns[mine].output_tokens != others[theirs].output_tokens:
            raise ValueError("the two replays have different answers")
        result[mine] = others[theirs]
    return result


def as_requests(sessions: Sequence[Sequence[Turn]], shared_tokens: int = 0) -> list[TraceRequest]:
    """A trace: each turn's prompt begins with the whole one before it, and all with ``shared_tokens`` of one text."""
    forest = BlockForest()
    shared = forest.fresh(NO_BLOCKS, shared_tokens // BLOCK_TOKENS)
    requests: list[TraceRequest] = []
    for number, session in enumerate(sessions):
        name, prompt = f"s{number}", shared
        for turn, record in enumerate(session):
            blocks = record.input_tokens // BLOCK_TOKENS
            kept = min(prompt.blocks, blocks)
            prompt = forest.fresh(prompt.head(kept), blocks - kept)
            requests.append(
                TraceRequest(
                    row=len(requests),
                    request_id=f"{name}:{turn}",
                    session_id=name,
                    tree_id=name,
                    arrival_ms=None,
                    input_tokens=record.input_tokens,
                    output_tokens=record.output_tokens,
                    prompt=prompt,
                    waits_on=(f"{name}:{turn - 1}",) if turn else (),
                )
            )
    return requests


def growing_sessions(sessions: int, shared: int, first: int, turns: int, new: int, answer: int) -> list[list[Turn]]:
    """Sessions whose every turn adds ``new`` prompt tokens to what was said before, answers included."""
    prompts = [shared + first + turn * (new + answer) for turn in range(turns)]
    return [[Turn(prompt, answer, 0.0) for prompt in prompts] for _ in range(sessions)]
