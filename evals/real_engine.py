"""Real engines, harvested and predicted: ``python -m evals.real_engine --json``.

vLLM's CPU build serves SmolLM2-135M with its real weights. One harvest at TP1 makes the anchor; other loads, prompt and
answer lengths, a smaller token budget and a smaller running cap are predicted from it and then measured with
``vllm bench serve``. A dummy model whose heads divide by two is harvested at TP1 and TP2: the second is predicted from
the first by the width law. llama.cpp's server is harvested through the same door.

A CPU engine wants the machine for itself: where the errors miss the target, everything is measured once more; where
others were busy then too, it is reported as skipped, with the figures.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from agent.bench.adapters import run_client
from agent.bench.client import Endpoint
from agent.bench.load import run_benchmark
from agent.bench.prompts import PromptSource
from agent.failures import DependencyFailed
from agent.harvest import checks
from agent.harvest.engine import port_is_free, running
from agent.harvest.facts import read_endpoint
from agent.harvest.request import HarvestRefused
from agent.harvest.run import Harvested, harvest
from agent.harvest.state import Kept
from agent.harvest.sweeps import Session, cache_probe, decode_sweep, prefill_sweep
from evals.corpus import parser, run
from evals.real_deployments import (
    CONTEXT,
    LLAMA_PROMPT,
    Limits,
    anchor_request,
    deployment,
    free_port,
    llama_command,
    llama_plan,
    machine_profile,
    model_card_of,
    served_dtype,
    vllm_command,
    width_request,
)
from evals.real_environment import (
    LLAMA_CPP,
    EnvironmentFailed,
    LlamaServer,
    RealEngine,
    environment,
    llama_ready,
    ready,
)
from evals.real_machine import (
    QUIET_LOAD,
    QUIET_OTHERS,
    adopt_orphans,
    allreduce_us,
    collect_orphans,
    cpu_platform,
    has_avx512,
    read_bytes_per_s,
    read_machine,
    wait_for_quiet,
)
from predictor.anchors.import_formats import BenchRun
from predictor.anchors.schema import Anchor
from predictor.cards import Platform
from predictor.predict import Catalogue, predict
from predictor.step.build import kernel_context, measured_curve
from predictor.transfer.width import WidthLaw, move_decode
from predictor.types import Mode, Prediction, Workload

REQUESTS_PER_CLIENT = 3
TARGET_PCT = 12.0
WIDTH_TARGET_PCT = 20.0
WIDTHS = (1, 2)
# The first is the one a prediction uses; the others are there to be compared.
WIDTH_LAWS: tuple[WidthLaw, ...] = ("combined", "eq1", "unchanged", "scale")
QUIET_WAIT_S = 150.0
LIMIT_MIN = 25.0
EXIT_NO_ENGINE = 3


USUAL, SMALL = Limits(), Limits(max_running=4, token_budget=256)


@dataclass(frozen=True, slots=True)
class Target:
    """One point to predict and to measure."""

    clients: int
    isl_tokens: int
    osl_tokens: int
    limits: Limits = USUAL

    def workload(self) -> Workload:
        """What the client sends; a lone client sends a few more, so that its mean is not one request's."""
        each = REQUESTS_PER_CLIENT + (2 if self.clients <= 2 else 0)
        return Workload(self.isl_tokens, self.osl_tokens, self.clients, requests_per_client=each)


TARGETS = (
    Target(1, 256, 64),
    Target(2, 384, 48),
    Target(4, 128, 96),
    Target(8, 64, 64),
    Target(16, 128, 48),
    Target(8, 128, 48, SMALL),
    Target(3, 256, 48, SMALL),
)


class OutOfTime(Exception):
    """Steps take so much longer than on a quiet machine that nothing would be learned from the rest."""


@dataclass(frozen=True, slots=True)
class Until:
    """A limit on everything together: asked between two steps, each of which has limits of its own."""

    deadline_s: float

    def more(self, what: str) -> None:
        """Raise OutOfTime where the limit has passed."""
        if time.monotonic() > self.deadline_s:
            raise OutOfTime(f"out of time before {what}: this machine is too busy or too slow for the study")

    def say(self, text: str) -> None:
        """Progress of a harvest, which ends here where the limit has passed; its engine is stopped on the way."""
        say(text)
        self.more("the rest of a harvest")


def say(text: str) -> None:
    """Words go to stderr."""
    print(text, file=sys.stderr, flush=True)


def predicted(anchor: Anchor, target: Target, engine: RealEngine) -> Prediction:
    """What the anchor says of a target."""
    catalogue = Catalogue(model_card_of(engine.model), cpu_platform(), machine_profile(), (anchor,))
    wanted = deployment(anchor.signature.model, target.limits)
    return predict(wanted, target.workload(), catalogue, mode=Mode.ANCHORED)


def measured(engine: RealEngine, targets: Sequence[Target], folder: Path, until: Until) -> dict[Target, BenchRun]:
    """Every target by ``vllm bench serve``, with one start of the engine for each setting of its limits."""
    found: dict[Target, BenchRun] = {}
    for limits in dict.fromkeys(target.limits for target in targets):
        log = folder / f"engine-{limits.max_running}-{limits.token_budget}.log"
        start = vllm_command(engine, engine.model, free_port(), log, limits)
        with running(start, say):
            endpoint = Endpoint(start.url, str(engine.model))
            for target in (one for one in targets if one.limits == limits):
                until.more(f"{target}")
                found[target] = run_client(
                    "vllm", endpoint, target.workload(), str(engine.model), program=str(engine.bench), env=environment()
                )
                tpot = found[target].tpot.mean
                said = f"{target.clients} clients, {target.isl_tokens}/{target.osl_tokens}"
                say(f"{said}: TPOT {tpot:.2f} ms" if tpot is not None else f"{said}: no TPOT")
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
        "max_running": target.limits.max_running,
        "token_budget": target.limits.token_budget,
        "flags": [flag.code for flag in prediction.flags],
        "itl_p50_measured": recorded.itl.p50,
        "decode_step_ms": prediction.extras.get("decode_step_ms"),
    }
    for name, (ours, theirs) in pairs.items():
        result[f"{name}_predicted"], result[f"{name}_measured"] = ours, theirs
        result[f"{name}_error_pct"] = (ours / theirs - 1.0) * 100.0 if theirs else None
    return result


def harvested(result: Harvested) -> dict[str, Any]:
    """What a harvest found, for the report."""
    anchor = result.anchor
    return {
        "steps_ms": {str(s.prompt_tokens): {str(p.batch): p.step_ms for p in s.points} for s in anchor.decode},
        "prompts_ms": {str(point.tokens): point.step_ms for point in anchor.prefill.points},
        "kv_pool_tokens": anchor.kv_pool_tokens,
        "marked": [f"{check.name}: {check.detail}" for check in result.failed],
    }


def anchor_study(engine: RealEngine, folder: Path, until: Until) -> dict[str, Any]:
    """Harvest at TP1, predict every target, measure every target."""
    result = harvest(anchor_request(engine, folder), until.say)
    recorded = measured(engine, TARGETS, folder, until)
    rows = [row(target, predicted(result.anchor, target, engine), recorded[target]) for target in TARGETS]

    def ape(name: str) -> float:
        return median(abs(float(one[f"{name}_error_pct"])) for one in rows if one[f"{name}_error_pct"] is not None)

    sweeps, prompts = result.anchor.decode, result.anchor.prefill.points
    return {
        "engine": f"vLLM {result.anchor.signature.engine_version}",
        "served_dtype": served_dtype(),
        "anchor_points": sum(len(sweep.points) for sweep in sweeps) + len(prompts),
        "targets": len(rows),
        "tpot_median_ape_pct": ape("tpot"),
        "ttft_median_ape_pct": ape("ttft"),
        "throughput_median_ape_pct": ape("output_tok_s"),
        "harvest": harvested(result),
        "rows": rows,
    }


def width_study(engine: RealEngine, folder: Path, until: Until) -> dict[str, Any]:
    """Harvest a dummy model at TP1 and TP2 and predict the second from the first.

    All ranks read one memory: what it gives each is measured with one and with two of them reading. What an all-reduce
    between two takes is measured too, where it goes over sockets.
    """
    reduce_us = None if has_avx512() else allreduce_us(engine.python, WIDTHS[-1], free_port(), environment())
    bandwidth = {width: read_bytes_per_s(width) for width in WIDTHS}
    found = {width: harvest(width_request(engine, width, folder / f"tp{width}"), until.say) for width in WIDTHS}
    narrow, wide = (found[width].anchor.decode[0] for width in WIDTHS)
    card, profile = model_card_of(engine.dummy), machine_profile()
    source, target = (
        kernel_context(found[width].anchor, narrow, card, _memory(bandwidth[width], reduce_us), profile)
        for width in WIDTHS
    )
    curve = measured_curve(found[WIDTHS[0]].anchor, narrow)
    moved = {law: move_decode(curve, source, target, law) for law in WIDTH_LAWS}
    rows: list[dict[str, Any]] = []
    for before, after in zip(narrow.points, wide.points, strict=True):
        steps = {"batch": after.batch, "tp1_ms": before.step_ms, "tp2_measured_ms": after.step_ms}
        predicted_ms = {law: moved[law].at(after.batch) for law in WIDTH_LAWS}
        rows.append(
            steps
            | {"tp2_predicted_ms": predicted_ms}
            | {"error_pct": {law: (value / after.step_ms - 1.0) * 100.0 for law, value in predicted_ms.items()}}
        )
    errors = {law: median(abs(one["error_pct"][law]) for one in rows) for law in WIDTH_LAWS}
    return {
        "median_ape_pct": errors[WIDTH_LAWS[0]],
        "by_law": errors,
        "target_pct": WIDTH_TARGET_PCT,
        "allreduce_us": reduce_us,
        "read_gb_s": {str(width): value / 1e9 for width, value in bandwidth.items()},
        "marked": {str(width): harvested(one)["marked"] for width, one in found.items()},
        "rows": rows,
    }


def _memory(read_bytes_per_s: float, reduce_us: float | None) -> Platform:
    return cpu_platform(read_bytes_per_s, 4.0 if served_dtype() == "float32" else 2.0, reduce_us, WIDTHS[-1])


def llama_study(server: LlamaServer, engine: RealEngine, folder: Path) -> dict[str, Any]:
    """Smoke test of a second server: started, read, swept, checked, loaded and stopped by the same code.

    It takes text, and is told not to reuse what a slot still holds. There is no artefact: nothing predicts llama.cpp.
    """
    command = llama_command(server, free_port(), folder / "llama.log")
    plan, card = llama_plan(), model_card_of(engine.model)
    with running(command, say):
        facts = read_endpoint(command.url)
        endpoint = Endpoint(command.url, facts.model, 300.0, token_ids=False, extra_body={"cache_prompt": False})
        kept = Kept.open(folder, plan.key(LLAMA_CPP))
        session = Session(endpoint, PromptSource(0, card.vocab, False), plan, kept, say, CONTEXT)
        prompts, probe, steps = prefill_sweep(session), cache_probe(session), decode_sweep(session)
        loaded = run_benchmark(endpoint, Workload(LLAMA_PROMPT, 16, 2, requests_per_client=2), card.vocab, say=say)
    given = [
        checks.prompts_not_cached(prompts[-1].ttft_ms, probe.repeated_ms, prompts[0].ttft_ms, probe.hits),
        checks.tokens_counted(max(one.tokens_per_chunk for one in steps), all(one.ids_counted for one in steps)),
        checks.readings_agree([(one.batch, one.disagreement_pct) for one in steps]),
        checks.monotone("prefill", [(one.tokens, one.ttft_ms) for one in prompts]),
    ]
    return {
        "engine": LLAMA_CPP,
        "steps_ms": {str(one.batch): one.step_ms for one in steps},
        "prompts_ms": {str(one.tokens): one.ttft_ms for one in prompts},
        "tpot_ms": loaded.tpot.mean,
        "requests": loaded.requests,
        "stopped": port_is_free(command.port),
        "checks": [asdict(check) for check in given],
    }


def attempt(engine: RealEngine, server: LlamaServer, until: Until) -> dict[str, Any]:
    """Everything once, and how busy others kept the machine meanwhile."""
    load, begun = wait_for_quiet(QUIET_WAIT_S), read_machine()
    if load >= QUIET_LOAD:
        say(f"load average {load:.1f}: measuring all the same")
    with TemporaryDirectory(prefix="inferasim-real-") as place:
        folder = Path(place)
        try:
            result = anchor_study(engine, folder / "anchor", until)
            result["width"] = width_study(engine, folder / "width", until)
            until.more("llama.cpp")
            result["second_adapter"] = llama_study(server, engine, folder / "llama")
        except (HarvestRefused, DependencyFailed) as failure:  # readings that disagree, an engine that never got ready
            result = {"failure": failure}
    collect_orphans()
    ended = read_machine()
    return {
        **result,
        "load_average": load,
        "others_busy_cores": ended.others_since(begun),
        "wall_s": ended.at_s - begun.at_s,
    }


def missed(result: dict[str, Any]) -> list[str]:
    """Targets that are missed, in words; the failure where nothing came of it."""
    if "failure" in result:
        return [str(result["failure"])]
    limits = {
        "TPOT": (result["tpot_median_ape_pct"], TARGET_PCT),
        "throughput": (result["throughput_median_ape_pct"], TARGET_PCT),
        "TP1 to TP2": (result["width"]["median_ape_pct"], WIDTH_TARGET_PCT),
    }
    return [
        f"{name} off by {value:.1f}% (at most {limit:g}%)" for name, (value, limit) in limits.items() if value > limit
    ]


def busy(result: dict[str, Any]) -> str | None:
    """Why the machine was not quiet; None where it was."""
    if result["load_average"] >= QUIET_LOAD:
        return f"load average {result['load_average']:.1f} before the start, wanted below {QUIET_LOAD}"
    if result["others_busy_cores"] > QUIET_OTHERS:
        return f"others used {result['others_busy_cores']:.2f} cores meanwhile, wanted at most {QUIET_OTHERS}"
    return None


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Harvest, predict, measure; once more where a busy machine spoiled it."""
    engine = ready(Path(args.environment) if args.environment else None, say)
    server = llama_ready(say=say)
    adopt_orphans()
    until = Until(time.monotonic() + args.limit_min * 60.0)
    try:
        result = attempt(engine, server, until)
        if missed(result):  # a neighbour on the host shows in no load average
            say(f"{'; '.join(missed(result))}; {busy(result) or 'nobody else seen'}: harvesting once more")
            first = {**result, "failure": str(result["failure"])} if "failure" in result else result
            result = {**attempt(engine, server, until), "first_attempt": first}
    except OutOfTime as late:
        return {"skipped": True, "skip_reason": str(late), "load_average": os.getloadavg()[0], "missed": []}
    off, reason = missed(result), busy(result)
    if "failure" in result:
        if reason is None:
            raise result["failure"]
        result["failure"] = str(result["failure"])
    skipped = bool(off and reason)
    return {
        **result,
        "missed": off,
        "skipped": skipped,
        "skip_reason": f"{reason}: {'; '.join(off)}" if skipped else None,
        "target_pct": TARGET_PCT,
    }


def arguments() -> argparse.ArgumentParser:
    """Arguments of the command."""
    result = parser(__doc__ or "")
    result.add_argument("--environment", metavar="DIR", help="an environment made by evals.real_environment")
    result.add_argument("--limit-min", type=float, default=LIMIT_MIN, help="minutes after which the rest is skipped")
    return result


def main() -> int:
    """The command; exit 3 where an engine cannot be had or fails."""
    try:
        return run(evaluate, arguments())
    except (EnvironmentFailed, DependencyFailed) as error:
        print(error, file=sys.stderr)
        return EXIT_NO_ENGINE


if __name__ == "__main__":
    raise SystemExit(main())
