"""Named facts of the kernels an engine ships: floors, efficiencies and permutation bytes, never per shape.

The same GPU runs different attention and grouped-GEMM kernels under different engines, and their floors and
efficiencies differ more than the GPUs do: so the kernel is an input. The numbers are in
:mod:`predictor.kernels.facts_nvidia` (learned) and :mod:`predictor.kernels.facts_amd` (assumed).
"""

from dataclasses import dataclass

from predictor.types import Dtype


@dataclass(frozen=True, slots=True)
class DecodeFacts:
    """Decode attention of one kernel, generation and cache precision."""

    floor_us: float  # t_a: one call, its metadata and reduction kernels included
    hbm: float  # ea: share of HBM peak the cache is read at
    item_us: float  # c: each further round of (request, KV head) work items
    compute: float = 0.6  # share of the bf16 peak (MLA: the only one compute can bind)


@dataclass(frozen=True, slots=True)
class PrefillFacts:
    """Prefill attention of one kernel, generation and arithmetic format."""

    floor_us: float
    compute: float  # ef: share of the dense peak of the arithmetic format
    item_us: float  # start of one 128-row work item
    hbm: float  # share of HBM peak of operands and outputs


@dataclass(frozen=True, slots=True)
class MoeFacts:
    """Grouped GEMM of one kernel, generation and expert format."""

    floor_us: float  # t_m: sort, grouped GEMMs, activation, finalize
    hbm: float
    compute: float
    permute_bytes: float  # bytes moved a routed row and hidden column


@dataclass(frozen=True, slots=True)
class SparseFacts:
    """Indexer and sparse attention (DeepSeek V3.2, GLM-5) of one engine and generation."""

    index_floor_us: float  # score and top-k kernels, a layer
    engine_us: float  # what the engine launches around them in MLA layers, a layer; compressed layers fuse it
    index_compute: float  # share of the fp8 peak of the score product
    score_hbm: float  # share of HBM peak the top-k reads 4-byte scores at
    prefill_floor_us: float
    prefill_compute: float  # share of the bf16 peak of the sparse prefill kernel


@dataclass(frozen=True, slots=True)
class LinearFacts:
    """Gated delta net kernels of one engine and generation, convolution apart."""

    decode_floor_us: float
    decode_hbm: float  # share of HBM peak the state is read and written at
    prefill_floor_us: float
    prefill_compute: float  # share of the bf16 peak of the chunked scan


@dataclass(frozen=True, slots=True)
class QuantFacts:
    """One dynamic activation quantisation besides its bytes."""

    floor_us: float
    row_ns: float


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Universal constants of one generation: efficiencies are shares of the datasheet peak, floors are us."""

    launch_us: float  # minimum cost of one kernel inside a graph replay
    compute_bf16: float  # sustained share of the dense peak in a full GEMM wave
    compute_fp8: float
    compute_fp4: float
    hbm_bf16: float  # share of HBM peak a GEMM reads its weights at
    hbm_fp8: float
    hbm_fp4: float
    hbm_stream: float = 0.90  # share of HBM peak of elementwise kernels
    split_k_us: float = 2.5  # reduction of partial sums

    def compute(self, dtype: Dtype) -> float:
        """Share of the compute peak at a precision."""
        return {Dtype.BF16: self.compute_bf16, Dtype.FP8: self.compute_fp8, Dtype.FP4: self.compute_fp4}[dtype]

    def hbm(self, dtype: Dtype) -> float:
        """Share of HBM peak for weights of a precision."""
        return {Dtype.BF16: self.hbm_bf16, Dtype.FP8: self.hbm_fp8, Dtype.FP4: self.hbm_fp4}[dtype]
