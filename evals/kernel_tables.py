"""The measured kernel tables of the package ``aiconfigurator-core``, read with named rules for their known traps.

Every rule that drops or reinterprets rows has a name, a reason and a count, so that a figure can be read with them.
Times become us. Of each engine's table the fullest version is read (newest ones may hold a few kernels only).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow.parquet import ParquetFile

from evals.corpus import CorpusAbsent
from predictor.kernels.gpu import CONSTANTS, Generation, Gpu, gpu_of
from predictor.profiles.loader import platform

PACKAGE = "aiconfigurator-core==0.12.0"
ENGINES = ("vllm", "sglang", "trtllm")
SYSTEMS = {
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
}
# Older generations, which no platform profile covers: GEMM only, reported apart. Datasheet figures of the package's
# systems/*.yaml; compute units and clocks of NVIDIA's data sheets.
OTHER_SYSTEMS = {"a100_sxm": "A100", "l40s": "L40S"}
_OTHER_GPUS = {
    "A100": Gpu("A100", Generation.AMPERE, 312e12, 312e12, 312e12, 2.039e12, 108, 1.41e9, CONSTANTS[Generation.AMPERE]),
    "L40S": Gpu("L40S", Generation.ADA, 362e12, 733e12, 733e12, 0.864e12, 142, 2.52e9, CONSTANTS[Generation.ADA]),
}

RULES = {
    "host_bound_fp8_block": "vLLM fp8_block GEMM rows time the host (55-170 us at any small size); SGLang's are used",
    "one_token_prompt": "a prompt of one token is a decode step and runs the decode kernel",
    "unserved_head_group": "48 or more query heads a KV head on one GPU: no served layout has them",
    "unserved_head_dim": "head_dim 512 on Hopper runs a fallback kernel; no model served there has it",
    "unphysical_bandwidth": "rows that would read HBM faster than its peak: operands stayed in cache",
    "light_busiest_rank": "power-law MoE rows with EP are lighter than balanced ones: not the busiest rank",
    "unknown_distribution": "power-law MoE rows: the experts they touch are not recorded; balanced rows are scored",
    "weight_only_int": "int8 and int4 weight-only rows: no precision of the product runs these kernels",
    "host_bound_block": "prefill blocks within 1.5 times the table's fastest row: the host issues them one by one",
    "kernel_without_facts": "a kernel no engine picks by default, without learned constants",
}


@dataclass(slots=True)
class Tables:
    """Where the tables lie, and what each rule has dropped so far."""

    folder: Path
    dropped: dict[str, int] = field(default_factory=dict)

    def files(self, operation: str, name: str, older: bool = False) -> Iterator[tuple[str, str, Path]]:
        """(GPU, engine, file) of the fullest version of each engine's table of one operation."""
        systems = SYSTEMS | OTHER_SYSTEMS if older else SYSTEMS
        for system, gpu_name in systems.items():
            for engine in ENGINES:
                found = sorted(self.folder.glob(f"{system}/{operation}/{engine}/*/{name}.parquet"))
                if found:
                    yield gpu_name, engine, max(found, key=_row_count)

    def read(self, file: Path) -> Any:
        """One table as a frame, latency in us."""
        frame = pd.read_parquet(file)
        frame["us"] = frame["latency"] * 1000.0
        return frame[frame["us"] > 0.0]

    def keep(self, rule: str, frame: Any, mask: Any) -> Any:
        """Rows of ``mask``; the rest are counted under the rule."""
        lost = int((~mask).sum())
        if lost:
            self.dropped[rule] = self.dropped.get(rule, 0) + lost
        return frame[mask]


def _row_count(file: Path) -> int:
    return int(ParquetFile(file).metadata.num_rows)


def find_tables(option: str | None) -> Tables:
    """The data folder of the installed package, or of ``--tables DIR``."""
    if option:
        folder = Path(option)
    else:
        spec = find_spec("aiconfigurator_core")
        locations = list(spec.submodule_search_locations or ()) if spec else []
        folder = Path(locations[0]) / "systems" / "data" if locations else Path("systems/data")
    if not folder.is_dir():
        raise CorpusAbsent(
            f"measured kernel tables not found at {folder}: install them with `pip install --no-deps {PACKAGE}`, "
            "or pass --tables DIR naming the folder systems/data of that package"
        )
    return Tables(folder)


def gpu(name: str) -> Gpu:
    """The kernel models' view of a platform."""
    return _OTHER_GPUS.get(name) or gpu_of(platform(name))
