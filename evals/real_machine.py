"""The machine a CPU engine runs on: how busy others keep it, and what its memory gives one rank and several at once."""

import ctypes
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from predictor.cards import Collective, Platform
from predictor.transfer.constants import AMD

QUIET_LOAD = 1.5
# Cores others may use on average while an engine is timed; an engine and its client leave less than this of two idle.
QUIET_OTHERS = 0.25
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_BF16_BYTES = 2.0
# Reads a matrix of 256 MiB through a matrix-vector product, which a core does as fast as memory gives it.
_READ = """
import sys, time
import numpy as np
matrix, vector = np.ones((8192, 8192), np.float32), np.ones(8192, np.float32)
matrix @ vector
print("ready", flush=True)
sys.stdin.readline()
times = []
for _ in range(12):
    begun = time.perf_counter()
    matrix @ vector
    times.append(time.perf_counter() - begun)
print(matrix.nbytes / sorted(times)[len(times) // 2])
"""
# All-reduces of a step's sizes over gloo, which vLLM's CPU build uses where its own need AVX-512: RANK RANKS PORT.
_REDUCE = """
import os, sys, time
import torch, torch.distributed as dist
rank, ranks = int(sys.argv[1]), int(sys.argv[2])
os.sched_setaffinity(0, {rank})
torch.set_num_threads(1)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3], GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", rank=rank, world_size=ranks)
times = []
for turn in range(400):
    sums = torch.ones(1024 << turn % 5)
    begun = time.perf_counter()
    dist.all_reduce(sums)
    times.append(time.perf_counter() - begun)
print(sorted(times[40:])[180] * 1e6)
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor seconds since the start of the machine, and this process's own with its finished children."""

    at_s: float
    busy_s: float
    own_s: float

    def others_since(self, earlier: "Reading") -> float:
        """Cores that others used on average between two readings; work stolen by other machines counts."""
        busy, own = self.busy_s - earlier.busy_s, self.own_s - earlier.own_s
        return max(0.0, busy - own) / max(1e-9, self.at_s - earlier.at_s)


def read_machine(stat: Path = Path("/proc/stat")) -> Reading:
    """Now; where the system does not tell, nobody else is busy."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    try:
        fields = stat.read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return Reading(time.monotonic(), own, own)
    user, nice, system, _idle, _wait, irq, softirq, steal = (float(field) for field in fields[:8])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return Reading(time.monotonic(), busy, own)


def adopt_orphans() -> None:
    """Become the parent of whatever a stopped engine leaves behind, so that its processor time counts as one's own."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def collect_orphans() -> None:
    """Take the finished ones; called when no child of one's own is waited for elsewhere."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def wait_for_quiet(limit_s: float, poll_s: float = 5.0) -> float:
    """Wait until the load average is below ``QUIET_LOAD``, not longer than ``limit_s``; the load at the end.

    What ran just before, such as a test suite, stays in the average for a minute.
    """
    until = time.monotonic() + limit_s
    while (load := os.getloadavg()[0]) >= QUIET_LOAD and time.monotonic() < until:
        time.sleep(poll_s)
    return load


def read_bytes_per_s(ranks: int) -> float:
    """Memory read by each of ``ranks`` single-threaded processes at once, bytes/s of the slowest."""
    env = dict(os.environ) | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    started = [_reader(env) for _ in range(ranks)]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return min(float(process.communicate()[0]) for process in started)


def _reader(env: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _READ], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )


def allreduce_us(python: Path, ranks: int, port: int, env: Mapping[str, str]) -> float:
    """Median time of an all-reduce of 4 to 64 KiB between ``ranks`` processes on a core each, µs of the slowest."""
    started = [
        subprocess.Popen(
            [str(python), "-c", _REDUCE, str(rank), str(ranks), str(port)], stdout=subprocess.PIPE, text=True, env=env
        )
        for rank in range(ranks)
    ]
    return max(float(process.communicate()[0]) for process in started)


def has_avx512(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether vLLM's CPU build computes in bf16 and reduces through shared memory here: both need AVX-512."""
    try:
        return "avx512f" in cpuinfo.read_text()
    except OSError:
        return False


def cpu_platform(
    read_bytes_per_s: float = 2e10, weight_bytes: float = 2.0, reduce_us: float | None = None, ranks: int = 2
) -> Platform:
    """This machine as a platform whose "GPU" is a core. Steps measured at the target's width are not moved by it.

    ``read_bytes_per_s`` is what memory gives each rank while all of them read; the laws take weights to stream at a
    share of a GPU's peak, so the peak here is what makes that share the rate that was read. ``weight_bytes`` is what a
    weight takes as it is served: no format the laws know is wider than bf16, so a wider one makes memory slower. A
    reduction goes through that memory, and where ``reduce_us`` is given starts as late as was measured of ``ranks``.
    """
    peak = read_bytes_per_s / AMD.stream_share * _BF16_BYTES / weight_bytes
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    measured = () if reduce_us is None else (_gloo(ranks, reduce_us, read_bytes_per_s / 2.0),)
    return Platform(
        name="CPU",
        vendor="amd",  # of the laws' two sets the one that rests on terms alone, not on kernel tables
        gpus_per_node=os.cpu_count() or 1,
        hbm_bytes=memory,
        hbm_bytes_per_s=peak,
        peak_bf16_flops=1e11,
        compute_units=1,
        clock_ghz=2.0,
        link_bytes_per_s=read_bytes_per_s / 2.0,
        nic_bytes_per_s=1e9,
        kernel_launch_us=10.0,
        hbm_efficiency=0.8,
        collectives=measured,
        sources={
            "hbm_bytes": "SC_PHYS_PAGES",
            "hbm_bytes_per_s": "a matrix-vector product timed on this machine, over the laws' share of a peak",
            "link_bytes_per_s": "half of a read: shared memory is written, then read",
            "peak_bf16_flops": "order of one AVX-512 core; no law here uses it",
        },
    )


def _gloo(ranks: int, alpha_us: float, bytes_per_s: float) -> Collective:
    return Collective(
        op="all_reduce",
        variant="custom_gloo",
        tier="node",
        gpus=ranks,
        alpha_us=alpha_us,
        bandwidth_gb_s=bytes_per_s / 1e9,
        source="gloo between processes on this machine's cores, timed",
    )
