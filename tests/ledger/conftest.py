"""Back ends of the contract suite, and records to store."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import psycopg
import pytest

from ledger import SearchRecord, TrialRecord, open_ledger
from ledger.store import Ledger
from tests.ledger import postgres

BACKENDS = ("memory", "sqlite", "postgresql")
_numbers = count()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server's maintenance URL, or a skip that says why there is none."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(postgres.server())
        except postgres.NoServer as error:
            pytest.skip(str(error))
        yield url


@pytest.fixture
def new_database(postgres_url: str) -> Callable[[], str]:
    """Makes an empty database, returns its URL."""

    def make() -> str:
        name = f"ledger_test_{next(_numbers)}"
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name}")  # left by an interrupted run on a shared server
            connection.execute(f"CREATE DATABASE {name}")
        return f"{postgres_url.rsplit('/', 1)[0]}/{name}"

    return make


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty ledger, one for each back end."""
    if request.param == "memory":
        return ":memory:"
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    make: Callable[[], str] = request.getfixturevalue("new_database")
    return make()


@pytest.fixture(params=BACKENDS[1:])
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """As ``url``, for the back ends that outlive a process."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    make: Callable[[], str] = request.getfixturevalue("new_database")
    return make()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """An open ledger."""
    with open_ledger(url) as opened:
        yield opened


NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def search() -> SearchRecord:
    """A search with every field filled."""
    return SearchRecord(
        model="Llama-3.1-8B",
        cluster="MI355X:8",
        objective="output_tok_s_per_gpu",
        request={"slo": ["tpot_ms<=10"], "pins": {"tp": 4}, "budget": 300, "guidance": "prefer small\nTP"},
        model_card_sha256="a" * 64,
        catalogue_sha256="b" * 64,
        anchor_sha256s=("c" * 64, "0" * 64),
        prompt_sha256s={"planner": "d" * 64},
        code_version="0.1.0",
        seed=7,
        created_at=NOON,
    )


@pytest.fixture
def trials() -> tuple[TrialRecord, ...]:
    """A priced legal trial, a rejected one, and one that was priced but misses the SLO."""
    return (
        TrialRecord(
            index=0,
            levers={"tp": 4, "fusions": ("norm_quant", "act_quant"), "kv_mem_fraction": 0.9, "spec_method": None},
            origin="baseline",
            legal=True,
            metrics={"tpot_ms": 7.25, "output_tok_s": 0.1 + 0.2, "max_concurrency": 1e22},
            score=5e-324,
            fusion_opportunities=({"pattern": "act_quant", "gain_pct": 2.5},),
            flags=(("outside_range", "batch 300 is past the anchor's 256"),),
            mode="anchored",
            anchor="llama-3.1-8b-mi355x",
            recorded_at=NOON,
        ),
        TrialRecord(
            index=1,
            levers={"tp": 3},
            origin="seed:tp",
            legal=False,
            reasons=(("tp_divides_heads", "TP3 does not divide 32 heads: use 1, 2, 4 or 8"), ("gpus", "3 of 8 GPUs")),
        ),
        TrialRecord(
            index=2,
            levers={"tp": 1},
            origin="planner",
            hypothesis="one GPU a replica wins per GPU\x00 \ud800",
            legal=False,
            metrics={"tpot_ms": 21.0},
            score=190.5,
            reasons=(("slo", "tpot_ms 21.0 is over 10"),),
            mode="anchored",
        ),
    )
