"""What the queue promises on every back end: order, fairness, leases in one clock, and no writing without a lease."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from ledger import Conflict, LedgerError, SearchRecord, TrialRecord, open_ledger
from ledger.queue import Bounds, Job, KeyReused, LeaseLost, NewJob, Queue, QueueFull
from ledger.store import Ledger
from ledger.tokens import Tokens

LEASE_S = 10.0


@dataclass
class Clock:
    """A clock that a test sets."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def jobs(ledger: Ledger, clock: Clock) -> Queue:
    return Queue(ledger, LEASE_S, clock)


def put(jobs: Queue, caller: str = "ann", key: str | None = None, number: int = 0) -> Job:
    return jobs.submit(NewJob("pareto", caller, {"number": number}, key), Bounds())[0]


def test_jobs_are_served_in_turn_and_once(jobs: Queue) -> None:
    first, second = put(jobs), put(jobs)
    claimed = [jobs.claim("w1"), jobs.claim("w2"), jobs.claim("w3")]
    assert [one and one.job_id for one in claimed] == [first.job_id, second.job_id, None]
    assert jobs.counts() == {"queued": 0, "running": 2, "done": 0, "failed": 0, "cancelled": 0}


def test_fair_between_callers(jobs: Queue) -> None:
    """Ann's hundred do not keep Bob waiting."""
    anns = [put(jobs, "ann").job_id for _ in range(5)]
    bobs = [put(jobs, "bob").job_id for _ in range(2)]
    order = [claimed.job_id for _ in range(7) if (claimed := jobs.claim("w"))]
    assert order == [anns[0], bobs[0], anns[1], bobs[1], *anns[2:]]


def test_one_caller_runs_so_many_at_once(jobs: Queue) -> None:
    for _ in range(3):
        put(jobs, "ann")
    assert jobs.claim("w", running_per_caller=2)
    assert jobs.claim("w", running_per_caller=2)
    assert jobs.claim("w", running_per_caller=2) is None


def test_a_lease_that_ran_out_is_claimed_again_and_its_old_holder_may_not_write(
    jobs: Queue, clock: Clock, ledger: Ledger, search: SearchRecord, trials: tuple[TrialRecord, ...]
) -> None:
    job, _ = jobs.submit(NewJob("tune", "ann", {}), Bounds(), (search, ()))
    assert job.search_id is not None
    old = jobs.claim("w1")
    assert old is not None
    ledger.add_trial(job.search_id, trials[0], jobs.guard(old))
    clock.now_s += LEASE_S - 1
    assert jobs.renew(old) is False
    clock.now_s += LEASE_S - 1
    assert jobs.claim("w2") is None
    clock.now_s += 2
    new = jobs.claim("w2")
    assert new is not None
    assert (new.job_id, new.crashes, new.fence) == (job.job_id, 1, old.fence + 1)
    for act in (
        lambda: jobs.renew(old),
        lambda: jobs.release(old),
        lambda: jobs.finish(old, "done"),
        lambda: ledger.add_trial(job.search_id or 0, trials[1], jobs.guard(old)),
    ):
        with pytest.raises(LeaseLost, match="another worker has taken it over"):
            act()
    ledger.add_trial(job.search_id, trials[1], jobs.guard(new))
    assert ledger.trials(job.search_id) == trials[:2]


def test_a_clock_that_steps_back_does_not_hold_a_lease_for_ever(jobs: Queue, clock: Clock) -> None:
    put(jobs)
    old = jobs.claim("w1")
    assert old is not None
    clock.now_s -= 100_000.0
    new = jobs.claim("w2")
    assert new is not None
    with pytest.raises(LeaseLost):
        jobs.renew(old)
    assert jobs.renew(new) is False


def test_a_clock_that_steps_forward_costs_a_second_claim_and_no_more(jobs: Queue, clock: Clock) -> None:
    put(jobs)
    old = jobs.claim("w1")
    assert old is not None
    clock.now_s += 100_000.0
    assert jobs.renew(old) is False  # its holder lives and says so first
    assert jobs.claim("w2") is None


def test_released_work_is_free_at_once(jobs: Queue) -> None:
    put(jobs)
    held = jobs.claim("w1")
    assert held is not None
    jobs.release(held)
    again = jobs.claim("w2")
    assert again is not None
    assert again.crashes == 0


def test_the_same_key_is_the_same_job(jobs: Queue) -> None:
    first, fresh = jobs.submit(NewJob("pareto", "ann", {"a": [1, 2.5]}, "k"), Bounds())
    again, replayed = jobs.submit(NewJob("pareto", "ann", {"a": [1, 2.5]}, "k"), Bounds())
    assert (fresh, replayed) == (True, False)
    assert again == first
    other, fresh = jobs.submit(NewJob("pareto", "bob", {"a": [1, 2.5]}, "k"), Bounds())
    assert fresh
    assert other.job_id != first.job_id
    with pytest.raises(KeyReused):
        jobs.submit(NewJob("pareto", "ann", {"a": [1, 3]}, "k"), Bounds())


def test_a_full_queue_says_so(jobs: Queue) -> None:
    bounds = Bounds(queued_per_caller=2, queued=3)
    for caller in ("ann", "ann", "bob"):
        jobs.submit(NewJob("pareto", caller, {}), bounds)
    with pytest.raises(QueueFull, match="2 of your requests wait"):
        jobs.submit(NewJob("pareto", "ann", {}), bounds)
    with pytest.raises(QueueFull, match="3 requests wait"):
        jobs.submit(NewJob("pareto", "cid", {}), bounds)


def test_cancelling(jobs: Queue) -> None:
    waiting, running = put(jobs, "ann"), put(jobs, "bob")
    held = jobs.claim("w")
    assert held is not None
    assert held.job_id == waiting.job_id
    assert jobs.cancel(running.job_id).status == "cancelled"  # type: ignore[union-attr]
    found = jobs.cancel(held.job_id)
    assert found is not None
    assert (found.status, found.cancel_requested) == ("running", True)
    assert jobs.renew(held) is True
    jobs.finish(held, "cancelled")
    assert jobs.cancel(held.job_id).status == "cancelled"  # type: ignore[union-attr]
    assert jobs.cancel(10**6) is None


def test_a_search_and_its_job_are_there_together_or_not_at_all(
    jobs: Queue, ledger: Ledger, search: SearchRecord
) -> None:
    with pytest.raises(QueueFull):
        jobs.submit(NewJob("tune", "ann", {}), Bounds(queued_per_caller=0), (search, ()))
    assert ledger.searches() == ()
    job, _ = jobs.submit(NewJob("tune", "ann", {}), Bounds(), (search, ()))
    assert jobs.of_search(job.search_id or 0) == job
    assert [one.search_id for one in ledger.searches()] == [job.search_id]


def test_results_and_problems_come_back(jobs: Queue) -> None:
    put(jobs)
    put(jobs)
    one, two = jobs.claim("w"), jobs.claim("w")
    assert one is not None
    assert two is not None
    jobs.finish(one, "done", {"points": [1.5, None]})
    jobs.finish(two, "failed", problem={"detail": "no"})
    found, failed = jobs.job(one.job_id), jobs.job(two.job_id)
    assert found is not None
    assert failed is not None
    assert (found.status, found.result, found.ended) == ("done", {"points": [1.5, None]}, True)
    assert (failed.status, failed.problem) == ("failed", {"detail": "no"})


@pytest.fixture
def many(lasting_url: str) -> Iterator[str]:
    with open_ledger(lasting_url):
        yield lasting_url


def test_claimers_at_once_share_out_every_job_once(many: str) -> None:
    """Four processes' worth of claims: no job is lost and none is claimed twice."""
    with open_ledger(many) as book:
        expected = {put(Queue(book), f"caller {number % 3}", number=number).job_id for number in range(24)}

    def work(_number: int) -> list[int]:
        claimed = []
        with open_ledger(many) as book:
            jobs = Queue(book)
            while job := jobs.claim("w"):
                claimed.append(job.job_id)
                jobs.finish(job, "done")
        return claimed

    with ThreadPoolExecutor(4) as pool:
        claimed = [job_id for found in pool.map(work, range(4)) for job_id in found]
    assert sorted(claimed) == sorted(expected)


def test_tokens_are_hashed_and_can_be_revoked(ledger: Ledger) -> None:
    tokens = Tokens(ledger)
    secret = tokens.add("ci", ["tune", "read"])
    found = tokens.find(secret)
    assert found is not None
    assert (found.name, found.scopes) == ("ci", ("tune", "read"))
    with ledger.reading() as session:
        stored = session.connection().exec_driver_sql("SELECT * FROM token").fetchall()
    assert secret not in str(stored)
    assert tokens.find(secret[:-1]) is None
    with pytest.raises(Conflict, match="exists already"):
        tokens.add("ci", ["read"])
    with pytest.raises(LedgerError, match="scope 'root'"):
        tokens.add("x", ["root"])
    tokens.revoke("ci")
    assert tokens.find(secret) is None
    assert tokens.all()[0].revoked_at is not None
    with pytest.raises(LedgerError, match="no such token"):
        tokens.revoke("ci")
