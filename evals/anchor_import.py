"""Anchors from benchmark files, scored: ``python -m evals.anchor_import --json``.

Two studies. *Recovered steps*: a step model is simulated under each engine's scheduler, the run is written as every
format with 3% noise on each figure, imported again, and the solved decode steps are compared with the model's own.
*Leave one load out*: the measured H200 gpt-oss-120b ladder is imported without one load, which is then predicted.
"""

import argparse
import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from evals import benchmark_files as write
from evals.corpus import data_dir, parser, run
from predictor.anchors.import_formats.detect import read_benchmark
from predictor.anchors.import_formats.run import BenchRun, Fact, Latency
from predictor.anchors.import_solve.artefact import BenchmarkFile, import_benchmark
from predictor.anchors.import_solve.ladder import reproduce
from predictor.anchors.import_solve.served import shapes_of
from predictor.anchors.import_solve.setting import Lookups, Setting, known_version, resolve, rules_of
from predictor.anchors.schema import Anchor
from predictor.cards import ModelCard
from predictor.des.metrics import HostTimes, SimulationResult
from predictor.des.simulator import simulate
from predictor.engines import effective_settings
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.step.build import anchored_step
from predictor.step.model import DecodeLine, PrefillCurve, StepModel
from predictor.step.simulate import simulate_step_model
from predictor.types import Workload

FIND = Lookups(model_card, platform, engine_profile)
NOISE = 0.03
LOADS = (1, 2, 4, 8, 16, 32, 64)
ISL, OSL, LENGTH_RANGE = 2048, 512, 0.8
HOST_MS = 20.0
POOL_TOKENS = 2_000_000
# The kernel models' decode and prefill times are multiplied by these, so that nothing of the import can know them.
DECODE_FACTOR, PREFILL_FACTOR = 1.3, 1.6


@dataclass(frozen=True, slots=True)
class Case:
    """One deployment whose benchmark is simulated."""

    engine: str
    version: str
    gpu: str
    model: str
    tp: int
    dtype: str

    def facts(self) -> dict[str, Fact]:
        """What its owner knows."""
        known: dict[str, Fact] = {
            "engine": self.engine,
            "engine_version": self.version,
            "gpu": self.gpu,
            "tp": self.tp,
            "weight_dtype": self.dtype,
            "kv_dtype": "bf16",
            "prefix_cache": "off",
            "real_weights": True,
            "kv_pool_tokens": POOL_TOKENS,
            "spec_method": "none",
        }
        return known | ({"ep": 1, "attn_dp": 1} if self.card.moe else {})

    @property
    def card(self) -> ModelCard:
        """The model's card."""
        return model_card(self.model)


CASES = (
    Case("vLLM", "0.33.0", "H200", "Llama-3.1-70B", 4, "fp8"),
    Case("SGLang", "0.5.23", "MI355X", "Qwen3-32B", 2, "bf16"),
    Case("ATOM", "2026-08-22", "MI355X", "gpt-oss-120b", 2, "fp4"),
    Case("TensorRT-LLM", "main-002f3cc3", "B200", "Llama-3.1-70B", 2, "fp8"),
)


@dataclass(frozen=True, slots=True)
class Truth:
    """The step model behind a simulated benchmark."""

    setting: Setting
    model: StepModel

    def step_ms(self, batch: int, context_tokens: float) -> float:
        """Decode step at a batch and the context of one sequence."""
        context = batch * context_tokens
        return self.model.decode_line(batch, context).at(context)


@dataclass(frozen=True, slots=True)
class Stretched:
    """A step model times a factor for decode and one for prefill."""

    base: StepModel

    @property
    def prefill(self) -> PrefillCurve:
        """Prefill of the truth."""
        curve = self.base.prefill
        return replace(
            curve,
            fixed_ms=curve.fixed_ms * PREFILL_FACTOR,
            per_token_ms=curve.per_token_ms * PREFILL_FACTOR,
            per_token2_ms=curve.per_token2_ms * PREFILL_FACTOR,
            mixed_fixed_ms=curve.mixed_fixed_ms * PREFILL_FACTOR,
        )

    @property
    def tokens_per_step(self) -> float:
        """No speculation."""
        return self.base.tokens_per_step

    def decode_line(self, batch: int, context_tokens: float = 0.0) -> DecodeLine:
        """Decode of the truth."""
        line = self.base.decode_line(batch, context_tokens)
        return replace(
            line,
            intercept_ms=line.intercept_ms * DECODE_FACTOR,
            slope_ms_per_token=line.slope_ms_per_token * DECODE_FACTOR,
        )


def truth_of(case: Case) -> Truth:
    """The case's deployment with kernel-model steps, stretched."""
    facts = case.facts() | {"model": case.model}
    setting = resolve([_blank()], facts, FIND)
    settings = effective_settings(
        setting.profile, known_version(setting), setting.platform, setting.card, setting.deployment
    )
    return Truth(setting, Stretched(simulate_step_model(setting.card, setting.platform, setting.deployment, settings)))


def _blank() -> BenchRun:
    """A run that records nothing, so that every fact is the case's own."""
    return BenchRun("case", "none", 1, 1, Latency(), Latency())


def benchmark(truth: Truth, clients: int) -> SimulationResult:
    """One simulated benchmark run; its lengths are other draws than the importer's."""
    workload = Workload(ISL, OSL, clients, length_range_frac=LENGTH_RANGE, requests_per_client=10, seed=1234)
    rules = rules_of(truth.setting)
    blocks = POOL_TOKENS // rules.block_tokens
    return simulate(truth.model, workload, rules, kv_blocks=blocks, host=HostTimes(ms_per_request=HOST_MS))


Runs = Sequence[tuple[write.Load, SimulationResult]]


def formats(case: Case, truth: Truth, runs: Runs, seed: int) -> dict[str, list[BenchmarkFile]]:
    """The runs as every format writes them."""

    def noise(number: int) -> write.Noise:
        return write.Noise(NOISE, (seed * 100 + CASES.index(case)) * 100 + number)

    def each(number: int, text: Callable[[write.Figures, write.Load, SimulationResult], str]) -> list[BenchmarkFile]:
        one = noise(number)
        return [
            BenchmarkFile(f"c{load.clients}.json", text(write.figures(result, one), load, result))
            for load, result in runs
        ]

    def together(number: int) -> list[tuple[write.Figures, write.Load]]:
        one = noise(number)
        return [(write.figures(result, one), load) for load, result in runs]

    def lines(files: list[BenchmarkFile]) -> list[BenchmarkFile]:
        return [BenchmarkFile("runs.jsonl", "\n".join(file.text for file in files) + "\n")]

    records = noise(6)
    configuration = {
        "hw": case.gpu.lower(),
        "framework": {"TensorRT-LLM": "trt"}.get(case.engine, case.engine.lower()),
        "precision": case.dtype,
        "spec_decoding": "none",
        "disagg": False,
        "is_multinode": False,
        "tp": case.tp,
        "pp": 1,
        "ep": 1,
        "dp_attention": "false",
        "image": f"registry/engine:{case.version}",
    }
    return {
        "vllm_bench": each(1, lambda run, load, _: write.vllm(run, load)),
        "vllm_bench_detailed": each(2, write.vllm),
        "atom": each(3, lambda run, load, _: write.atom(run, load)),
        "sglang": lines(each(4, lambda run, load, _: write.sglang(run, load, None))),
        "aiperf": each(5, lambda run, load, _: write.aiperf_summary(run, load)),
        "aiperf_requests": [
            BenchmarkFile(f"c{load.clients}.jsonl", write.aiperf_records(load, result, records, HOST_MS))
            for load, result in runs
        ],
        "inferencex": each(7, lambda run, load, _: write.inferencex(run, load, configuration)),
        "guidellm": [BenchmarkFile("benchmarks.json", write.guidellm(together(8)))],
        "csv": [BenchmarkFile("runs.csv", write.plain_csv(together(9)))],
        "bench_one_batch": [BenchmarkFile("one_batch.jsonl", write.one_batch(_steps(truth), noise(10)))],
    }


def _steps(truth: Truth) -> list[tuple[int, int, int, float, float]]:
    """Steps without server: batches at one prompt, prompts at batch 1."""
    context = ISL + OSL / 2.0
    rows = [(b, ISL, OSL, truth.model.prefill.prompt_ms(ISL) * b, truth.step_ms(b, context)) for b in LOADS]
    return rows + [(1, n, OSL, truth.model.prefill.prompt_ms(n), truth.step_ms(1, n + OSL / 2.0)) for n in (512, 4096)]


# What each format leaves to its owner, beside the deployment.
EXTRA_FACTS: Mapping[str, Mapping[str, Fact]] = {
    "vllm_bench": {"length_range": LENGTH_RANGE},
    "atom": {"length_range": LENGTH_RANGE},
}


# Formats that do not say what the model is; SGLang's client does where the server is SGLang's own.
UNNAMED = ("csv", "bench_one_batch", "aiperf_requests", "sglang")


def recovered_rows(seed: int = 1) -> list[dict[str, Any]]:
    """Every step of every case and format: known and recovered."""
    rows = []
    for case in CASES:
        truth = truth_of(case)
        name = case.card.hf_ids[0]
        runs = [(write.Load(c, ISL, OSL, LENGTH_RANGE, name), benchmark(truth, c)) for c in LOADS]
        for label, files in formats(case, truth, runs, seed).items():
            stated = case.facts() | dict(EXTRA_FACTS.get(label, {}))
            if label in UNNAMED:
                stated["model"] = case.model
            anchor = import_benchmark(files, stated, FIND).anchor
            rows += _compare(case, label, truth, anchor)
    return rows


def _compare(case: Case, label: str, truth: Truth, anchor: Anchor) -> list[dict[str, Any]]:
    sweep = max(anchor.decode, key=lambda one: len(one.points))
    rows = []
    for point in sweep.points:
        known = truth.step_ms(point.batch, sweep.context_tokens)
        rows.append(
            {
                "study": "recovered_step",
                "engine": case.engine,
                "format": label,
                "batch": point.batch,
                "known_ms": known,
                "recovered_ms": point.step_ms,
                "error_pct": (point.step_ms / known - 1.0) * 100.0,
                "stated_error_pct": point.error_pct,
            }
        )
    return rows


# Leave one load out


def measured_runs(folder: Path) -> dict[int, BenchmarkFile]:
    """The plain H200 gpt-oss-120b sweep, one ``vllm bench serve`` result a load."""
    with (folder / "measured" / "h200_gptoss120b_vllm_runs.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["spec"] == "none" and "sweep" in row["run"]]
    return {int(row["conc"]): BenchmarkFile(row["run"], _as_vllm(row)) for row in rows}


def _as_vllm(row: Mapping[str, str]) -> str:
    result: dict[str, Any] = {
        "backend": "vllm",
        "model_id": row["model"],
        "num_prompts": int(row["num_prompts"]),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": int(row["conc"]),
        "duration": float(row["duration_s"]),
        "completed": int(row["completed"]),
        "total_input_tokens": int(row["total_input_tokens"]),
        "total_output_tokens": int(row["total_output_tokens"]),
        "request_throughput": float(row["req_per_s"]),
        "output_throughput": float(row["output_tok_s"]),
        "total_token_throughput": float(row["total_tok_s"]),
    }
    for metric in ("ttft", "tpot", "itl", "e2el"):
        result |= {f"{s}_{metric}_ms": float(row[f"{s}_{metric}_ms"]) for s in ("mean", "median", "p90", "p99")}
    return json.dumps(result)


# vLLM 0.22.0 on one H200; widths, formats and limits as its provenance states them. The pool is what the engine ran out
# of at 256 clients (225 requests at once in its own metrics).
MEASURED_FACTS: Mapping[str, Fact] = {
    "gpu": "H200",
    "engine": "vLLM",
    "engine_version": "0.22.0",
    "tp": 1,
    "ep": 1,
    "attn_dp": 1,
    "weight_dtype": "fp4",
    "linear_dtype": "bf16",
    "kv_dtype": "bf16",
    "prefix_cache": "cold",
    "real_weights": True,
    "length_range": 0.8,
    "max_running": 1024,
    "token_budget": 8192,
    "kv_pool_tokens": 225 * 8110,
}


def left_out_rows(folder: Path) -> list[dict[str, Any]]:
    """Each load predicted from an anchor that was imported without it."""
    files = measured_runs(folder)
    rows = []
    for clients, file in sorted(files.items()):
        others = [other for load, other in sorted(files.items()) if load != clients]
        anchor = import_benchmark(others, MEASURED_FACTS, FIND).anchor
        predicted = predicted_run(anchor, file)
        recorded = json.loads(file.text)
        rows.append(
            {
                "study": "left_out_load",
                "clients": clients,
                "tpot_ms": recorded["mean_tpot_ms"],
                "tpot_error_pct": (predicted.tpot_ms.mean / recorded["mean_tpot_ms"] - 1.0) * 100.0,
                "ttft_ms": recorded["mean_ttft_ms"],
                "ttft_error_pct": (predicted.ttft_ms.mean / recorded["mean_ttft_ms"] - 1.0) * 100.0,
            }
        )
    return rows


def predicted_run(anchor: Anchor, file: BenchmarkFile) -> SimulationResult:
    """The left-out run under the imported anchor, through the same step model a prediction uses."""
    runs = read_benchmark(file.text, file.name).runs
    setting = resolve(runs, MEASURED_FACTS, FIND)
    shape = shapes_of(runs, setting, MEASURED_FACTS)[0][0]
    run = shape.runs[0]
    settings = effective_settings(
        setting.profile, known_version(setting), setting.platform, setting.card, setting.deployment
    )
    step = anchored_step(
        anchor, setting.deployment, run.workload, setting.card, setting.platform, setting.profile, settings
    )
    return reproduce(run, step.model, step.host_ms)


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Both studies."""
    left_out = left_out_rows(data_dir(args.corpus))
    recovered = recovered_rows(args.seed)
    errors = [abs(row["error_pct"]) for row in recovered]

    def by(key: str) -> dict[str, float]:
        values = {row[key] for row in recovered}
        return {str(v): median(abs(r["error_pct"]) for r in recovered if r[key] == v) for v in sorted(values)}

    return {
        "n": len(recovered),
        "step_median_ape_pct": median(errors),
        "step_within_10_pct": 100.0 * sum(error <= 10.0 for error in errors) / len(errors),
        "by_engine": by("engine"),
        "by_format": by("format"),
        "by_batch": by("batch"),
        "left_out": {
            "n": len(left_out),
            "tpot_median_ape_pct": median(abs(row["tpot_error_pct"]) for row in left_out),
            "ttft_median_ape_pct": median(abs(row["ttft_error_pct"]) for row in left_out),
        },
        "noise_pct": NOISE * 100.0,
        "rows": [*left_out, *recovered],
    }


def arguments() -> argparse.ArgumentParser:
    """Arguments of the command."""
    result = parser(__doc__ or "")
    result.add_argument("--seed", type=int, default=1, help="of the noise")
    return result


if __name__ == "__main__":
    raise SystemExit(run(evaluate, arguments()))
