"""Agentic replays: throughput, ITL and TTFT of other session counts from the run closest to four sessions.

``python -m evals.agentic --json``. Each layout's anchor is its run closest to four sessions, fixed by rule. Every run
is what the product's trace player says of its turns, from kernel models (no decode sweep of these systems is public);
the anchor's measured over simulated ratio of throughput, ITL and TTFT is carried to the layout's other runs (paper
§5.6, D.4). Covered: colocated, and within four times the anchor's sessions. Error factor: geometric mean of
max(r, 1/r), as in the paper's Table 17. Splits are scored apart, from colocated anchors.

Runs whose own report says that 99% of the prompt tokens were cached found the trace in the server's cache from a run
before. They are another layout, with their own anchor, and simulated with that cache. ``cache_state_ignored`` scores
them without this distinction.

Sources: GB300 multi-turn coding-agent replay (1,769 turns in 150 sessions, put together again by
:mod:`evals.agentic_turns`) and Kimi-K2.6 multi-turn on MI355X (AMD-AGI/Infera). Turn lists exist for two tokenizers
only; the other replays of the same corpus borrow the nearer one, which ``turns`` says.
"""

import argparse
import csv
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agent.playing import play_trace
from evals import corpus
from evals.agentic_turns import BLOCK_TOKENS, Turn, as_requests, growing_sessions, matched, sessions_of
from inferasim import (
    Catalogue,
    Deployment,
    DoesNotFit,
    Dtype,
    Layout,
    Mode,
    Precision,
    PrefillPool,
    Workload,
    engine_profile,
    model_card,
    platform,
)
from predictor.des.play import PlayRules
from predictor.workload.block_size import BlockSize, Tail

ANCHOR_SESSIONS = 4
COVERED_FACTOR = 4
METRICS = ("tput", "itl", "ttft")
PAPER = {"tput": 1.08, "itl": 1.14, "ttft": 1.23}
MESSAGE_FACTOR = 2.0  # tokens a message beyond doubt: other runs are below 1.1
PAPER_SPLIT = {"tput": 1.08, "itl": 1.12}  # 13 runs, §5.10
SPLIT_BACKEND = "nixl"

# The recorded names say no more than "DeepSeek-V4"; on four GPUs with FP4 experts it is taken for V4-Pro.
MODELS = {
    "DeepSeek-V4": "DeepSeek-V4-Pro",
    "Kimi-K2.5": "Kimi-K2.5",
    "Kimi-K2.6": "Kimi-K2.5",
    "MiniMax-M2.5": "MiniMax-M2.5",
}
# An eighth of a batch3x replay's turns are not in the corpus; every third session has its number of turns (590 of 696).
BATCH_STRIDE = 3
WARM_HIT_FRAC = 0.99  # no session of the trace, played once, finds more than 89% of itself
K26_SHARED_TOKENS = 20_000
K26_TURNS = {"first": 10_000, "turns": 30, "new": 2_048, "answer": 900}  # source: the row's traffic


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run of a layout; None where the source does not tell."""

    layout: str
    model: str
    gpu: str
    engine: str
    tp: int
    ep: int
    gpus: int
    sessions: int
    trace: str
    tput: float
    itl: float | None
    ttft: float | None
    prefill_gpus: int = 0  # of a split; the rest decode
    served_before: bool = False


def number(row: Mapping[str, str], *names: str) -> float | None:
    """The first of these fields that holds a number."""
    for name in names:
        if row.get(name):
            return float(row[name])
    return None


def gb300_runs(folder: Path) -> list[Run]:
    """The GB300 replays.

    Some servers streamed many tokens a message. Their ITL and TTFT count messages and are left out. They are told by
    their ITL: a session emits one token an ITL at most, so ITL · throughput <= sessions.
    """
    runs = []
    for row in rows(folder / "gb300_agentic_replay_runs.csv"):
        name = row["run"].removeprefix("results/")
        tput, itl = float(row["output_tok_s"]), number(row, "itl_mean_ms", "tpot_steady_ms")
        streamed = itl is not None and itl * tput / 1000.0 > MESSAGE_FACTOR * int(row["sessions"])
        runs.append(
            Run(
                layout=name,
                model=MODELS[row["model"].split(" ")[0]],
                gpu="GB300",
                engine="SGLang" if "sglang" in row["engine"] else "vLLM",
                tp=int(row["tp"]),
                ep=int(number(row, "ep") or 1),
                gpus=int(row["n_gpu"]),
                sessions=int(row["sessions"]),
                trace=_trace_of(name),
                tput=tput,
                itl=None if streamed else itl,
                ttft=None if streamed else number(row, "ttft_mean_ms"),
                prefill_gpus=int(split[1]) if (split := re.match(r"disagg (\d+) prefill", row["layout"])) else 0,
                served_before=(number(row, "prefix_hit") or 0.0) > WARM_HIT_FRAC,
            )
        )
    return runs


def _trace_of(name: str) -> str:
    if "45k" in name:
        return ""  # 9,798 turns of a longer corpus, of which nothing else is known
    kind = "kimi" if "kimi" in name else "dsv4"
    return f"{kind}/3" if "batch3x" in name else kind


def kimi_runs(folder: Path) -> list[Run]:
    """Kimi-K2.6 on MI355X: speed of a user times the number of users is the output throughput."""
    return [
        Run(
            layout="kimi_k26_tp8",
            model=MODELS["Kimi-K2.6"],
            gpu=row["gpu"],
            engine="vLLM",
            tp=8,
            ep=1,
            gpus=int(row["n_gpus"]),
            sessions=int(row["sessions"]),
            trace="k26",
            tput=float(row["tok_s_per_user"]) * int(row["sessions"]),
            itl=None,
            ttft=None,
        )
        for row in rows(folder / "kimi_k26_agentic_mi355x.csv")
    ]


def rows(file: Path) -> list[dict[str, str]]:
    """Rows of a CSV file of the corpus."""
    if not file.is_file():
        raise corpus.CorpusAbsent(f"{file} is absent: pass --corpus DIR with the folder 'measured' in it")
    with open(file, newline="") as text:
        return list(csv.DictReader(text))


def recorded_turns(folder: Path, run: str) -> list[Turn]:
    """Turns of a GB300 run at four sessions, in order of completion."""
    return [
        Turn(int(row["isl"]), int(row["osl"]), float(row["e2e_ms"]))
        for row in rows(folder / f"gb300_agentic_requests_{run}.csv")
        if row["sessions"] == str(ANCHOR_SESSIONS)
    ]


class Traces:
    """Turn lists by name, each built once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sessions = cache(self._sessions)

    def _sessions(self, name: str, live: int) -> list[list[Turn]]:
        if name == "k26":
            return growing_sessions(live, shared=K26_SHARED_TOKENS, **K26_TURNS)
        if name.endswith("/3"):
            return self.sessions(name.removesuffix("/3"), 0)[::BATCH_STRIDE]
        recorded = recorded_turns(self._folder, "dsv4_b1")
        indices = sessions_of(recorded, ANCHOR_SESSIONS)
        turns = recorded if name == "dsv4" else matched(recorded, recorded_turns(self._folder, "kimi_b1_sglang"))
        return [[turns[index] for index in session] for session in indices]


def deployment_of(run: Run) -> Deployment:
    """The layout of a run."""
    layout = Layout(tp=run.tp, ep=run.ep)
    return Deployment(
        model=model_card(run.model).name,
        gpu=run.gpu,
        engine=run.engine,
        layout=layout,
        precision=_precision(run),
        replicas=(run.gpus - run.prefill_gpus) // run.tp if run.prefill_gpus else 1,
        prefill=PrefillPool(layout, run.prefill_gpus // run.tp, SPLIT_BACKEND) if run.prefill_gpus else None,
    )


def simulate(run: Run, sessions: Sequence[Sequence[Turn]]) -> dict[str, float]:
    """Throughput, ITL and TTFT of a run as the product plays its turns, from kernel models."""
    catalogue = Catalogue(model_card(run.model), platform(run.gpu), engine_profile(run.engine))
    turns = [turn for session in sessions for turn in session]
    workload = Workload(
        isl_tokens=round(sum(turn.input_tokens for turn in turns) / len(turns)),
        osl_tokens=round(sum(turn.output_tokens for turn in turns) / len(turns)),
        concurrency=run.sessions,
    )
    answers_return = run.trace == "k26"  # its prompts grow by the answers; the other replays drop the reasoning
    requests = as_requests(sessions, K26_SHARED_TOKENS if answers_return else 0)
    played = play_trace(
        deployment_of(run),
        workload,
        catalogue,
        requests,
        BlockSize(BLOCK_TOKENS, Tail.FLOOR),
        PlayRules(slots=run.sessions),
        mode=Mode.SIMULATE,
        router="sticky-session",  # a trace goes where its prefix is (paper A.1)
        answers_return=answers_return,
        served_before=requests if run.served_before else (),
    )
    if played.over_context:
        raise DoesNotFit(f"{run.layout}: {played.over_context} of its turns are longer than the deployment holds")
    result, profile = played.result.simulation, catalogue.profile
    servers = 2 if run.prefill_gpus else 1  # each adds its host time to TTFT
    host_ms = profile.host_ms_per_request + profile.host_us_per_prompt_token * workload.isl_tokens / 1e3
    return {
        "tput": result.output_tok_s,
        "itl": result.itl_ms.mean,
        "ttft": result.ttft_ms.mean,
        "gpu_ttft": result.ttft_ms.mean - servers * host_ms,
        "hit_frac": result.hit_rate,
    }


def _precision(run: Run) -> Precision:
    """NVFP4, MXFP4, or DeepSeek's FP4 experts beside FP8; KV in FP8."""
    dense = Dtype.FP8 if run.model.startswith("DeepSeek") else Dtype.FP4
    return Precision(weight=Dtype.FP4, linear=dense, expert=Dtype.FP4, kv=Dtype.FP8)


def score_layout(runs: Sequence[Run], simulated: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Anchor, carried residuals and errors of one layout's runs; ``simulated`` by sessions."""
    anchor = min(runs, key=lambda run: (abs(run.sessions - ANCHOR_SESSIONS), run.sessions))
    base = simulated[anchor.sessions]
    residual = {metric: value / base[metric] for metric in METRICS if (value := getattr(anchor, metric)) is not None}
    scored = []
    for run in runs:
        if run is anchor:
            continue
        ratio = {
            metric: residual[metric] * simulated[run.sessions][metric] / value
            for metric in residual
            if (value := getattr(run, metric)) is not None
        }
        covered = run.sessions <= COVERED_FACTOR * anchor.sessions
        scored.append({"sessions": run.sessions, "covered": covered, "predicted_over_measured": _rounded(ratio)})
    return {
        "layout": anchor.layout,
        "served_before": anchor.served_before,
        "model": anchor.model,
        "gpu": anchor.gpu,
        "engine": anchor.engine,
        "anchor_sessions": anchor.sessions,
        "anchor_measured_over_simulated": _rounded(residual),
        "anchor_host_ms": None if anchor.ttft is None else round(anchor.ttft - base["gpu_ttft"], 2),
        "hit_frac": round(base["hit_frac"], 4),
        "turns": anchor.trace,
        "rows": scored,
        "error_factor": error_factors(row for row in scored if row["covered"]),
    }


def score_splits(runs: Sequence[Run], by_layout: Sequence[Mapping[str, Any]], traces: Traces) -> list[dict[str, Any]]:
    """Splits from the colocated anchor of the same engine, model and trace; no anchor is a split (paper §5.10).

    What of the anchor's TTFT is not the GPU's is host time, and a split pays it on both servers (paper D.4).
    """
    scored = []
    for run in runs:
        anchors = [
            layout
            for layout in by_layout
            if (layout["engine"], layout["model"], layout["turns"]) == (run.engine, run.model, run.trace)
        ]
        residual = anchors[0]["anchor_measured_over_simulated"]
        simulated = simulate(run, traces.sessions(run.trace, run.sessions))
        predicted = {metric: residual[metric] * simulated[metric] for metric in residual}
        predicted["ttft"] = simulated["gpu_ttft"] + 2.0 * anchors[0]["anchor_host_ms"]
        ratio = {
            metric: predicted[metric] / value for metric in predicted if (value := getattr(run, metric)) is not None
        }
        where = {"layout": run.layout, "sessions": run.sessions, "anchor": anchors[0]["layout"]}
        scored.append(where | {"predicted_over_measured": _rounded(ratio)})
    return scored


def error_factors(scored: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Geometric mean of max(r, 1/r) by metric; None where no row has it."""
    logs: dict[str, list[float]] = defaultdict(list)
    for row in scored:
        for metric, ratio in row["predicted_over_measured"].items():
            logs[metric].append(abs(math.log(ratio)))
    return {metric: round(math.exp(sum(of) / len(of)), 4) if (of := logs[metric]) else None for metric in METRICS}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Score every layout that has an anchor and a turn list."""
    folder = corpus.data_dir(args.corpus) / "measured"
    runs = gb300_runs(folder) + kimi_runs(folder)
    traces = Traces(folder)
    uncovered: Counter[str] = Counter()
    layouts: dict[str, list[Run]] = defaultdict(list)
    splits = [run for run in runs if run.prefill_gpus]
    uncovered["disaggregated, scored apart"] = len(splits)
    for run in runs:
        if run.prefill_gpus:
            continue
        if not run.trace:
            uncovered["turns not published"] += 1
        else:
            layouts[run.layout].append(run)
    by_layout, ignoring = [], []
    for name, of_layout in layouts.items():
        simulated = {run.sessions: simulate(run, traces.sessions(run.trace, run.sessions)) for run in of_layout}
        for warm in (False, True):
            same = [run for run in of_layout if run.served_before is warm]
            if same:
                by_layout.append(score_layout(same, simulated))
                print(f"{name}: {by_layout[-1]['error_factor']}", file=sys.stderr)
        ignoring.append(score_layout(of_layout, simulated))
    scored = [row for layout in by_layout for row in layout["rows"]]
    covered = [row for row in scored if row["covered"]]
    uncovered[f"over {COVERED_FACTOR} times the anchor's sessions"] = len(scored) - len(covered)
    split_rows = score_splits(splits, by_layout, traces)
    together = [row for layout in ignoring for row in layout["rows"] if row["covered"]]
    return {
        "n": len(runs),
        "anchors": len(by_layout),
        "covered": len(covered),
        "uncovered": dict(uncovered),
        "error_factor": error_factors(covered),
        "paper_error_factor": PAPER,
        "beyond_error_factor": error_factors(row for row in scored if not row["covered"]),
        "cache_state_ignored": {"covered": len(together), "error_factor": error_factors(together)},
        "split": {
            "n": len(split_rows),
            "error_factor": error_factors(split_rows),
            "paper_error_factor": PAPER_SPLIT,
            "rows": split_rows,
        },
        "by_layout": by_layout,
    }


def main() -> int:
    """Command line."""
    return corpus.run(evaluate, corpus.parser("Agentic replays from the run closest to four sessions"))


if __name__ == "__main__":
    sys.exit(main())
