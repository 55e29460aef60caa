"""Each call is made as often as the one layer of retries says, and no answer is ever taken from a cache."""

from collections.abc import Sequence

import pytest

from agent.llm.failures import LlmFailure
from agent.llm.lm import Backbone, CallRecord
from agent.llm.session import open_session
from agent.llm.settings import LlmSettings
from evals.scripted_llm import Cut, Late, Reply, Status
from tests.agent.llm.conftest import served

ANSWER = {"answer": "yes"}


def asked(replies: Sequence[Reply], times: int = 1, **settings: object) -> tuple[int, list[CallRecord], list[str]]:
    """Requests sent, calls noted and how each question ended."""
    records: list[CallRecord] = []
    ended: list[str] = []
    with served(replies) as llm:
        base: dict[str, object] = {"model": "openai/own", "api_base": llm.url, "retry_wait_s": 0.0, "timeout_s": 20}
        session = open_session(LlmSettings.model_validate({**base, "response_schema": "off", **settings}))
        backbone = session.backbone
        assert isinstance(backbone, Backbone)
        backbone.on_call = records.append
        for _ in range(times):
            try:
                ended.append(backbone.ask("ask", session.program.asking, question='"why?"', context='"{}"').answer.root)
            except LlmFailure as failure:
                ended.append(failure.code)
        return len(llm.requests), records, ended


def test_equal_questions_are_asked_each_time() -> None:
    requests, records, ended = asked([ANSWER, {"answer": "no"}], times=2)
    assert (requests, ended) == (2, ["yes", "no"])
    assert [one.attempts for one in records] == [1, 1]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Status(429), "llm_rate_limited"),
        (Status(500), "llm_server_error"),
        (Status(503), "llm_server_error"),
        (Cut(), "llm_server_error"),
        (Late(30, "never"), "llm_timeout"),
    ],
    ids=["429", "500", "503", "a cut connection", "a time-out"],
)
def test_what_may_pass_is_tried_as_often_as_set_and_no_oftener(reply: Reply, code: str) -> None:
    timeout_s = 0.3 if code == "llm_timeout" else 20
    requests, (record,), ended = asked([reply] * 9, attempts=3, timeout_s=timeout_s)
    assert (requests, record.attempts, ended) == (3, 3, [code])


@pytest.mark.parametrize(
    ("status", "code"), [(400, "llm_refused"), (401, "llm_auth"), (403, "llm_auth"), (404, "llm_refused")]
)
def test_a_refusal_is_not_tried_again(status: int, code: str) -> None:
    requests, (record,), ended = asked([Status(status)] * 9, attempts=3)
    assert (requests, record.attempts, ended) == (1, 1, [code])


def test_an_attempt_that_succeeds_ends_the_call_and_is_counted() -> None:
    requests, (record,), ended = asked([Status(429, headers={"Retry-After": "0"}), Status(500), ANSWER], attempts=4)
    assert (requests, record.attempts, record.outcome, ended) == (3, 3, "ok", ["yes"])


def test_a_wait_that_a_server_asks_for_is_kept_within_the_wall_clock_cap() -> None:
    requests, (record,), ended = asked([Status(429, headers={"Retry-After": "3600"}), ANSWER], max_wall_s=1.0)
    assert requests == 1
    assert ended == ["cap_llm_wall_time"]
    assert record.latency_ms < 30_000
