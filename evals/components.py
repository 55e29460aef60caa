"""Component models against the figures of the paper (Tables 6, 18–20, App. B), each with its bound.

``kind`` says how a row is judged: ``value``, within the bound either way; ``at_most``, an error or a limit that ours
may not exceed by more than the bound; ``at_least``, an upper bound that must hold. ``paper`` is the published or
measured figure. Source: arXiv 2611.04032v1; acceptance lengths from InferenceX (see
``predictor/profiles/acceptance.toml``).
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evals.corpus import data_dir, parser, run
from predictor.comm import collective_ms, traffic, wire_gb_s
from predictor.disagg import split_host_time
from predictor.expert_load import Phase, distinct_experts, imbalance, router_family, with_replicas
from predictor.expert_replay import recorded
from predictor.pipeline import (
    hop_transfer_ms,
    mean_transfer_ms,
    microbatch,
    pipeline_costs,
    pipeline_step_ms,
)
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.speculation import given_acceptance, published_curves
from predictor.step.curve import DecodeCurve
from predictor.transfer.width import equation_1, measured_shrink
from predictor.types import Layout

Kind = Literal["value", "at_most", "at_least"]
Row = dict[str, Any]
_CARDS = {"Llama-3.1-8B": "Llama-3.1-8B", "Qwen3-14B-FP8": "Qwen3-14B", "Qwen3.6-35B-A3B": "Qwen3.6-35B-A3B"}
_FITTED_DEPTHS = 4


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Every component check; ``failed`` counts the rows outside their bound."""
    rows = [*published_rows(), *ladder_rows(data_dir(args.corpus) / "paper" / "table20_pipeline.csv")]
    return {"checked": len(rows), "failed": sum(not row["ok"] for row in rows), "rows": rows}


def published_rows() -> Iterator[Row]:
    """Checks that need no measured file."""
    yield from width_rows()
    yield from expert_rows()
    yield from communication_rows()
    yield from host_rows()
    yield from acceptance_rows()


def row(what: str, paper: float, ours: float, bound_pct: float, kind: Kind = "value") -> Row:
    """One check."""
    diff = 100.0 * (ours / paper - 1.0)
    passed = {"value": abs(diff) <= bound_pct, "at_most": diff <= bound_pct, "at_least": diff >= -bound_pct}
    return {
        "what": what,
        "paper": paper,
        "ours": round(ours, 4),
        "diff_pct": round(diff, 2),
        "bound_pct": bound_pct,
        "kind": kind,
        "ok": passed[kind],
    }


# ---- width ---------------------------------------------------------------------------------------------------------


def width_rows() -> Iterator[Row]:
    """Eq. 1 on exact decompositions: a fixed part, and a rest that shrinks by ρ a doubling (§3.1.2, B.1)."""
    fixed_ms, rest_ms = 9.7, {1: 0.0, 2: 2.6, 8: 5.1, 32: 11.3, 64: 17.9}

    def sweep(doublings: int, rho: float) -> DecodeCurve:
        return DecodeCurve(tuple(rest_ms), tuple(fixed_ms + rest * rho**doublings for rest in rest_ms.values()), 1024.0)

    def worst(ours: DecodeCurve, exact: DecodeCurve) -> tuple[float, float]:
        return max(zip(exact.step_ms, ours.step_ms, strict=True), key=lambda pair: abs(pair[1] - pair[0]))

    exact, ours = worst(equation_1(sweep(0, 0.5), 4, 8), sweep(1, 0.5))
    yield row("Eq. 1, TP4 to TP8, ideal halving, batch of the largest miss (ms)", exact, ours, 1e-9)
    exact, ours = worst(equation_1(sweep(1, 0.7), 4, 16, measured_shrink(sweep(1, 0.7), sweep(0, 0.7))), sweep(3, 0.7))
    yield row("Eq. 1, TP4 to TP16, ρ of 0.7 measured against TP2, same (ms)", exact, ours, 1e-9)


# ---- experts -------------------------------------------------------------------------------------------------------


def expert_rows() -> Iterator[Row]:
    """Uniform router, recorded router, replicas, coverage (App. B.3, Table 6)."""
    steps: tuple[tuple[int, Phase, float], ...] = ((4, "decode", 1.89), (64, "decode", 1.20), (8192, "prefill", 1.02))
    for tokens, phase, paper in steps:
        ours = imbalance(384, 6, 8, tokens, phase).i_n
        yield row(f"I_n, uniform router, 384 experts top-6 EP8, {tokens} {phase} tokens", paper, ours, 2.0)
    for tokens, paper in ((4, 1.75), (16, 1.31), (64, 1.09)):
        ours = imbalance(256, 8, 8, tokens, "decode").i_d
        yield row(f"I_d, uniform router, 256 experts top-8 EP8, {tokens} decode tokens", paper, ours, 2.0)
    yield row(
        "I_n, uniform router, 256 experts top-8 EP8, from 512 tokens",
        1.08,
        imbalance(256, 8, 8, 512, "decode").i_n,
        0.0,
        "at_most",
    )
    chance = imbalance(384, 6, 8, 4, "decode").i_n
    for prompts in ("random", "sonnet", "code"):
        at_4, at_64, with_48 = (
            imbalance(384, 6, 8, tokens, "decode", extra, recorded("DeepSeek-V4-Pro", prompts)).i_n
            for tokens, extra in ((4, 0), (64, 0), (64, 48))
        )
        yield row(f"I_n at 4 tokens is chance: recorded ({prompts}) against uniform", round(at_4, 4), chance, 10.0)
        eq3 = with_replicas(at_64, 384, 48)
        yield row(f"Eq. 3 bounds the replay of 48 replicas ({prompts})", round(with_48, 4), eq3, 0.0, "at_least")
    for model, experts, topk, paper in (("DeepSeek-V3", 256, 8, 0.89), ("gpt-oss-120b", 128, 4, 0.78)):
        family = router_family(model)
        ours = min(
            distinct_experts(experts, topk, t, family) / distinct_experts(experts, topk, t) for t in range(1, 1025)
        )
        yield row(f"lowest coverage of distinct experts, {model}", paper, ours, 1.0)


# ---- communication, host -------------------------------------------------------------------------------------------


def communication_rows() -> Iterator[Row]:
    """Mesh law, kernel switch, datasheet NIC, pipeline hop (Tables 5, 19, App. C.2)."""
    mi355x = platform("MI355X")
    for gpus, paper, bound in ((8, 408.8, 2.0), (4, 205.5, 2.0), (2, 113.3, 10.0)):
        ours = wire_gb_s(mi355x, gpus) / traffic("all_to_all", gpus)
        yield row(f"mesh law against measured all-to-all B, {gpus} GPUs (GB/s)", paper, ours, bound)
    custom, library = (collective_ms(mi355x, "all_reduce", 2**23 + extra, 8, in_step=False) for extra in (0, 1))
    yield row("RCCL mesh law meets custom all-reduce at 8 MiB, 8 GPUs (ms)", round(custom, 4), library, 5.0)
    nic = mi355x.nic_bytes_per_s * mi355x.nic_efficiency / 1e9
    yield row("datasheet NIC against measured send/recv B (GB/s)", 45.1, nic, 13.0)
    llama = model_card("Llama-3.1-8B")
    node_ms, network_ms = (hop_transfer_ms(llama, mi355x, 1, network=crosses) for crosses in (False, True))
    yield row("two network hops over two node hops (us a token)", 10.0, 2e3 * (network_ms - node_ms), 0.0, "at_most")
    hop_us = pipeline_costs(engine_profile("SGLang")).hop_us + node_ms * 1e3
    yield row("added TPOT a stage at one client, 920 to 1130 us", 1025.0, hop_us, 100.0 * 105 / 1025)


def host_rows() -> Iterator[Row]:
    """Host time that PP exposes, and host time of a split (Table 18, App. D.4)."""
    costs = pipeline_costs(engine_profile("SGLang"))
    yield row("host time H at small batch, 0.31 to 0.39 ms", 0.35, costs.host_ms(1), 100.0 * 0.04 / 0.35)
    yield row("host time H at 64 requests, 0.69 to 0.78 ms", 0.735, costs.host_ms(64), 100.0 * 0.045 / 0.735)
    split = split_host_time(80.0)
    yield row("host time of a split, ATOM at 8k (ms)", 158.0, split.serial_ms + split.latency_ms, 2.0)


# ---- speculation ---------------------------------------------------------------------------------------------------


def acceptance_rows() -> Iterator[Row]:
    """Depths 5 to 8 from a chain fitted to depths 1 to 4, over the published curves."""
    errors, still = [], []
    for depth in range(_FITTED_DEPTHS + 1, 9):
        measured, ours = [], []
        for curve in published_curves():
            kept = given_acceptance(curve.lengths[:_FITTED_DEPTHS], "held out")
            measured.append(curve.lengths[depth - 1])
            ours.append(kept.length(depth))
            errors.append(abs(ours[-1] / measured[-1] - 1.0))
            still.append(abs(kept.length(_FITTED_DEPTHS) / measured[-1] - 1.0))
        mean = sum(measured) / len(measured)
        yield row(f"L({depth}), mean of 14 curves, from depths 1 to 4", round(mean, 4), sum(ours) / len(ours), 5.0)
    yield row(
        "mean error of held-out depths (%), against no extrapolation",
        round(100.0 * sum(still) / len(still), 2),
        100.0 * sum(errors) / len(errors),
        -50.0,
        "at_most",
    )


# ---- pipelines -----------------------------------------------------------------------------------------------------


def ladder_rows(path: Path) -> Iterator[Row]:
    """Eq. 4 on Table 20: hops at one client, and whole ladders from the measured PP1 rows (Table 7's errors)."""
    with path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    single: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for entry in table:
        if entry["pp"] == "1":
            key = entry["model"], entry["isl"], entry["tp"]
            single[key][int(entry["concurrency"])] = float(entry["measured_tpot_ms"])
    errors: dict[str, list[float]] = defaultdict(list)
    for entry in table:
        ladder = single.get((entry["model"], entry["isl"], entry["tp"]))
        if entry["pp"] == "1" or ladder is None:
            continue
        measured, ours = float(entry["measured_tpot_ms"]), pipeline_tpot_ms(entry, ladder)
        errors[entry["model"]].append(abs(ours / measured - 1.0))
        if (entry["isl"], entry["concurrency"]) == ("1024", "1"):
            added = [1e3 * (tpot - ladder[1]) / int(entry["pp"]) for tpot in (measured, ours)]
            what = f"added TPOT a stage at one client, {entry['model']} PP{entry['pp']} (us)"
            yield row(what, round(added[0], 1), added[1], 15.0)
    for model, paper in (("Llama-3.1-8B", 7.2), ("Qwen3-14B-FP8", 2.3), ("Qwen3.6-35B-A3B", 9.2)):
        ours = 100.0 * float(np.median(errors[model]))
        yield row(f"PP ladder from measured PP1 rows, median TPOT error (%), {model}", paper, ours, 0.0, "at_most")


def pipeline_tpot_ms(entry: dict[str, str], ladder: dict[int, float]) -> float:
    """Eq. 4 with s(C/p) read from the PP1 ladder, linear in log batch."""
    pp, tp, clients = int(entry["pp"]), int(entry["tp"]), int(entry["concurrency"])
    batch, in_flight = microbatch(clients, pp)
    loads = sorted(ladder)
    step_ms = float(np.interp(log(batch), [log(load) for load in loads], [ladder[load] for load in loads]))
    costs = pipeline_costs(engine_profile("SGLang"))
    card = model_card(_CARDS[entry["model"]])
    p2p_ms = mean_transfer_ms(card, platform("MI355X"), Layout(tp=tp, pp=pp), batch)
    return pipeline_step_ms(step_ms, pp, costs.hop_us, p2p_ms, costs.host_ms(batch), in_flight)


if __name__ == "__main__":
    raise SystemExit(run(evaluate, parser("Component models against the figures of the paper.")))
