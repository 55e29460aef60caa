"""Every failure is one line that names the ledger and the way out; nothing half-written is left behind."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from ledger import Conflict, LedgerError, NoteRecord, SearchRecord, TrialRecord, open_ledger
from ledger import database as database_module

ROOT = Path(__file__).parents[2]


def refusal(url: str, **options: bool) -> str:
    """The message of a ledger that does not open; always one line."""
    with pytest.raises(LedgerError) as caught:
        open_ledger(url, **options)
    message = str(caught.value)
    assert message.startswith("ledger ")
    assert "\n" not in message
    return message


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "mistyped" / "ledger.db"
    assert refusal(str(path)) == f"ledger {path}: folder {path.parent} does not exist; create it first"
    assert not path.parent.exists()


def test_a_folder_is_not_a_ledger(tmp_path: Path) -> None:
    assert "is a folder; give a file" in refusal(str(tmp_path))


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database\n" * 40)
    before = text.read_bytes()
    assert "is not a SQLite database; choose another path" in refusal(str(text))
    assert text.read_bytes() == before


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE search (term TEXT)")
    connection.close()
    assert "is a database of something else" in refusal(str(path))
    with sqlite3.connect(path) as connection:
        assert [name for (name,) in connection.execute("SELECT name FROM sqlite_master")] == ["search"]
    connection.close()


def test_reading_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    assert "no such file; run a search into it first" in refusal(str(path), create=False)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_a_new_ledger_but_nothing_to_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    assert "holds no ledger yet" in refusal(str(path), create=False)
    with open_ledger(str(path)) as ledger:
        assert ledger.searches() == ()


def test_a_place_that_takes_no_files() -> None:
    if not Path("/proc").is_dir():
        pytest.skip("no /proc on this system")
    assert re.search(r"^ledger /proc/ledger\.db: cannot be opened; check that /proc exists", refusal("/proc/ledger.db"))


UNPRIVILEGED = """
import os, sys
from ledger import LedgerError, open_ledger
open_ledger(":memory:").close()  # import all that is needed while it can be read
if os.geteuid() == 0:  # root may write anywhere
    os.chown(os.path.dirname(sys.argv[1]), 65534, 65534)
    os.setuid(65534)
with open_ledger(sys.argv[1], write=False) as found:
    print(len(found.searches()))
try:
    open_ledger(sys.argv[1])
except LedgerError as error:
    print(error)
"""


def test_a_read_only_ledger_opens_for_reading_alone(tmp_path: Path, search: SearchRecord) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(str(path)) as ledger:
        ledger.create_search(search)
    path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents[:3]):  # one folder more where tests run in workers
        folder.chmod(folder.stat().st_mode | 0o055)  # pytest's folders are closed to other users
    command = [sys.executable, "-c", UNPRIVILEGED, str(path)]
    output = subprocess.run(command, cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    assert output[0] == "1"
    assert output[1].startswith(f"ledger {path}: is read-only; make it and {tmp_path} writable")
    assert len(output) == 2


def test_a_newer_ledger_is_refused(lasting_url: str) -> None:
    with open_ledger(lasting_url) as ledger, ledger._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert "its tables have revision 9999, this version knows up to" in refusal(lasting_url)


def test_a_damaged_ledger_says_so(tmp_path: Path, search: SearchRecord) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(str(path)) as ledger:
        search_id = ledger.create_search(search)
        for index in range(200):
            ledger.add_trial(search_id, TrialRecord(index, {"tp": 1}, "seed", True, {"x": 1.0}))
    content = bytearray(path.read_bytes())
    content[8192:-4096] = os.urandom(len(content) - 12288)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"is damaged .*restore a backup"), open_ledger(str(path)) as ledger:
        ledger.trials(search_id)


@pytest.mark.parametrize("act", ["delete", "replace"])
def test_a_file_that_goes_away_under_a_search(tmp_path: Path, search: SearchRecord, act: str) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(str(path)) as ledger:
        search_id = ledger.create_search(search)
        for left_over in tmp_path.iterdir():
            left_over.unlink()
        if act == "replace":
            open_ledger(str(path)).close()
        with pytest.raises(LedgerError, match="was deleted or replaced while open"):
            ledger.add_trial(search_id, TrialRecord(0, {}, "seed", True))
        with pytest.raises(LedgerError, match="was deleted or replaced while open"):
            ledger.trials(search_id)


def test_a_full_disk_keeps_what_was_written(tmp_path: Path, search: SearchRecord) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(str(path)) as ledger:
        search_id = ledger.create_search(search)
        with ledger._engine.connect() as connection:  # the pool hands the same connection to the writer
            connection.exec_driver_sql("PRAGMA max_page_count = 24")
        made = [TrialRecord(index, {"tp": 1}, "seed", True, {"x": index / 3}) for index in range(1000)]
        written: list[TrialRecord] = []

        def write_until_full() -> None:
            for trial in made:
                ledger.add_trial(search_id, trial)
                written.append(trial)

        with pytest.raises(LedgerError, match=f"no space left on the disk that holds {tmp_path}; free some and resume"):
            write_until_full()
    assert 0 < len(written) < 1000
    with open_ledger(str(path)) as ledger:
        assert ledger.trials(search_id) == tuple(written)
        ledger.add_trial(search_id, made[len(written)])


def test_a_stuck_writer_is_named(tmp_path: Path, search: SearchRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "ledger.db"
    with open_ledger(str(path)) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="is locked by another process"):
            ledger.create_search(search)
        assert ledger.searches() == ()  # readers do not wait
        other.execute("ROLLBACK")
        other.close()
        assert ledger.create_search(search) == 1


KILLED = """
import sys
from datetime import UTC, datetime
from itertools import count
from ledger import SearchRecord, TrialRecord, open_ledger
ledger = open_ledger(sys.argv[1])
record = SearchRecord("m", "c", "o", {}, "a" * 64, "b" * 64, "1", datetime(2026, 1, 1, tzinfo=UTC))
print(ledger.create_search(record), flush=True)
for index in count():
    levers = {f"lever_{number}": index for number in range(36)}
    metrics = {f"metric_{number}": index / (number + 1) for number in range(40)}
    ledger.add_trial(1, TrialRecord(index, levers, "seed", True, metrics, index / 7))
    print(index, flush=True)
"""


@pytest.mark.parametrize("trials_before_the_kill", [1, 40])
def test_a_search_killed_with_sigkill_stays_whole(lasting_url: str, trials_before_the_kill: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, lasting_url], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "1\n"
        for _ in range(trials_before_the_kill):
            last = output.readline()
        process.send_signal(signal.SIGKILL)
        last = (output.readlines() or [last])[-1]
    assert process.wait() == -signal.SIGKILL
    with open_ledger(lasting_url) as ledger:
        state = ledger.resume_state(1)
        assert state.search.status == "unfinished"
        assert len(state.trials) in (int(last) + 1, int(last) + 2)  # the next one may have been committed, not printed
        assert state.first_missing == len(state.trials)
        for index, trial in state.trials.items():
            assert trial.levers == {f"lever_{number}": index for number in range(36)}
            assert trial.metrics == {f"metric_{number}": index / (number + 1) for number in range(40)}
            assert trial.score == index / 7
        ledger.add_trial(1, TrialRecord(state.first_missing, {}, "seed", True))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is empty; give a file path or postgresql://"),
        ("mysql://root@host/x", "ledger mysql://…: unknown kind of database"),
        ("postgresql://ann:secret@host:port/x", "not a URL"),
        ("postgresql://ann:secret@127.0.0.1:1/x", "ann:***@127.0.0.1:1/x: cannot be reached"),
    ],
)
def test_bad_urls_show_no_password(url: str, message: str) -> None:
    with pytest.raises(LedgerError) as caught:
        open_ledger(url)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_without_the_database(postgres_url: str) -> None:
    message = refusal(f"{postgres_url.rsplit('/', 1)[0]}/nowhere")
    assert "no such database on the server; create it with createdb" in message


def test_a_server_database_of_something_else(new_database: Callable[[], str]) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE trial (x integer)")
    assert "is a database of something else" in refusal(url)


def test_a_server_that_drops_the_connection(new_database: Callable[[], str], search: SearchRecord) -> None:
    """The next call reconnects; a transaction that was under way reports the loss."""
    url = new_database()
    with open_ledger(url) as ledger:
        search_id = ledger.create_search(search)

        def lose_the_connection() -> None:
            with ledger.transaction() as connection, psycopg.connect(url, autocommit=True) as other:
                process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
                other.execute("SELECT pg_terminate_backend(%s)", (process,))
                connection.exec_driver_sql("SELECT 1")

        with pytest.raises(LedgerError, match="resume when"):
            lose_the_connection()
        ledger.add_note(search_id, NoteRecord("scratchpad", {"text": "still here"}))


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "PostgreSQL needs psycopg; pip install 'inferasim[postgres]'" in refusal("postgresql://ann@127.0.0.1:1/x")


def test_two_processes_may_create_one_ledger(lasting_url: str) -> None:
    code = "import sys; from ledger import open_ledger; open_ledger(sys.argv[1]).close()"
    started = [subprocess.Popen([sys.executable, "-c", code, lasting_url], cwd=ROOT) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    with open_ledger(lasting_url, create=False) as ledger:
        assert ledger.searches() == ()


def test_a_conflict_is_a_ledger_error() -> None:
    assert issubclass(Conflict, LedgerError)
