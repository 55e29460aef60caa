"""Served rows through the public facade: an anchor artefact from solved ladders, a deployment and a workload a row.

Everything scored by a corpus eval is what ``predict`` returns for these; nothing is priced on the side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inferasim import Anchor, Catalogue, Deployment, Mode, Prediction, Workload, engine_profile, predict
from predictor.anchors.residual import MeasuredRun, with_reproduced
from predictor.anchors.schema import SCHEMA_VERSION, checked
from predictor.cards import EngineProfile
from predictor.profiles.loader import model_card, platform
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve
from predictor.transfer import KernelContext, WidthLaw
from predictor.types import StartMode

Shape = tuple[int, int]

HARNESS_LENGTHS = 0.8  # the public harness draws lengths on 80–100% of nominal


@dataclass(frozen=True, slots=True)
class Case:
    """One row as a request to the facade. ``poll_steps``: decode steps between polls for new requests."""

    deployment: Deployment
    workload: Workload
    poll_steps: int = 1

    def catalogue(self, anchors: tuple[Anchor, ...] = ()) -> Catalogue:
        """Cards of the row; the poll interval is the engine profile's."""
        return Catalogue(
            model_card(self.deployment.model),
            platform(self.deployment.gpu),
            polling(self.deployment.engine, self.poll_steps),
            anchors,
        )


def polling(engine: str, steps: int) -> EngineProfile:
    """An engine's profile with a poll interval."""
    profile = engine_profile(engine)
    return replace(profile, poll_interval_steps=steps) if steps > 1 else profile


def closed_loop(
    shape: Shape, clients: int, length_range_frac: float = HARNESS_LENGTHS, start: StartMode = StartMode.BURST
) -> Workload:
    """How the public harness drives a server: clients at once, ten requests each."""
    return Workload(shape[0], shape[1], clients, length_range_frac=length_range_frac, start=start)


def predicted(case: Case, anchor: Anchor, law: WidthLaw = "combined", others: tuple[Anchor, ...] = ()) -> Prediction:
    """What the product says of a row from one anchor; ``others`` are on hand beside it."""
    return predict(case.deployment, case.workload, case.catalogue(others), mode=Mode.ANCHORED, anchor=anchor, law=law)


@dataclass(frozen=True, slots=True)
class SolvedSteps:
    """Steps of one layout by shape with prompt coefficients and host time, as the solvers return them."""

    side: KernelContext
    curves: Mapping[Shape, DecodeCurve]
    prefill: PrefillCurve
    length_range_frac: float = HARNESS_LENGTHS
    host_ms: float = 0.0


def artefact(
    name: str, solved: SolvedSteps, speculation: str, runs: Mapping[Shape, Sequence[tuple[Case, MeasuredRun]]]
) -> Anchor:
    """The anchor file of solved ladders, with what its steps leave of the runs they came from."""
    bare = bare_artefact(name, solved, speculation, {shape: held_requests(ladder) for shape, ladder in runs.items()})
    return with_reproduced(
        bare,
        {
            lengths(shape, solved.length_range_frac): [
                (measured, predicted(case, bare)) for case, measured in sorted(ladder, key=lambda pair: pair[1].clients)
            ]
            for shape, ladder in runs.items()
        },
    )


def lengths(shape: Shape, range_frac: float) -> Shape:
    """Mean lengths of a nominal shape."""
    middle = (1.0 + range_frac) / 2.0
    return round(shape[0] * middle), round(shape[1] * middle)


def held_requests(ladder: Sequence[tuple[Case, MeasuredRun]]) -> int:
    """Most requests that ran at once in a ladder's runs."""
    return max(run.held(case.workload) for case, run in ladder)


def bare_artefact(name: str, solved: SolvedSteps, speculation: str, held: Mapping[Shape, int]) -> Anchor:
    """The anchor file of solved ladders alone."""
    side, prefill = solved.side, solved.prefill
    shapes = {shape: lengths(shape, solved.length_range_frac) for shape in sorted(solved.curves)}
    prompts = sorted({prompt for prompt, _ in shapes.values()})
    return checked(
        Anchor,
        {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            "signature": {
                "gpu": side.platform.name,
                "engine": side.engine,
                "model": side.card.name,
                "weight_dtype": side.precision.weight,
                "linear_dtype": side.precision.linear,
                "expert_dtype": side.precision.expert,
                "kv_dtype": side.precision.kv,
                "spec_method": speculation if side.draft_depth else "none",
                "spec_depth": side.draft_depth,
                "tp": side.layout.tp,
                "ep": side.layout.ep,
                "attn_dp": side.layout.attn_dp,
            },
            "decode": [
                {
                    "prompt_tokens": shapes[shape][0],
                    "output_tokens": shapes[shape][1],
                    "kind": "served",
                    "held_requests": held.get(shape),
                    "points": [
                        {"batch": batch, "step_ms": step}
                        for batch, step in zip(curve.batches, curve.step_ms, strict=True)
                    ],
                }
                for shape, curve in sorted(solved.curves.items())
            ],
            "prefill": {
                "points": [{"tokens": n, "step_ms": prefill.prompt_ms(n)} for n in prompts],
                "fixed_ms": prefill.fixed_ms,
                "per_token_ms": prefill.per_token_ms,
                "per_token2_ms": prefill.per_token2_ms,
                "per_request_ms": prefill.per_request_ms,
                "mixed_fixed_ms": prefill.mixed_fixed_ms,
            },
            "tokens_per_step": side.tokens_per_step,
            "host": {"per_request_ms": solved.host_ms},
            "provenance": {"real_weights": True, "prefix_cache_off": True, "source": "public served runs"},
        },
    )
