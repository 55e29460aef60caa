"""The HTTP interface of a running service: the command line's answers and words, problem details, idempotency."""

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agent.service.harness import REQUEST, ROOT, Served, command, ended, environment


@pytest.fixture(scope="module")
def search(served: Served) -> dict[str, Any]:
    """One finished search."""
    with served.client() as client:
        taken = client.post("/v1/tune", json={**REQUEST, "budget": 60}, headers={"Idempotency-Key": "first"})
        assert taken.status_code == 202, taken.text
        assert taken.headers["location"] == taken.json()["links"]["self"]
        return ended(client, taken.json()["search_id"])


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """An error as problem details."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"urn:inferasim:problem:{kind}"
    assert body["status"] == status
    assert body["title"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


def test_a_search_ends_as_the_command_line_ends_it(search: dict[str, Any], tmp_path: Path) -> None:
    line = command("tune", "--model", "Llama-3.1-8B", "--cluster", "MI355X:8", "--engine", "sglang")
    line += ["--slo", "tpot_ms<=10", "--budget", "60", "--seed-only", "--json", "--ledger", str(tmp_path / "l.db")]
    done = subprocess.run(line, cwd=ROOT, env=environment(tmp_path), check=True, capture_output=True, text=True)
    theirs = json.loads(done.stdout)
    assert search["status"] == "done"
    assert search["trials"] == theirs["trials"]
    assert search["reasons"] == theirs["reasons"]
    assert search["best"]["levers"] == theirs["best"]["levers"]
    assert search["best"]["score"] == theirs["best"]["score"]
    assert search["best"]["launch"] == theirs["best"]["launch"] != []
    assert search["best"]["benchmark"] == theirs["best"]["benchmark"]


def test_the_stream_tells_every_trial_and_the_end(client: httpx.Client, search: dict[str, Any]) -> None:
    events = client.get(f"/v1/searches/{search['search_id']}/events").text.split("\n\n")
    names = [line[7:] for block in events for line in block.splitlines() if line.startswith("event: ")]
    assert names.count("trial") == search["trials"]["legal"] + search["trials"]["rejected"]
    assert names.count("best") >= 1
    assert "budget" in names
    assert names[-1] == "end"
    again = client.get(f"/v1/searches/{search['search_id']}/events", headers={"Last-Event-ID": "5.0"}).text
    assert '"index": 4,' not in again
    assert '"index": 5,' in again


def test_the_same_key_gives_the_same_search(client: httpx.Client, search: dict[str, Any]) -> None:
    again = client.post("/v1/tune", json={**REQUEST, "budget": 60}, headers={"Idempotency-Key": "first"})
    assert again.status_code == 202
    assert again.json()["search_id"] == search["search_id"]
    assert again.headers["idempotency-replayed"] == "true"
    other = client.post("/v1/tune", json={**REQUEST, "budget": 61}, headers={"Idempotency-Key": "first"})
    assert "idempotency key 'first'" in problem(other, 422, "key-reused")["detail"]


def test_predict_answers_as_the_command_does(client: httpx.Client, tmp_path: Path) -> None:
    body = {"model": "Llama-3.1-8B", "gpu": "MI355X", "engine": "sglang", "isl": 1024, "osl": 256, "concurrency": 8}
    ours = client.post("/v1/predict", json=body)
    assert ours.status_code == 200, ours.text
    line = command("predict", *(part for name, value in body.items() for part in (f"--{name}", str(value))), "--json")
    done = subprocess.run(line, cwd=ROOT, env=environment(tmp_path), check=True, capture_output=True, text=True)
    assert ours.json() | {"wall_ms": 0} == json.loads(done.stdout) | {"wall_ms": 0}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"model": "Lama-3.1-8B"}, "unknown-name", "nearest: Llama-3.1-8B"),
        ({"cluster": "MI355X"}, "bad-input", "cluster 'MI355X': expected GPU:N or GPU:NxNODES"),
        ({"engine": "trtllm"}, "bad-input", "does not run on MI355X"),
        ({"slos": ["tpotms<=10"]}, "unknown-name", "tpot_ms"),
        ({"pins": ["tp=3"]}, "bad-input", "pin 'tp=3'"),
        ({"budget": 50_000}, "bad-input", "budget 50000: this service allows 5000"),
        ({"model": "/etc/passwd.json"}, "unknown-name", "is not known"),
        ({"isl": 0}, "bad-input", "isl"),
        ({"colour": "red"}, "bad-input", "colour"),
    ],
)
def test_bad_requests_are_told_in_the_command_lines_words(
    client: httpx.Client, change: dict[str, Any], kind: str, words: str
) -> None:
    before = client.get("/v1/searches").json()["searches"]
    body = problem(client.post("/v1/tune", json={**REQUEST, **change}), 422, kind)
    assert words in body["detail"]
    assert client.get("/v1/searches").json()["searches"] == before


def test_a_text_is_read_and_what_is_open_is_asked(client: httpx.Client) -> None:
    text = "Llama-3.1-8B on 8 MI355X, TPOT under 10 ms"
    reading = client.post("/v1/read", json={"text": text}).json()
    assert reading["fields"]["slos"] == ["tpot_ms<=10"]
    assert [one["field"] for one in reading["questions"]] == ["engine"]
    asked = problem(client.post("/v1/tune", json={"text": text}), 422, "bad-input")
    assert "which engine" in asked["detail"]
    taken = client.post("/v1/tune", json={"text": text, "engine": "sglang", "budget": 5})
    assert taken.status_code == 202, taken.text
    assert taken.json()["reading"]["understood"]
    ended(client, taken.json()["search_id"])


def test_what_is_not_there_is_not_found(client: httpx.Client) -> None:
    for path in ("/v1/searches/999999", "/v1/searches/999999/events", "/v1/jobs/999999", "/v1/nothing"):
        problem(client.get(path), 404, "not-found")
    problem(client.delete("/v1/searches"), 405, "method-not-allowed")


def test_launch_files_explain_and_exports(client: httpx.Client, search: dict[str, Any]) -> None:
    place = f"/v1/searches/{search['search_id']}"
    assert "sglang.launch_server" in client.get(f"{place}/launch").text
    assert "kind: Service" in client.get(f"{place}/launch", params={"format": "kubernetes"}).text
    told = client.get(f"{place}/explain", params={"a": search["best"]["index"], "b": 0}).json()
    assert told["a_beats_b"]
    assert told["causes"]
    trials = search["trials"]["legal"] + search["trials"]["rejected"]
    assert len(client.get(f"{place}/export", params={"format": "csv"}).text.splitlines()) == trials + 1
    problem(client.get(f"{place}/explain", params={"a": 0, "b": 9999}), 404, "not-found")


def test_a_sweep_a_mix_and_a_trace_run_as_jobs(client: httpx.Client) -> None:
    sweep = {"models": ["Llama-3.1-8B"], "cluster": "MI355X:1", "engines": ["sglang"], "most_points": 30}
    trace = "".join(
        json.dumps({"timestamp": 100 * n, "input_length": 300, "output_length": 20, "hash_ids": [n]}) + "\n"
        for n in range(20)
    )
    simulated = {"model": "Llama-3.1-8B", "gpu": "MI355X", "engine": "sglang", "block_tokens": "512"}
    answers = [
        client.post("/v1/pareto", json=sweep),
        client.post("/v1/mix", json={**sweep, "demands": ["Llama-3.1-8B:realtime=10"]}),
        client.post("/v1/simulate", params=simulated, content=trace),
    ]
    for answer, key in zip(answers, ("charts", "slots", "requests"), strict=True):
        assert answer.status_code == 202, answer.text
        body = _job(client, answer.json()["job_id"])
        assert body["status"] == "done", body
        assert body["result"][key]


def test_a_callers_own_tiers(client: httpx.Client) -> None:
    sweep = {"models": ["Llama-3.1-8B"], "cluster": "MI355X:1", "engines": ["sglang"], "most_points": 30}
    tiers = [
        {"name": "chat", "min_tok_s_user": 30.0, "max_ttft_ms": 4000},
        {"name": "unmet", "min_tok_s_user": 1e5},
    ]
    answer = client.post("/v1/mix", json={**sweep, "tiers": tiers, "demands": ["Llama-3.1-8B:chat=10"], "fleet": 8})
    assert answer.status_code == 202, answer.text
    result = _job(client, answer.json()["job_id"])["result"]
    assert [slot["tier"] for slot in result["slots"]] == ["chat", "unmet"]
    assert result["empty"] == ["Llama-3.1-8B:unmet"]
    assert result["slots"][1]["nearest_miss"]["misses"]
    assert result["allocation"]["used_gpus"] + result["allocation"]["spare_gpus"] == 8
    twice = client.post("/v1/pareto", json={**sweep, "tiers": [tiers[0], tiers[0]]})
    assert "names must differ: chat, chat" in problem(twice, 422, "bad-input")["detail"]
    problem(client.post("/v1/pareto", json={**sweep, "tiers": []}), 422, "bad-input")


def _job(client: httpx.Client, job_id: int) -> dict[str, Any]:
    from tests.agent.service.harness import until

    def look() -> dict[str, Any] | None:
        body: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").json()
        return body if body["finished_at"] else None

    found: dict[str, Any] = until(look)
    return found


def test_a_search_can_be_cancelled(client: httpx.Client) -> None:
    taken = client.post("/v1/tune", json={**REQUEST, "cluster": "MI355X:8x2", "budget": 5000}).json()
    answer = client.post(f"/v1/searches/{taken['search_id']}/cancel")
    assert answer.status_code == 200
    assert answer.json()["cancel_requested"]
    assert ended(client, taken["search_id"])["status"] == "cancelled"


def test_operations(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").status_code == 200
    text = client.get("/metrics").text
    assert 'inferasim_http_requests_total{method="GET",route="/healthz",status="200"}' in text
    assert "inferasim_ledger_up 1.0" in text
    assert client.get("/v1/anchors").json()["anchors"]
    assert len(client.get("/v1/levers").json()["levers"]) == 36
    legal = client.get("/v1/levers", params={"model": "Llama-3.1-8B"}).json()
    assert legal["model"] == "Llama-3.1-8B"
