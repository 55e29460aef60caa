"""A language model behind the service, over real HTTP: what it reads, proposes and thinks, and what happens without."""

import json
import os
import signal
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from evals.scripted_llm import Late, Reply, ScriptedLlm, Status, scripted_llm
from ledger import open_ledger
from tests.agent.llm.conftest import FINISH, SUMMARY, plan, step
from tests.agent.service.harness import Served, ended, service, until
from tests.browser import OpenPage

TEXT = "Llama-3.1-8B on 8 MI355X with SGLang, TPOT under 10 ms, 16 trials"
READ = {"reading": {"model": "Llama-3.1-8B", "gpu": "MI355X", "gpus_per_node": 8, "engine": "SGLang"}}
SEARCH: list[Reply] = [
    plan({"tp": 1, "max_running": 48}, hypotheses=("fewer sequences keep the step short",)),
    step("write_note", text="48 against 64 sequences"),
    FINISH,
    SUMMARY,
]


@contextmanager
def with_model(home: Path, replies: Sequence[Reply], lease_s: float = 30.0) -> Iterator[tuple[Served, ScriptedLlm]]:
    """A service whose language model answers by a script."""
    with scripted_llm(replies) as llm:
        settings: Mapping[str, object] = {"model": "openai/scripted", "api_base": llm.url, "context_tokens": 32_768}
        settings = {**settings, "retry_wait_s": 0.01, "timeout_s": 600, "api_key": "scripted-key-0123456789"}
        variables = {f"INFERASIM_LLM_{name.upper()}": str(value) for name, value in settings.items()}
        limits = {"workers": 1, "llm_timeout_s": 600, "lease_s": lease_s}
        with service(home, str(home / "ledger.db"), variables=variables, **limits) as found:
            yield found, llm


def events_of(client: httpx.Client, search_id: int) -> list[tuple[str, dict[str, Any]]]:
    """Every event of a search that has ended."""
    found = []
    for block in client.get(f"/v1/searches/{search_id}/events").text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_a_text_is_read_and_searched_by_the_model_and_its_hypotheses_are_streamed(tmp_path: Path) -> None:
    with with_model(tmp_path, [READ, *SEARCH, *SEARCH]) as (served, llm), served.client() as client:
        body, key = {"text": TEXT, "guidance": "keep it small"}, {"Idempotency-Key": "once"}
        taken = client.post("/v1/tune", json=body, headers=key)
        assert taken.status_code == 202, taken.text
        reading = taken.json()["reading"]
        assert reading["read_by"] == "language model and rules"
        assert reading["flag"] is None
        search_id = taken.json()["search_id"]
        found = ended(client, search_id)
        asked = len(llm.requests)
        again = client.post("/v1/tune", json=body, headers=key)
        assert again.headers["Idempotency-Replayed"] == "true"
        assert again.json()["search_id"] == search_id
        assert again.json()["reading"] == reading
        assert len(llm.requests) == asked, "the same request sent again asks nobody"
        events = events_of(client, search_id)
        trials = client.get(f"/v1/searches/{search_id}/trials").json()["trials"]
    assert found["status"] == "done"
    assert found["request"]["planner"]["name"] == "llm"
    assert found["request"]["guidance"] == "keep it small"
    assert "planner" in {one["origin"] for one in trials}
    told = [data for name, data in events if name == "hypothesis"]
    assert [one["kind"] for one in told][:3] == ["plan", "scratchpad", "summary"]
    assert told[0]["hypotheses"] == ["fewer sequences keep the step short"]
    assert told[1]["text"] == "48 against 64 sequences"
    assert told[-1]["kind"] == "llm_end"
    with open_ledger(str(tmp_path / "ledger.db"), create=False, write=False) as book:
        notes = book.notes(search_id)
    assert [one.kind for one in notes[:2]] == ["request", "llm_call"]
    assert notes[1].facts["stage"] == "request"
    assert sum(one.kind == "request" for one in notes) == 1


def test_a_worker_killed_while_the_model_thinks_is_replaced_and_no_proposal_is_tried_twice(tmp_path: Path) -> None:
    replies: list[Reply] = [READ, SEARCH[0], Late(600.0, "never heard"), *SEARCH[1:], *[plan(), FINISH, SUMMARY] * 2]
    replies[3:3] = [plan()]  # the new worker asks for a plan of its own: what was proposed is in the trials it is shown
    with with_model(tmp_path, replies, lease_s=2) as (served, llm), served.client() as client:
        taken = client.post("/v1/tune", json={"text": TEXT}).json()
        until(lambda: len(llm.requests) == 3)
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as book:
            (owner,) = book.execute("SELECT lease_owner FROM job").fetchone()
        os.kill(int(owner.rpartition(":")[2]), signal.SIGKILL)
        found = ended(client, taken["search_id"])
        job = client.get(f"/v1/jobs/{taken['job_id']}").json()
        trials = client.get(f"/v1/searches/{taken['search_id']}/trials").json()["trials"]
        told = [data["kind"] for name, data in events_of(client, taken["search_id"]) if name == "hypothesis"]
    assert (found["status"], job["attempts"]) == ("done", 2)
    assert [one["levers"]["max_running"] for one in trials if one["origin"] == "planner"] == [48]
    assert told[0] == "plan"
    assert told[-1] == "llm_end"
    assert told.count("llm_end") == 1


def test_a_model_that_refuses_us_leaves_the_rules_and_the_seed_search_and_says_so(tmp_path: Path) -> None:
    with with_model(tmp_path, [Status(401)] * 20) as (served, _), served.client() as client:
        taken = client.post("/v1/tune", json={"text": TEXT}).json()
        assert taken["reading"]["read_by"] == "rules"
        assert taken["reading"]["flag"]["code"] == "llm_auth"
        assert ended(client, taken["search_id"])["status"] == "done"
        told = [data for name, data in events_of(client, taken["search_id"]) if name == "hypothesis"]
        assert [(one["kind"], one["code"]) for one in told] == [("llm_end", "llm_auth")]
        open_text = client.post("/v1/tune", json={"text": "the fastest one, please"})
        assert open_text.status_code == 422
        assert "read by rule alone" in open_text.json()["detail"]
        seed = client.post("/v1/tune", json={"text": TEXT, "planner": "seed"}).json()
        assert ended(client, seed["search_id"])["request"]["planner"] == "seed"
        answers = json.dumps([taken, open_text.json(), seed])
    assert "scripted-key" not in answers + "".join(served.errors)


def test_without_a_model_that_is_told(client: httpx.Client) -> None:
    insisted = client.post("/v1/tune", json={"text": TEXT, "planner": "llm"})
    assert insisted.status_code == 422
    assert insisted.headers["content-type"] == "application/problem+json"
    assert insisted.json()["type"].endswith(":refused")
    assert "this service has no language model" in insisted.json()["detail"]
    unclear = client.post("/v1/tune", json={"text": "the fastest one, please"})
    assert unclear.status_code == 422
    assert "read by rule alone: this service has no language model" in unclear.json()["detail"]
    assert {one["field"] for one in unclear.json()["reading"]["questions"]} >= {"model", "engine"}


def test_the_page_shows_who_read_the_words_and_what_the_planner_thinks(tmp_path: Path, open_page: OpenPage) -> None:
    with with_model(tmp_path, [READ, *SEARCH, *SEARCH]) as (served, _):
        opened = open_page(f"{served.base}/", allow=(served.base,))
        page = opened.page
        page.set_default_timeout(120_000)
        page.fill("#text", TEXT)
        page.click("button.main")
        page.wait_for_selector("h1:has-text('This is what was understood')")
        assert "Read by language model and rules." in page.inner_text("section.card")
        page.fill("#guidance", "keep it small")
        page.click("button.main")
        page.wait_for_selector(".state.done")
        story = page.inner_text("section[aria-labelledby=story-title]")
        assert "fewer sequences keep the step short" in story
        assert "48 against 64 sequences" in story
        assert "{" not in story, "in words"
        opened.assert_clean()


def test_an_operator_can_leave_the_model_out(tmp_path: Path) -> None:
    variables = {"INFERASIM_LLM_MODEL": "openai/scripted", "INFERASIM_LLM_API_BASE": "http://127.0.0.1:9"}
    with (
        service(tmp_path, str(tmp_path / "ledger.db"), workers=0, variables=variables, llm="off") as served,
        served.client() as client,
    ):
        assert client.post("/v1/read", json={"text": TEXT}).json()["read_by"] == "rules"
