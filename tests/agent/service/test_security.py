"""Who may do what, what a browser is told, and what an answer never holds."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.service.settings import load_settings
from ledger import open_ledger
from ledger.tokens import Tokens
from predictor.errors import BadInput
from tests.agent.service.harness import REQUEST, ROOT, Served, command, environment, service


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def tokens(home: Path) -> dict[str, str]:
    """One token a scope, made by the command that operators use."""
    made = {}
    for scope in ("read", "tune", "admin"):
        line = command("serve", "token", "add", scope, "--scope", scope, "--ledger", str(home / "ledger.db"))
        done = subprocess.run(line, cwd=ROOT, env=environment(home), check=True, capture_output=True, text=True)
        made[scope] = done.stdout.strip()
    return made


@pytest.fixture(scope="module")
def guarded(home: Path, tokens: dict[str, str]) -> Iterator[Served]:
    """A service that wants tokens and works on nothing."""
    assert tokens
    with service(home, str(home / "ledger.db"), "--auth", "on", workers=0, writes_per_min=60) as found:
        yield found


def asker(served: Served, token: str | None) -> httpx.Client:
    return served.client(headers={} if token is None else {"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize(
    ("scope", "statuses"),
    [
        (None, (401, 401, 401, 401)),
        ("wrong", (401, 401, 401, 401)),
        ("read", (200, 403, 403, 200)),
        ("tune", (200, 202, 403, 200)),
        ("admin", (200, 202, 422, 200)),
    ],
)
def test_scopes(guarded: Served, tokens: dict[str, str], scope: str | None, statuses: tuple[int, ...]) -> None:
    token = None if scope is None else tokens.get(scope, "isim_" + "x" * 43)
    with asker(guarded, token) as client:
        answers = (
            client.get("/v1/searches"),
            client.post("/v1/tune", json=REQUEST),
            client.post("/v1/anchors", content="{}"),
            client.get("/metrics"),
        )
        assert tuple(one.status_code for one in answers) == statuses
        for answer in answers:
            if answer.status_code == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200


def test_one_caller_does_not_stop_anothers_search(guarded: Served, tokens: dict[str, str], home: Path) -> None:
    with open_ledger(str(home / "ledger.db")) as book:
        other = Tokens(book).add("other", ["tune"])
    with (
        asker(guarded, tokens["tune"]) as mine,
        asker(guarded, other) as theirs,
        asker(guarded, tokens["admin"]) as boss,
    ):
        place = mine.post("/v1/tune", json=REQUEST).json()["links"]["cancel"]
        assert theirs.post(place).status_code == 403
        assert boss.post(place).json()["status"] == "cancelled"


def test_a_browser_is_told_what_it_may_do(guarded: Served) -> None:
    with guarded.client() as client:
        for path in ("/login", "/healthz", "/v1/searches", "/static/app.js", "/nothing"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "server" not in headers


def test_no_page_has_a_script_or_a_style_of_its_own() -> None:
    for path in (ROOT / "agent" / "web" / "templates").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:|https?://(?!www\.w3\.org)", text
        ), path


def signed_in(client: httpx.Client, token: str) -> httpx.Response:
    page = client.get("/login")
    csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert csrf
    return client.post("/login", data={"csrf": csrf[1], "token": token, "next": "/"})


def test_a_session_is_a_strict_cookie_that_no_script_reads(guarded: Served, tokens: dict[str, str]) -> None:
    with guarded.client() as client:
        assert client.get("/", headers={"Accept": "text/html"}).headers["location"] == "/login?next=/"
        assert signed_in(client, "isim_wrong").status_code == 401
        answer = signed_in(client, tokens["read"])
        cookie = answer.headers["set-cookie"]
        assert answer.status_code == 303
        for part in ("HttpOnly", "SameSite=strict"):
            assert part in cookie
        page = client.get("/")
        assert page.status_code == 200
        assert tokens["read"] not in page.text


@pytest.mark.parametrize("sent", [{}, {"csrf": "guess"}])
def test_a_form_without_our_token_is_refused(guarded: Served, tokens: dict[str, str], sent: dict[str, str]) -> None:
    with guarded.client() as client:
        signed_in(client, tokens["tune"])
        for path in ("/ask", "/new", "/logout", "/searches/1/cancel"):
            assert client.post(path, data={"text": "x", **sent}).status_code == 403


def test_foreign_pages_and_foreign_names_are_refused(served: Served) -> None:
    """Without tokens too: a page of another site cannot post here, nor reach it by a name of its own."""
    with served.client() as client:
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            assert client.post("/v1/tune", json=REQUEST, headers=headers).status_code == 403
        assert client.get("/v1/searches", headers={"Host": "evil.example"}).status_code == 403
        assert client.get("/v1/searches", headers={"Host": "localhost"}).status_code == 200


def test_who_asks_too_often_waits(guarded: Served, tokens: dict[str, str]) -> None:
    with asker(guarded, tokens["tune"]) as client:
        # On a slow machine the rate refills between two requests.
        asked = (client.post("/v1/searches/1/cancel") for _ in range(400))
        last = next(answer for answer in asked if answer.status_code == 429)
    assert int(last.headers["retry-after"]) >= 1
    assert "too many requests" in last.json()["detail"]


ODD: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/tune", {**REQUEST, "model": "/etc/passwd"}),
    ("POST", "/v1/tune", {**REQUEST, "model": "../../../../etc/hosts.json"}),
    ("POST", "/v1/predict", {"model": "~/x.toml", "gpu": "H100", "engine": "vllm", "isl": 1, "osl": 1}),
    ("GET", "/v1/levers?model=/etc/passwd.json", None),
    ("GET", "/v1/searches/1/export?format=../../etc", None),
    ("GET", "/static/..%2f..%2fsettings.py", None),
    ("GET", "/static/%2e%2e/routes.py", None),
    ("GET", "/v1/searches/-1", None),
    ("GET", "/v1/searches/99999999999999999999", None),
)


@pytest.mark.parametrize(("method", "path", "body"), ODD)
def test_no_answer_tells_of_this_machine(served: Served, method: str, path: str, body: Any) -> None:
    with served.client() as client:
        answer = client.request(method, path, json=body)
    assert 400 <= answer.status_code < 500, answer.text
    for word in ("Traceback", str(ROOT), "/root", "/home", "/tmp", "site-packages", ".py"):
        assert word not in answer.text.replace(path, "")


def test_without_tokens_only_this_machine_is_served() -> None:
    with pytest.raises(BadInput, match="without tokens only this machine may reach the service"):
        load_settings({"host": "0.0.0.0", "auth": "off"}, environment={})
    assert load_settings({"host": "0.0.0.0"}, environment={}).tokens
    assert not load_settings({}, environment={}).tokens
    assert load_settings({"auth": "on"}, environment={}).tokens


def test_passwords_are_not_shown() -> None:
    settings = load_settings({"ledger": "postgresql://ann:secret@db/x"}, environment={})
    assert "secret" not in settings.as_toml()
    assert "ann:***@db" in settings.as_toml()
