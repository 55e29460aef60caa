"""Learn the kernel constants again: ``python -m evals.kernel_learn`` prints ``predictor/kernels/facts_nvidia.py``.

Learned on one GPU a generation (H100, B200) and on a few percent of its rows, drawn with a fixed seed; nothing is
learned on H200, B300, GB200 and GB300. Each set minimises the mean absolute log error of its kernel's sampled rows.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from scipy.optimize import minimize

from evals.corpus import EXIT_NO_DATA, CorpusAbsent
from evals.kernel_learn_layers import learn_linear, learn_sparse
from evals.kernel_rows import (
    Batch,
    FloatArray,
    decode_batches,
    gemm_batches,
    mla_decode_batches,
    mla_prefill_batches,
    moe_batches,
    predict_decode,
    predict_gemm,
    predict_mla_decode,
    predict_moe,
    predict_prefill,
    prefill_batches,
)
from evals.kernel_tables import Tables, find_tables
from predictor.kernels.facts import DecodeFacts, KernelConstants, MoeFacts, PrefillFacts, QuantFacts

LEARNED_ON = ("H100", "B200")
SEED = 0
SAMPLE_FRAC, SAMPLE_MIN, SAMPLE_MAX = 0.04, 300, 1500

Key = tuple[str, ...]


def sampled(batch: Batch, rng: np.random.Generator) -> Batch:
    """The rows to learn from."""
    count = min(len(batch.us), SAMPLE_MAX, max(SAMPLE_MIN, int(SAMPLE_FRAC * len(batch.us))))
    return batch.take(np.sort(rng.choice(len(batch.us), count, replace=False)))


def learn(loss: Callable[[FloatArray], float], start: Iterable[float]) -> FloatArray:
    """Positive parameters that minimise a loss, from two starting points."""
    first = np.log(np.asarray(list(start)))
    best = None
    for shift in (0.0, -0.4):
        found = minimize(
            lambda logs: loss(np.exp(logs)), first + shift, method="Nelder-Mead",
            options={"maxfev": 250 * len(first), "xatol": 1e-3, "fatol": 1e-5, "adaptive": True},
        )  # fmt: skip
        if best is None or found.fun < best.fun:
            best = found
    assert best is not None
    result: FloatArray = np.exp(best.x)
    return result


def log_error(times: FloatArray, measured: FloatArray) -> float:
    """Mean absolute log error."""
    return float(np.mean(np.abs(np.log(times / measured))))


def learn_gemm(batches: list[Batch]) -> tuple[KernelConstants, dict[Key, QuantFacts]]:
    """Constants of a generation: bf16 from all engines, then each low precision with its engines' quantisation."""
    wide = [batch for batch in batches if batch.key[1] == "bfloat16"]

    def bf16_loss(p: FloatArray) -> float:
        constants = KernelConstants(p[0], min(1.0, p[1]), 0.6, 0.5, min(1.0, p[2]), 0.8, 0.8)
        return float(np.mean([log_error(predict_gemm(batch, constants, None), batch.us) for batch in wide]))

    launch, compute, hbm = learn(bf16_loss, (2.3, 0.8, 0.8))
    constants = KernelConstants(launch, compute, 0.6, 0.5, hbm, 0.8, 0.8)
    quants: dict[Key, QuantFacts] = {}
    for names, field in ((("fp8", "fp8_block"), "fp8"), (("nvfp4",), "fp4")):
        narrow = [batch for batch in batches if batch.key[1] in names]
        if not narrow:
            continue

        def loss(
            p: FloatArray, narrow: list[Batch] = narrow, field: str = field, base: KernelConstants = constants
        ) -> float:
            trial = _with(base, field, p)
            errors = [
                log_error(predict_gemm(batch, trial, QuantFacts(p[2 + 2 * i], p[3 + 2 * i])), batch.us)
                for i, batch in enumerate(narrow)
            ]
            return float(np.mean(errors))

        found = learn(loss, (0.6, 0.75, *(value for _ in narrow for value in (3.0, 1.0))))
        constants = _with(constants, field, found)
        for i, batch in enumerate(narrow):
            quants[batch.key] = QuantFacts(found[2 + 2 * i], found[3 + 2 * i])
    return constants, quants


def _with(c: KernelConstants, field: str, p: FloatArray) -> KernelConstants:
    compute, hbm = min(1.0, p[0]), min(1.0, p[1])
    if field == "fp8":
        return KernelConstants(c.launch_us, c.compute_bf16, compute, c.compute_fp4, c.hbm_bf16, hbm, c.hbm_fp4)
    return KernelConstants(c.launch_us, c.compute_bf16, c.compute_fp8, compute, c.hbm_bf16, c.hbm_fp8, hbm)


FLOOR_MIN_US = 2.0  # no call is cheaper than one launch


def decode_facts(p: FloatArray) -> DecodeFacts:
    """Floor, HBM share, item cost; MLA also the compute share."""
    compute = p[3] if len(p) > 3 else 0.6
    return DecodeFacts(max(FLOOR_MIN_US, p[0]), min(1.0, p[1]), p[2], compute)


def prefill_facts(p: FloatArray) -> PrefillFacts:
    """Floor, compute share, item start, HBM share of operands."""
    return PrefillFacts(max(FLOOR_MIN_US, p[0]), p[1], p[2], min(1.0, p[3]))


def moe_facts(p: FloatArray) -> MoeFacts:
    """Floor, HBM share, compute share, permutation bytes."""
    return MoeFacts(max(FLOOR_MIN_US, p[0]), min(1.0, p[1]), min(1.0, p[2]), p[3])


def learn_decode(batch: Batch) -> DecodeFacts:
    """Facts of one decode kernel."""
    return decode_facts(learn(lambda p: log_error(predict_decode(batch, decode_facts(p)), batch.us), (11.0, 0.8, 2.0)))


def learn_mla_decode(batch: Batch) -> DecodeFacts:
    """Facts of one MLA decode kernel."""
    start = (12.0, 0.8, 2.0, 0.5)
    return decode_facts(learn(lambda p: log_error(predict_mla_decode(batch, decode_facts(p)), batch.us), start))


def learn_prefill(batch: Batch) -> PrefillFacts:
    """Facts of one prefill kernel."""
    start = (10.0, 0.6, 1.0, 0.5)
    return prefill_facts(learn(lambda p: log_error(predict_prefill(batch, prefill_facts(p)), batch.us), start))


def learn_moe(batch: Batch) -> MoeFacts:
    """Facts of one grouped-GEMM kernel."""
    start = (22.0, 0.8, 0.4, 8.0)
    return moe_facts(learn(lambda p: log_error(predict_moe(batch, moe_facts(p)), batch.us), start))


HEADER = '''"""Kernel facts of NVIDIA GPUs, learned: write this file with ``python -m evals.kernel_learn``.

Source of every number: the measured tables of ``aiconfigurator-core`` 0.12.0, a few percent of the rows of H100 and
B200 alone. Keys are (generation, engine, kernel family, format); floors are us, the rest shares and bytes.
SPARSE and LINEAR are keyed by engine; an engine's indexer floor comes from whole blocks, the rest from kernels.
"""

from predictor.kernels.facts import (
    DecodeFacts,
    KernelConstants,
    LinearFacts,
    MoeFacts,
    PrefillFacts,
    QuantFacts,
    SparseFacts,
)
'''

SETS: tuple[tuple[str, str, Callable[[Tables], Iterator[Batch]], Callable[[Batch], object]], ...] = (
    ("DECODE", "DecodeFacts", decode_batches, learn_decode),
    ("MLA_DECODE", "DecodeFacts", mla_decode_batches, learn_mla_decode),
    ("PREFILL", "PrefillFacts", prefill_batches, learn_prefill),
    ("MLA_PREFILL", "PrefillFacts", mla_prefill_batches, learn_prefill),
    ("MOE", "MoeFacts", moe_batches, learn_moe),
)


def learn_all(tables: Tables) -> str:
    """The source of the facts module."""
    rng = np.random.default_rng(SEED)
    gemm = _chosen(gemm_batches(tables), rng)
    generations: dict[str, object] = {}
    quants: dict[Key, object] = {}
    for gpu_name in LEARNED_ON:
        batches = [batch for batch in gemm if batch.gpu.name == gpu_name]
        generation = batches[0].gpu.generation.value
        generations[generation], found = learn_gemm(batches)
        quants |= {(generation, *key): facts for key, facts in found.items()}
        print(generation, generations[generation], file=sys.stderr)
    parts = [
        HEADER,
        f"GENERATION: dict[str, KernelConstants] = {_literal(generations)}\n",
        f"QUANT: dict[tuple[str, str, str], QuantFacts] = {_literal(quants)}\n",
    ]
    for name, record, read, fit in SETS:
        facts = {(batch.gpu.generation.value, *batch.key): fit(batch) for batch in _chosen(read(tables), rng)}
        print(name, len(facts), file=sys.stderr)
        parts.append(f"{name}: dict[tuple[str, str, str, str], {record}] = {_literal(facts)}\n")
    sparse: dict[tuple[str, str], object] = {}
    linear: dict[tuple[str, str], object] = {}
    for gpu_name in LEARNED_ON:
        sparse |= learn_sparse(tables, gpu_name)
        linear |= learn_linear(tables, gpu_name)
    parts.append(f"SPARSE: dict[tuple[str, str], SparseFacts] = {_literal(sparse)}\n")
    parts.append(f"LINEAR: dict[tuple[str, str], LinearFacts] = {_literal(linear)}\n")
    return "\n".join(parts)


def _chosen(batches: Iterator[Batch], rng: np.random.Generator) -> list[Batch]:
    """The sampled rows of the GPUs learned on."""
    return [sampled(batch, rng) for batch in batches if batch.gpu.name in LEARNED_ON]


def _literal(facts: Mapping[Any, object]) -> str:
    """A dictionary literal, one entry a line, numbers to three digits."""
    lines = [f"    {_key(key)}: {type(record).__name__}({_numbers(record)})," for key, record in facts.items()]
    return "{\n" + "\n".join(lines) + "\n}"


def _key(key: object) -> str:
    return repr(key).replace("'", '"')


def _numbers(record: Any) -> str:
    return ", ".join(f"{float(getattr(record, field.name)):.3g}" for field in fields(record))


def main() -> int:
    """Print the learned tables."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tables", metavar="DIR", help="folder systems/data of aiconfigurator-core")
    try:
        tables = find_tables(arguments.parse_args().tables)
    except CorpusAbsent as absent:
        print(absent, file=sys.stderr)
        return EXIT_NO_DATA
    print(learn_all(tables), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
