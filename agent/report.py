"""Answers for people: the same figures as the JSON, as short tables."""

from collections.abc import Mapping
from typing import Any

from agent.cli.output import facts, note, table


def show_prediction(answer: Mapping[str, Any], title: str = "Prediction") -> None:
    """One prediction: figures, how they were made, memory and the step by term."""
    facts(title, [*how(answer), *figures(answer)])
    show_intervals(answer["interval_80"])
    memory = answer["memory"]
    gib = 2.0**30
    facts(
        "Memory of the busiest GPU, GiB",
        [
            (name.replace("_", " "), memory[f"{name}_bytes"] / gib)
            for name in ("weights", "kv_pool", "state", "activation", "graph", "total", "hbm")
        ],
    )
    steps = [(name, value) for name, value in answer["step_ms"].items() if value]
    if steps:
        facts("Decode step by term, ms", steps)
    for flag in answer["flags"]:
        note(f"note: {flag['message']}")


INTERVAL_NAMES = {
    "ttft_ms": "TTFT mean, ms",
    "tpot_ms": "TPOT mean, ms",
    "e2e_ms": "E2E mean, ms",
    "interactivity_tok_s_user": "interactivity, tok/s/user",
    "output_tok_s_per_gpu": "output tok/s per GPU",
    "total_tok_s": "total tok/s",
}


def show_intervals(found: Mapping[str, Any] | None) -> None:
    """The 80% interval of each mean with what it was calibrated on, or why there is none."""
    if found is None:
        return
    if found["outside"]:
        note(f"note: no 80% interval: {found['outside']}")
        return
    told = [
        (label, f"{_figure(found['bounds'][name][0])} to {_figure(found['bounds'][name][1])}")
        for name, label in INTERVAL_NAMES.items()
        if name in found["bounds"]
    ]
    absent = [] if "ttft_ms" in found["bounds"] else [("TTFT mean, ms", "not calibrated for this kind")]
    where = f"{found['kind']}: {found['rows']} measured runs of {found['stacks']} stacks"
    facts(f"80% of measured runs lay within ({where})", [*told, *absent])


def how(answer: Mapping[str, Any]) -> list[tuple[str, object]]:
    """How a prediction was made and how far it covers the target."""
    source = answer["anchor"] or "kernel models, no anchor"
    return [("predicted from", f"{source} ({answer['mode']}, {answer['coverage']})")]


def figures(answer: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The headline figures."""
    return [
        ("GPUs", answer["gpus"]),
        ("output tok/s per GPU", answer["output_tok_s_per_gpu"]),
        ("output tok/s", answer["output_tok_s"]),
        ("total tok/s", answer["total_tok_s"]),
        ("interactivity, tok/s/user", answer["interactivity_tok_s_user"]),
        ("TTFT mean, ms", answer["ttft_ms"]["mean"]),
        ("TPOT mean, ms", answer["tpot_ms"]["mean"]),
        ("E2E mean, ms", answer["e2e_ms"]["mean"]),
        *([("USD a million output tokens", answer["usd_per_mtok"])] if answer["usd_per_mtok"] is not None else []),
        ("requests running", answer["running"]),
        ("requests the memory holds", answer["max_concurrency"]),
    ]


def show_tuning(answer: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> None:
    """The tuned deployment, why it won, what was refused, and where the ledger is."""
    request, best, trials = answer["request"], answer["best"], answer["trials"]
    asked = f"{request['model']} on {request['cluster']} with {request['engine']}: {request['objective']}"
    bounds = ", ".join(request["slos"]) or "no bound"
    if best is None:
        facts("Nothing legal", [("asked", asked), ("bounds", bounds)])
    else:
        changed = _changed(best["levers"], baseline["levers"] if baseline else {})
        facts(
            "Tuned deployment",
            [
                (
                    "asked",
                    f"{asked}; {bounds}; {request['isl']} tokens in, {request['osl']} out, "
                    f"{request['concurrency']} clients",
                ),
                ("best", f"{_figure(best['score'])} {request['objective']} ({best['origin']}: {best['name']})"),
                ("baseline", "" if baseline is None else _score(baseline)),
                ("changed levers", ", ".join(changed) or "none: the baseline is best"),
                *how(best["prediction"]),
                *figures(best["prediction"]),
            ],
        )
        for flag in best["prediction"]["flags"]:
            note(f"note: {flag['message']}")
        if best["launch"]:
            facts("Launch", [("", command) for command in best["launch"]])
            facts("Check it", [("", best["benchmark"])])
        for text in best["launch_notes"]:
            note(f"note: {text}")
        if answer["fusion_opportunities"]:
            table(
                "Fusions worth 2% of the step or more",
                ["fusion", "replaces", "saves ms", "share of step"],
                [
                    [
                        one["fusion"],
                        one["replaces"],
                        f"{one['saved_ms_low']:.3f}-{one['saved_ms_high']:.3f}",
                        one["share_of_step"],
                    ]
                    for one in answer["fusion_opportunities"]
                ],
            )
    for flag in answer["flags"]:
        note(f"flag: {flag['code']}: {flag['message']}")
    if answer["reasons"]:
        table("Why trials were refused", ["reason", "trials"], list(answer["reasons"].items()))
    facts(
        "Search",
        [
            ("trials", f"{trials['scored']} priced, {trials['legal']} legal, {trials['rejected']} refused"),
            *_planner(answer["planner"]),
            ("seconds", answer["wall_s"]),
            ("ledger", f"{answer['ledger']}, search {answer['search_id']}"),
        ],
    )


def _planner(facts: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What a language model did; nothing for the seed search."""
    if not facts:
        return []
    usage, stop = facts.get("llm"), facts.get("stop")
    done = f"{facts['proposals']} proposals, {facts['repeats']} repeats"
    if usage:
        cost = "price unknown" if usage["cost_usd"] is None else f"${usage['cost_usd']:.4f}"
        done += f"; {usage['calls']} calls, {usage['prompt_tokens'] + usage['completion_tokens']:,} tokens, {cost}"
    return [("language model", done), *([("it ended", stop["message"])] if stop else [])]


def _changed(levers: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_plain(value)}" for name, value in levers.items() if base.get(name, value) != value]


def _plain(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _score(trial: Mapping[str, Any]) -> str:
    return "refused" if trial["score"] is None else _figure(trial["score"])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def show_reduction(answer: Mapping[str, Any]) -> None:
    """What to measure for a target, what the run leaves out, and what brings it back."""
    run = answer["run"]
    if answer["serving_anchor"]:
        note(f"anchor {answer['serving_anchor']} already covers this target: nothing needs measuring")
    facts(
        "Measure",
        [
            (
                "run",
                f"{run['model']} on {run['gpus']} {run['gpu']}, {run['engine']} {run['engine_version']}, "
                f"{run['layout']}",
            ),
            ("decode sweeps at prompts of", " and ".join(map(str, run["decode_prompt_tokens"]))),
            ("batches", " ".join(map(str, run["decode_batches"]))),
            ("prefill lengths", " ".join(map(str, run["prefill_tokens"]))),
            ("GPU-minutes, about", run["gpu_minutes"]),
            ("nearest anchor on hand", answer["nearest_anchor"] or "none"),
        ],
    )
    if run["launch"]:
        facts("Launch", [("", command) for command in run["launch"]])
    if answer["removed"]:
        table(
            "Left out of the run, and what restores it",
            ["what", "target", "run", "restored by", "source"],
            [[part[key] for key in ("what", "target", "run", "restored_by", "source")] for part in answer["removed"]],
        )
    for text in (*answer["nearest_flags"], *run["notes"]):
        note(f"note: {text}")
