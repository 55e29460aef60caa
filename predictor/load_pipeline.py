"""A workload on pipelines, request by request: every replica stage by stage, behind a least-loaded router."""

from dataclasses import replace

from predictor.cards import EngineProfile
from predictor.des.fleet import ReplicaSpec, simulate_fleet
from predictor.des.metrics import HostTimes
from predictor.des.pipeline import PipelineShape
from predictor.engines import Settings
from predictor.errors import BadInput
from predictor.load import Served, draft_depth, pool_blocks, pool_rules, simulated_extras
from predictor.step.anchored import AnchoredStepModel, PipelineTerms
from predictor.step.build import PricedStep
from predictor.step.simulate import SimulateStepModel
from predictor.types import Deployment, MemoryBreakdown, Workload


def pipeline_shape(terms: PipelineTerms) -> PipelineShape:
    """Stages, one hop and the host time of a stage, as the simulator takes them."""
    costs = terms.costs
    return PipelineShape(
        terms.stages, costs.hop_us / 1000.0 + terms.p2p_ms, costs.host_base_ms, costs.host_per_request_ms
    )


def simulated_pipeline(
    deployment: Deployment,
    workload: Workload,
    profile: EngineProfile,
    settings: Settings,
    held: MemoryBreakdown,
    cap: int,
    step: PricedStep,
) -> Served:
    """What the pipelines serve, with distributions; ``cap`` bounds a replica's running requests."""
    model, terms = step.model, step.pipeline
    if deployment.layout.attn_dp > 1 or terms is None or not isinstance(model, AnchoredStepModel | SimulateStepModel):
        raise BadInput(
            f"method des: attn-dp {deployment.layout.attn_dp} inside {deployment.layout.pp} pipeline stages is not "
            "simulated; use method analytic, or attn-dp 1"
        )
    most = max(1, min(settings.max_running, cap))
    rules = pool_rules(deployment, profile, settings, most, deployment.layout)
    blocks = pool_blocks(held, workload, most, rules.block_tokens, None, draft_depth(deployment))
    spec = ReplicaSpec(model.whole_depth(), rules, blocks, deployment.replicas, pipeline=pipeline_shape(terms))
    # A stated hit rate shortens every prompt by the same share, here before it is sent.
    cold = 1.0 - workload.prefix_hit_frac
    asked = replace(workload, isl_tokens=max(1, round(workload.isl_tokens * cold)), prefix_hit_frac=0.0)
    result = simulate_fleet(
        spec,
        asked,
        host=HostTimes(step.host_ms, 0.0, profile.poll_interval_steps, profile.first_wave_stall_ms),
        seed=workload.seed,
    )
    # Requests in decode over the run, by Little's law on the time after the first token.
    decoding = result.completed / result.duration_ms * (result.e2e_ms.mean - result.ttft_ms.mean)
    batch = max(1, round(decoding / deployment.replicas / deployment.layout.pp))
    context = batch * (workload.isl_tokens + workload.osl_tokens / 2.0)
    cycle_ms = step.model.decode_line(batch, context).at(context)
    return Served(
        method="des",
        ttft_ms=result.ttft_ms.distribution(),
        tpot_ms=result.tpot_ms.distribution(),
        itl_ms=result.itl_ms.distribution(),
        e2e_ms=result.e2e_ms.distribution(),
        requests_per_s=result.completed / result.duration_ms * 1000.0,
        running=decoding,
        extras=simulated_extras(result, step, workload, cycle_ms),
        result=result,
    )
