"""A copy taken while a search writes is whole, and a ledger made of it goes on."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger import LedgerError, SearchRecord, TrialRecord, open_ledger
from ledger.backup import backup, restore
from ledger.export import export

Place = Callable[[], str]


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Makes a new empty place for a ledger."""
    if request.param == "postgresql":
        found: Place = request.getfixturevalue("new_database")
        return found
    numbers = iter(range(100))
    return lambda: str(tmp_path / f"ledger-{next(numbers)}.db")


def test_a_backup_restores_to_the_same_bytes(
    place: Place, tmp_path: Path, search: SearchRecord, trials: tuple[TrialRecord, ...]
) -> None:
    old, new, copy = place(), place(), tmp_path / "copy"
    with open_ledger(old) as book:
        search_id = book.create_search(search)
        for trial in trials:
            book.add_trial(search_id, trial)
        before = export(book, [search_id], "jsonl", stable=False)
    backup(old, copy)
    restore(copy, new)
    with open_ledger(new, create=False) as book:
        assert export(book, [search_id], "jsonl", stable=False) == before
        book.add_trial(search_id, TrialRecord(9, {"tp": 9}, "seed", True))
        assert book.create_search(search) == search_id + 1, "ids go on where they were"


def test_a_backup_under_a_writer_is_whole(place: Place, tmp_path: Path, search: SearchRecord) -> None:
    url, stop = place(), threading.Event()
    with open_ledger(url) as book:
        search_id = book.create_search(search)

    def write() -> None:
        with open_ledger(url) as mine:
            index = 0
            while not stop.is_set():
                mine.add_trial(search_id, TrialRecord(index, {"tp": index}, "seed", True, {"x": index / 7}))
                index += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copies = [tmp_path / f"copy-{number}" for number in range(3)]
        for copy in copies:
            backup(url, copy)
    finally:
        stop.set()
        writer.join()
    for copy in copies:
        target = place()
        restore(copy, target)
        with open_ledger(target, create=False, write=False) as book:
            indices = [trial.index for trial in book.trials(search_id)]
        assert indices == list(range(len(indices)))


def test_nothing_is_written_over(place: Place, tmp_path: Path) -> None:
    url, copy = place(), tmp_path / "copy"
    with pytest.raises(LedgerError):
        backup(url, copy)
    assert not copy.exists(), "no backup of what is not there"
    open_ledger(url).close()
    backup(url, copy)
    with pytest.raises(LedgerError, match="exists already; name a new file"):
        backup(url, copy)
    with pytest.raises(LedgerError, match=r"exists already|holds a ledger already"):
        restore(copy, url)
    with pytest.raises(LedgerError, match="no such file"):
        restore(tmp_path / "none", url)
    (tmp_path / "junk").write_text("junk" * 100, encoding="utf-8")
    with pytest.raises(LedgerError):
        restore(tmp_path / "junk", place())
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
