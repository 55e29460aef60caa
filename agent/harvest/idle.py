"""Whether the devices are idle: a step timed beside another job describes both."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Another job's share of a GPU or of its memory above which it is not idle; drivers themselves hold a few hundred MB.
BUSY_PCT = 5.0
BUSY_MEMORY_PCT = 3.0
# Runnable jobs a core beyond which a CPU engine is starved (a harvest on two cores read steps 2 to 4 times too long at
# a load of 4).
BUSY_LOAD_PER_CORE = 0.75
Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Idle:
    """What was found, and by what."""

    idle: bool
    detail: str


def tool_output(argv: Sequence[str]) -> str | None:
    """Standard output of a tool; None where it is not there or fails."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def check_idle(serving: bool = False, devices: Sequence[int] = (), run: Run = tool_output) -> Idle:
    """Ask nvidia-smi, else rocm-smi, else the load average; ``devices`` empty means all.

    Where an engine is ``serving`` already, its memory is in use and only work counts.
    """
    text = run(
        ("nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
    )
    if text is not None:
        return judge_gpus("nvidia-smi", parse_nvidia(text), devices, serving)
    text = run(("rocm-smi", "--showuse", "--showmemuse", "--csv"))
    if text is not None:
        return judge_gpus("rocm-smi", parse_rocm(text), devices, serving)
    return judge_load(os.getloadavg()[0], os.cpu_count() or 1)


def judge_load(load: float, cores: int) -> Idle:
    """A CPU engine wants its cores for itself."""
    limit = BUSY_LOAD_PER_CORE * cores
    return Idle(load <= limit, f"load average {load:.2f} on {cores} cores (limit {limit:.2f})")


Usage = tuple[int, float, float]  # device, busy percent, memory percent


def parse_nvidia(text: str) -> list[Usage]:
    """Rows of ``index, utilization, memory used, memory total``.

    >>> parse_nvidia("0, 3, 1400, 140000\\n1, [N/A], 70000, 140000\\n")
    [(0, 3.0, 1.0), (1, 0.0, 50.0)]
    """
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isdigit():
            total = _number(cells[3])
            found.append((int(cells[0]), _number(cells[1]), 100.0 * _number(cells[2]) / total if total else 0.0))
    return found


def parse_rocm(text: str) -> list[Usage]:
    """Rows under a header that names ``GPU use (%)`` and ``GPU Memory Allocated (VRAM%)``.

    >>> parse_rocm("device,GPU use (%),GPU Memory Allocated (VRAM%)\\ncard0,0,0\\ncard1,97,88\\n")
    [(0, 0.0, 0.0), (1, 97.0, 88.0)]
    """
    found = []
    lines = [line.split(",") for line in text.splitlines() if line.strip()]
    header = [cell.strip().lower() for cell in lines[0]] if lines else []
    use = next((i for i, name in enumerate(header) if name.startswith("gpu use")), None)
    memory = next((i for i, name in enumerate(header) if "vram%" in name), None)
    for cells in lines[1:]:
        digits = "".join(c for c in cells[0] if c.isdigit())
        if digits and use is not None and len(cells) == len(header):
            found.append((int(digits), _number(cells[use]), 0.0 if memory is None else _number(cells[memory])))
    return found


def _number(text: str) -> float:
    try:
        return float(text.strip().rstrip("%"))
    except ValueError:
        return 0.0


def judge_gpus(tool: str, usage: Sequence[Usage], devices: Sequence[int], serving: bool = False) -> Idle:
    """Busy devices by name and figure."""
    asked = [one for one in usage if not devices or one[0] in devices]
    busy = [
        f"GPU {index}: {share:.0f}% busy, {memory:.0f}% of memory used"
        for index, share, memory in asked
        if share > BUSY_PCT or (memory > BUSY_MEMORY_PCT and not serving)
    ]
    if busy:
        return Idle(False, f"{tool}: {'; '.join(busy)}")
    return Idle(True, f"{tool}: {len(asked)} GPUs idle")
