"""The OpenAPI document holds: generated requests find no server error and no answer that breaks it; fuzzed uploads are
refused whole.

``SERVICE_EXAMPLES=1000`` asks for more examples of each operation than CI has time for; ``SERVICE_UPLOADS=100`` for
fewer uploads.
"""

import json
import os
import random
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from agent.anchor_files import bundled_anchors
from agent.anchor_store import anchor_text
from agent.service.app import create_app
from agent.service.settings import ServiceSettings
from predictor.anchors.schema import parse_anchor
from tests.agent.service.harness import Served, service

EXAMPLES = int(os.environ.get("SERVICE_EXAMPLES", "6"))
UPLOADS = int(os.environ.get("SERVICE_UPLOADS", "10000"))
SEED = 20261130


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module")
def idle(home: Path) -> Iterator[Served]:
    """A service that takes on work and does none of it, so that examples stay cheap."""
    limits = {"writes_per_min": 10**6, "reads_per_s": 10**6, "queued": 10**6, "queued_per_caller": 10**6}
    (home / "anchors").mkdir()
    options = {"workers": 0, "anchors": home / "anchors", "max_upload_bytes": 200_000, "max_trace_records": 500}
    with service(home, str(home / "ledger.db"), **options, **limits) as found:
        yield found


def operations() -> list[tuple[str, str]]:
    """Every operation of the document."""
    document = create_app(ServiceSettings(ledger=":memory:", workers=0)).openapi()
    streams = "/v1/searches/{search_id}/events"  # of a search that never ends, it would not either
    return [
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods if path != streams
    ]


@pytest.fixture(scope="module")
def schema(idle: Served) -> Any:
    with idle.client() as client:
        document = client.get("/openapi.json").json()
        taken = client.post("/v1/tune", json={"model": "Llama-3.1-8B", "cluster": "MI355X:8", "engine": "sglang"})
        assert taken.status_code == 202
    loaded = schemathesis.openapi.from_dict(document)
    loaded.config.update(base_url=idle.base)
    return loaded


@pytest.mark.parametrize(("method", "path"), operations())
def test_generated_requests_keep_the_contract(schema: Any, idle: Served, method: str, path: str) -> None:
    """No 5xx, statuses and content types as documented, bodies of the documented form."""
    operation = schema[path][method]
    cases = operation.as_strategy()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(case=cases)
    def check(case: Any) -> None:
        # A name that is in no catalogue is well-formed and refused all the same: 422 is documented.
        case.call_and_validate(base_url=idle.base, timeout=600, excluded_checks=[positive_data_acceptance])

    check()


def mangled(text: str, chance: random.Random) -> bytes:
    """A text that is no longer what it was: bytes cut, doubled, changed; numbers and types replaced."""
    raw = bytearray(text.encode())
    kind = chance.randrange(7)
    if kind == 0:
        return bytes(raw[: chance.randrange(len(raw))])
    if kind == 1:
        for _ in range(chance.randrange(1, 20)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        return bytes(raw)
    if kind == 2:
        at = chance.randrange(len(raw))
        return bytes(raw[:at] + raw[at // 2 : at] * chance.randrange(1, 5) + raw[at:])
    if kind == 3:
        return chance.randbytes(chance.randrange(400))
    if kind == 4:
        depth = chance.randrange(1, 100_000)
        return b"[" * depth + b"]" * chance.choice((0, depth))
    odd = [
        "NaN",
        "1e999",
        "-1",
        "0",
        "null",
        '""',
        "[]",
        "{}",
        "true",
        '"\\u0000"',
        str(10**400),
        '"' + "x" * 5000 + '"',
    ]
    pieces = text.split(",")
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(pieces))
        head, colon, _ = pieces[at].partition(":")
        pieces[at] = head + colon + chance.choice(odd) if colon else chance.choice(odd)
    return ",".join(pieces).encode()


def trace_text(chance: random.Random) -> str:
    """A small valid trace."""
    rows = [
        {"timestamp": 10 * n, "input_length": chance.randrange(1, 2000), "output_length": 5, "hash_ids": [n, n + 1]}
        for n in range(chance.randrange(1, 12))
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_fuzzed_uploads_are_refused_whole_or_kept_whole(idle: Served, home: Path) -> None:
    """No crash, no partial write: what is kept is valid, and there is as much of it as answers said."""
    anchors = [anchor_text(one) for one in bundled_anchors()[:5]]
    query = "model=Llama-3.1-8B&gpu=MI355X&engine=sglang"

    def send(number: int) -> tuple[str, int, str]:
        chance = random.Random(SEED + number)
        if number % 2:
            body = mangled(chance.choice(anchors), chance)
            path = f"/v1/anchors?replace={chance.choice(('true', 'false'))}&dry_run={chance.choice(('true', 'false'))}"
        else:
            body = mangled(trace_text(chance), chance)
            path = f"/v1/simulate?{query}&skip_bad_records={chance.choice(('true', 'false'))}"
            path += f"&block_tokens={chance.choice((16, 512, 100_000))}"
        answer = clients[number % len(clients)].post(path, content=body, headers={"content-type": "application/json"})
        return path.partition("?")[0], answer.status_code, answer.text

    # Connections of their own: one that waits for its turn on a slow machine is closed by the service meanwhile.
    clients = [idle.client(limits=httpx.Limits(max_keepalive_connections=0)) for _ in range(2)]
    before = stored(home)
    try:
        with ThreadPoolExecutor(len(clients)) as pool:
            answers = list(pool.map(send, range(UPLOADS)))
    finally:
        for client in clients:
            client.close()
    assert {status for _, status, _ in answers} <= {201, 202, 409, 413, 422}
    for _, status, text in answers:
        assert "Traceback" not in text
        assert str(home) not in text
        if status >= 400:
            assert json.loads(text)["detail"]
    taken = [json.loads(text) for path, status, text in answers if (path, status) == ("/v1/simulate", 202)]
    assert stored(home) - before == len(taken)
    kept = [json.loads(text) for path, status, text in answers if (path, status) == ("/v1/anchors", 201)]
    files = [one for one in (home / "anchors").rglob("*") if one.is_file()]
    assert len(answers) == UPLOADS
    assert {parse_anchor(one.read_text(encoding="utf-8"), one.name).content_hash for one in files} == {
        one["sha256"] for one in kept if one["kept"]
    }
    with idle.client() as client:
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/anchors").status_code == 200, "whatever was kept can be read"


def stored(home: Path) -> int:
    """Jobs in the ledger, each with the trace it names."""
    with closing(sqlite3.connect(home / "ledger.db")) as connection:
        jobs = connection.execute("SELECT request_json FROM job WHERE kind = 'simulate'").fetchall()
        for (request,) in jobs:
            sha256 = json.loads(request)["trace_sha256"]
            assert connection.execute("SELECT count(*) FROM input WHERE sha256 = ?", (sha256,)).fetchone() == (1,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return len(jobs)


def test_a_valid_anchor_is_kept_once_and_found(idle: Served, home: Path) -> None:
    fields = json.loads(anchor_text(bundled_anchors()[0])) | {"name": "fresh"}
    fields["signature"]["engine_version"] = "9.9.9"  # a kernel set of its own: mangled uploads may hold the others
    text = json.dumps(fields)
    with idle.client() as client:
        dry = client.post("/v1/anchors", params={"dry_run": True}, content=text)
        assert (dry.status_code, dry.json()["kept"]) == (201, False)
        kept = client.post("/v1/anchors", content=text)
        assert kept.status_code == 201, kept.text
        assert client.post("/v1/anchors", content=text).status_code == 201, "the same once more changes nothing"
        names = [one["name"] for one in client.get("/v1/anchors").json()["anchors"]]
        assert names.count(kept.json()["name"]) == 1
        other = json.loads(text)
        other["decode"][0]["points"][0]["step_ms"] *= 1.01
        refused = client.post("/v1/anchors", content=json.dumps(other))
        assert refused.status_code == 422
        assert "already holds this kernel set" in refused.json()["detail"]
        assert str(home) not in refused.text


@pytest.mark.parametrize("name", ["../outside", "a/b", "..", ".hidden", "C:x", "a\\b", "x" * 300, "a\nb", ""])
def test_an_anchors_name_points_nowhere_else(idle: Served, home: Path, name: str) -> None:
    body = json.loads(anchor_text(bundled_anchors()[1])) | {"name": name}
    before = sorted(home.rglob("*.json"))
    with idle.client() as client:
        answer = client.post("/v1/anchors", content=json.dumps(body))
    assert answer.status_code == 422
    assert "name" in answer.json()["detail"]
    assert sorted(home.rglob("*.json")) == before


@pytest.mark.parametrize(
    "body",
    ["[" * 100_000, '{"a":' * 30_000, '{"name": ' + "9" * 5000 + "}", '{"name": ' + "9" * 400 + "}"],
)
def test_json_that_breaks_readers_is_refused(idle: Served, body: str) -> None:
    query = "/v1/simulate?model=Llama-3.1-8B&gpu=MI355X&engine=sglang&block_tokens=16"
    record = '{"timestamp": ' + "9" * 400 + ', "input_length": 3, "output_length": 2, "hash_ids": [1]}'
    with idle.client() as client:
        for path, content in (("/v1/anchors", body), (query, body), (query, record)):
            answer = client.post(path, content=content)
            assert answer.status_code == 422, answer.text
            assert answer.json()["type"] == "urn:inferasim:problem:bad-input"


@pytest.mark.parametrize("path", ["/v1/anchors", "/v1/simulate?model=Llama-3.1-8B&gpu=MI355X&engine=sglang"])
def test_too_large_is_refused_whether_the_size_is_stated_or_not(idle: Served, path: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 10_000

    with idle.client() as client:
        for content in (b" " * 300_000, pieces()):
            answer = client.post(path, content=content)
            assert (answer.status_code, answer.json()["type"]) == (413, "urn:inferasim:problem:too-large")


@given(st.text(max_size=60))
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
def test_any_text_is_read_or_refused_in_words(idle: Served, text: str) -> None:
    with httpx.Client(base_url=idle.base, timeout=60) as client:
        answer = client.post("/v1/read", json={"text": text})
    assert answer.status_code in (200, 422)
