"""What a kernel model needs to know of a GPU, and the constants learned once per GPU generation.

The datasheet part comes from the :class:`~predictor.cards.Platform`; the constants are universal within a generation
and never fitted to a shape. Their source is the measured kernel tables of ``aiconfigurator-core`` 0.12.0 on Hopper and
Blackwell (``python -m evals.kernels`` scores them) and published measurements on AMD.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from predictor.cards import Platform
from predictor.kernels.facts import KernelConstants
from predictor.kernels.facts_nvidia import GENERATION
from predictor.types import Dtype


class Generation(StrEnum):
    """GPU generations that share one set of kernel constants."""

    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    CDNA3 = "cdna3"
    CDNA4 = "cdna4"

    @property
    def is_amd(self) -> bool:
        """Whether AMD builds it."""
        return self in (Generation.CDNA3, Generation.CDNA4)


# Longest name first: "GB200" must not be read as "B200".
_GENERATION_BY_NAME = (
    ("MI355", Generation.CDNA4),
    ("MI350", Generation.CDNA4),
    ("MI325", Generation.CDNA3),
    ("MI300", Generation.CDNA3),
    ("GB300", Generation.BLACKWELL),
    ("GB200", Generation.BLACKWELL),
    ("RTX", Generation.ADA),
    ("B300", Generation.BLACKWELL),
    ("B200", Generation.BLACKWELL),
    ("H200", Generation.HOPPER),
    ("H100", Generation.HOPPER),
    ("H20", Generation.HOPPER),
    ("A100", Generation.AMPERE),
    ("L40", Generation.ADA),
    ("L4", Generation.ADA),
)

# A GPU nobody has measured takes the newest measured generation of its vendor.
_GENERATION_BY_VENDOR = {"amd": Generation.CDNA4, "nvidia": Generation.BLACKWELL}

# B300 and GB300 list an FP4 rate of three times their FP8 rate; the libraries in the tables reach the same FP4 rate as
# on B200 (an efficiency of .50 of twice FP8 on each), so no more than twice FP8 is counted.
_FP4_OVER_FP8_MAX = 2.0


CONSTANTS: dict[Generation, KernelConstants] = {
    Generation.HOPPER: GENERATION["hopper"],
    Generation.BLACKWELL: GENERATION["blackwell"],
    # A100 and L40S tables give other floors and HBM shares than the generations after them.
    Generation.AMPERE: KernelConstants(3.3, 0.70, 0.60, 0.52, 0.69, 0.69, 0.69),
    Generation.ADA: KernelConstants(1.3, 0.62, 0.53, 0.52, 0.93, 0.93, 0.93),
    # No kernel table is public. Floor: 4.98 us a kernel (paper, Table 5). HBM: MI300X measured at 81% of peak.
    # Compute: MI300X sustains about 45% of peak in bf16 and fp8 (arXiv 2510.27583); 50% assumed on CDNA4.
    Generation.CDNA3: KernelConstants(4.98, 0.45, 0.45, 0.45, 0.80, 0.80, 0.80, hbm_stream=0.81),
    Generation.CDNA4: KernelConstants(4.98, 0.50, 0.50, 0.45, 0.80, 0.80, 0.80, hbm_stream=0.81),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """Datasheet figures of one GPU and its generation's constants; hashable, so that tables are memoised by it."""

    name: str
    generation: Generation
    peak_bf16_flops: float
    peak_fp8_flops: float  # the next wider format's peak where the GPU lacks the format
    peak_fp4_flops: float
    hbm_bytes_per_s: float
    compute_units: int
    clock_hz: float
    constants: KernelConstants

    def __hash__(self) -> int:
        """By name: GPUs are keys of every memoised table, and two of one name seldom differ."""
        return hash(self.name)

    def with_constants(self, constants: KernelConstants) -> "Gpu":
        """The same GPU with other constants: for calibration."""
        return replace(self, constants=constants)

    def peak_flops(self, dtype: Dtype) -> float:
        """Dense peak of a precision."""
        peaks = {Dtype.BF16: self.peak_bf16_flops, Dtype.FP8: self.peak_fp8_flops, Dtype.FP4: self.peak_fp4_flops}
        return peaks[dtype]


def generation_of(name: str, vendor: str) -> Generation:
    """Generation of a GPU by its name.

    >>> generation_of("GB200", "nvidia"), generation_of("MI300X", "amd")
    (<Generation.BLACKWELL: 'blackwell'>, <Generation.CDNA3: 'cdna3'>)
    """
    upper = name.upper()
    for prefix, generation in _GENERATION_BY_NAME:
        if prefix in upper:
            return generation
    return _GENERATION_BY_VENDOR[vendor]


def gpu_of(platform: Platform) -> Gpu:
    """The kernel models' view of a platform."""
    generation = generation_of(platform.name, platform.vendor)
    fp8 = platform.peak_flops(Dtype.FP8)
    return Gpu(
        name=platform.name,
        generation=generation,
        peak_bf16_flops=platform.peak_flops(Dtype.BF16),
        peak_fp8_flops=fp8,
        peak_fp4_flops=min(platform.peak_flops(Dtype.FP4), _FP4_OVER_FP8_MAX * fp8),
        hbm_bytes_per_s=platform.hbm_bytes_per_s,
        compute_units=platform.compute_units,
        clock_hz=platform.clock_ghz * 1e9,
        constants=CONSTANTS[generation],
    )
