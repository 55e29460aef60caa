"""Many workers through joblib: processes of this machine (loky), or a Ray or Dask cluster by name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from agent.pareto.request import check_backend
from predictor.errors import BadInput

Item = TypeVar("Item")
Result = TypeVar("Result")

WAVE = 8  # tasks a worker is handed at once on a backend that answers only when all are done


def mapped(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int, backend: str = "loky"
) -> Iterator[Result]:
    """``function`` of every item, in order, as results come in."""
    check_backend(backend)
    if jobs == 1 and backend == "loky":
        yield from map(function, items)
        return
    from joblib import Parallel, delayed

    if backend == "loky":
        with Parallel(n_jobs=jobs, backend="loky", return_as="generator") as pool:
            yield from pool(delayed(function)(item) for item in items)
        return
    with cluster(backend, jobs), Parallel(n_jobs=jobs) as pool:
        for wave in waves(items, WAVE * abs(jobs)):
            yield from pool(delayed(function)(item) for item in wave)


def waves(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Consecutive groups of ``size``; the last may be shorter.

    >>> list(waves("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    left = iter(items)
    while wave := list(islice(left, size)):
        yield wave


@contextmanager
def cluster(backend: str, jobs: int) -> Iterator[None]:
    """Make the backend joblib's own for a while; a local cluster where the environment names no other."""
    from joblib import parallel_config

    start = _ray if backend == "ray" else _dask
    with start(jobs), parallel_config(backend=backend, n_jobs=jobs):
        yield


@contextmanager
def _ray(jobs: int) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise _absent("ray") from None
    ours = not ray.is_initialized()
    if ours:
        ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False)
    register_ray()
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


@contextmanager
def _dask(jobs: int) -> Iterator[None]:
    try:
        from distributed import Client, default_client
    except ImportError:
        raise _absent("dask") from None
    client: Any
    try:
        client, ours = default_client(), False
    except ValueError:
        client, ours = Client(n_workers=jobs, threads_per_worker=1, dashboard_address=None), True
    try:
        yield
    finally:
        if ours:
            client.close()


def _absent(name: str) -> BadInput:
    return BadInput(f"backend {name!r}: {name} is not installed; pip install 'inferasim[{name}]', or use loky")
