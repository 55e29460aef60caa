"""A real engine, harvested and predicted: ``python -m evals.real_engine --json``.

vLLM's CPU build serves SmolLM2-135M with its real weights. One harvest at TP1 makes the anchor; other loads, prompt and
answer lengths, a smaller token budget and a smaller running cap are predicted from it and then measured with
``vllm bench serve``. A CPU engine wants the machine for itself: where the load average is above the limit and the
errors miss the target, everything is measured once more, then reported as skipped, with the figures.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from agent.bench.adapters import run_client
from agent.bench.client import Endpoint
from agent.harvest.engine import EngineCommand, running
from agent.harvest.idle import Idle, check_idle
from agent.harvest.request import HarvestRequest, prepare
from agent.harvest.run import Harvested, harvest
from evals.corpus import parser, run
from evals.real_environment import VLLM, EnvironmentFailed, RealEngine, environment, ready
from predictor.anchors.import_formats import BenchRun
from predictor.anchors.schema import Anchor
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.predict import Catalogue, predict
from predictor.profiles.hf import read_config
from predictor.profiles.loader import engine_profile
from predictor.types import Deployment, Kernels, Mode, Prediction, SchedulerSettings, Workload

MAX_RUNNING, TOKEN_BUDGET, CONTEXT = 16, 512, 2048
BATCHES = (1, 2, 4, 8, 16)
PROMPT, SECOND_PROMPT = 128, 512
REQUESTS_PER_CLIENT = 4
QUIET_LOAD = 1.5
TARGET_PCT = 12.0
EXIT_NO_ENGINE = 3


@dataclass(frozen=True, slots=True)
class Target:
    """One point to predict and to measure; the limits differ from the anchor's where they are given."""

    clients: int
    isl_tokens: int
    osl_tokens: int
    max_running: int = MAX_RUNNING
    token_budget: int = TOKEN_BUDGET

    def workload(self) -> Workload:
        """What the client sends."""
        return Workload(self.isl_tokens, self.osl_tokens, self.clients, requests_per_client=REQUESTS_PER_CLIENT)

    @property
    def limits(self) -> tuple[int, int]:
        """Engine settings, so that points of one start are measured together."""
        return self.max_running, self.token_budget


TARGETS = (
    Target(1, 256, 64),
    Target(2, 256, 64),
    Target(4, 128, 64),
    Target(8, 64, 64),
    Target(8, 256, 48),
    Target(16, 128, 48),
    Target(8, 128, 48, max_running=4),
    Target(8, 256, 48, token_budget=256),
)


def cpu() -> Platform:
    """This machine as a platform. Measured steps are never moved between widths here, so its peaks decide nothing."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    said = "this machine; unused by an anchor at its own width"
    return Platform(
        name="CPU",
        vendor="amd",
        gpus_per_node=1,
        hbm_bytes=memory,
        hbm_bytes_per_s=2e10,
        peak_bf16_flops=1e12,
        compute_units=os.cpu_count() or 1,
        clock_ghz=2.0,
        link_bytes_per_s=1e10,
        nic_bytes_per_s=1e9,
        kernel_launch_us=1.0,
        hbm_efficiency=0.8,
        sources={"hbm_bytes": said},
    )


def profile() -> EngineProfile:
    """vLLM's rules at the release that is started, without asynchronous scheduling."""
    known = engine_profile("vllm")
    return replace(known, versions=(replace(known.versions[-1], version=VLLM),), overlap_depth=0)


def card_of(engine: RealEngine) -> ModelCard:
    """The model's card, from its own config."""
    return replace(read_config(engine.model / "config.json"), name="SmolLM2-135M")


def deployment(target: Target | None = None) -> Deployment:
    """One replica at TP1; eager, as the CPU build runs."""
    running_cap, budget = target.limits if target else (MAX_RUNNING, TOKEN_BUDGET)
    return Deployment(
        "SmolLM2-135M",
        "CPU",
        "vLLM",
        VLLM,
        kernels=Kernels(graph_mode="none"),
        scheduler=SchedulerSettings(max_running=running_cap, token_budget=budget, prefix_cache=False),
    )


def command(engine: RealEngine, port: int, log: Path, limits: tuple[int, int]) -> EngineCommand:
    """How to start it."""
    running_cap, budget = limits
    argv = [str(engine.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(engine.model)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--no-enable-prefix-caching"]
    argv += ["--no-async-scheduling", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(running_cap)]
    argv += ["--max-num-batched-tokens", str(budget)]
    return EngineCommand(tuple(argv), port, log, environment(), ready_limit_s=600.0)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def say(text: str) -> None:
    """Words go to stderr."""
    print(text, file=sys.stderr)


def harvested(engine: RealEngine, folder: Path, idle: Idle) -> Harvested:
    """The anchor."""
    request = HarvestRequest(
        deployment=deployment(),
        card=card_of(engine),
        platform=cpu(),
        profile=profile(),
        prompt_tokens=PROMPT,
        second_prompt_tokens=SECOND_PROMPT,
        batches=BATCHES,
        window_steps=40,
        repeats=3,
        even_busy=True,
        state_folder=folder / "state",
        command=command(engine, free_port(), folder / "engine.log", (MAX_RUNNING, TOKEN_BUDGET)),
        timeout_s=300.0,
    )
    return harvest(prepare(request), say, lambda serving: idle)


def predicted(anchor: Anchor, target: Target, engine: RealEngine) -> Prediction:
    """What the anchor says of a target."""
    catalogue = Catalogue(card_of(engine), cpu(), profile(), (anchor,))
    return predict(deployment(target), target.workload(), catalogue, mode=Mode.ANCHORED)


def measured(engine: RealEngine, targets: Sequence[Target], folder: Path) -> dict[Target, BenchRun]:
    """Every target by ``vllm bench serve``, with one start of the engine for each setting of its limits."""
    found: dict[Target, BenchRun] = {}
    for limits in dict.fromkeys(target.limits for target in targets):
        start = command(engine, free_port(), folder / f"engine-{limits[0]}-{limits[1]}.log", limits)
        with running(start, say):
            endpoint = Endpoint(start.url, str(engine.model))
            for target in (one for one in targets if one.limits == limits):
                found[target] = run_client(
                    "vllm", endpoint, target.workload(), str(engine.model), program=str(engine.bench), env=environment()
                )
                say(f"{target}: TPOT {found[target].tpot.mean:.2f} ms")
    return found


def row(target: Target, prediction: Prediction, recorded: BenchRun) -> dict[str, Any]:
    """One target: predicted, measured, and how far apart."""
    pairs = {
        "tpot": (prediction.tpot_ms.mean, recorded.tpot.mean),
        "ttft": (prediction.ttft_ms.mean, recorded.ttft.mean),
        "output_tok_s": (prediction.output_tok_s, recorded.output_tok_s),
    }
    result: dict[str, Any] = {
        "clients": target.clients,
        "isl": target.isl_tokens,
        "osl": target.osl_tokens,
        "max_running": target.max_running,
        "token_budget": target.token_budget,
        "flags": [flag.code for flag in prediction.flags],
    }
    for name, (ours, theirs) in pairs.items():
        result[f"{name}_predicted"], result[f"{name}_measured"] = ours, theirs
        result[f"{name}_error_pct"] = (ours / theirs - 1.0) * 100.0 if theirs else None
    return result


def attempt(engine: RealEngine) -> dict[str, Any]:
    """One harvest and its verification."""
    before = check_idle(serving=True, run=lambda argv: None)
    loads = [os.getloadavg()[0]]
    with TemporaryDirectory(prefix="inferasim-real-") as place:
        folder = Path(place)
        result = harvested(engine, folder, before)
        loads.append(os.getloadavg()[0])
        recorded = measured(engine, TARGETS, folder)
        loads.append(os.getloadavg()[0])
    rows = [row(target, predicted(result.anchor, target, engine), recorded[target]) for target in TARGETS]

    def ape(name: str) -> float:
        errors = [abs(float(one[f"{name}_error_pct"])) for one in rows if one[f"{name}_error_pct"] is not None]
        return median(errors)

    return {
        "engine": f"vLLM {result.anchor.signature.engine_version}",
        "anchor_points": sum(len(sweep.points) for sweep in result.anchor.decode) + len(result.anchor.prefill.points),
        "targets": len(rows),
        "tpot_median_ape_pct": ape("tpot"),
        "ttft_median_ape_pct": ape("ttft"),
        "throughput_median_ape_pct": ape("output_tok_s"),
        "load_average": loads,
        "marked": [check.name for check in result.failed],
        "checks": [check.model_dump() for check in result.checks],
        "steps_ms": {
            str(sweep.prompt_tokens): {str(p.batch): p.step_ms for p in sweep.points} for sweep in result.anchor.decode
        },
        "rows": rows,
    }


def missed(result: dict[str, Any]) -> bool:
    """Whether the target is missed."""
    return bool(result["tpot_median_ape_pct"] > TARGET_PCT or result["throughput_median_ape_pct"] > TARGET_PCT)


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Harvest, predict, measure; once more where a busy machine spoiled it."""
    engine = ready(Path(args.environment) if args.environment else None, say)
    result = attempt(engine)
    if missed(result) and max(result["load_average"]) >= QUIET_LOAD:
        say(f"busy (load {max(result['load_average']):.1f}) and off target: harvesting once more")
        result = {**attempt(engine), "first_attempt": {k: v for k, v in result.items() if k.endswith("_pct")}}
    busy = max(result["load_average"]) >= QUIET_LOAD
    skipped = busy and missed(result)
    reason = f"load average {max(result['load_average']):.1f}, wanted below {QUIET_LOAD}" if skipped else None
    return {**result, "skipped": skipped, "skip_reason": reason, "target_pct": TARGET_PCT}


def main() -> int:
    """The command; exit 3 where the engine cannot be had."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--environment", metavar="DIR", help="an environment made by evals.real_environment")
    try:
        return run(evaluate, arguments)
    except EnvironmentFailed as error:
        print(error, file=sys.stderr)
        return EXIT_NO_ENGINE


if __name__ == "__main__":
    raise SystemExit(main())
