"""A workload on pipelines, request by request: every replica stage by stage, behind a least-loaded router."""

from predictor.cards import EngineProfile
from predictor.des.fleet import ReplicaSpec, simulate_fleet
from predictor.des.metrics import HostTimes
from predictor.des.pipeline import PipelineShape
from predictor.engines import Settings
from predictor.errors import BadInput
from predictor.load import (
    Served,
    draft_depth,
    mean_decoding,
    pool_blocks,
    pool_rules,
    served_by_simulation,
    simulated_extras,
    stated_cache,
)
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
    spec = ReplicaSpec(
        model.whole_depth(),
        rules,
        blocks,
        deployment.replicas,
        pipeline=pipeline_shape(terms),
        prefix_cache=stated_cache(workload),
    )
    result = simulate_fleet(
        spec,
        workload,
        host=HostTimes(step.host_ms, 0.0, profile.poll_interval_steps, profile.first_wave_stall_ms),
        seed=workload.seed,
    )
    decoding = mean_decoding(result)
    batch = max(1, round(decoding / deployment.replicas / deployment.layout.pp))
    context = batch * (workload.isl_tokens + workload.osl_tokens / 2.0)
    cycle_ms = step.model.decode_line(batch, context).at(context)
    return served_by_simulation(result, running=decoding, extras=simulated_extras(result, step, workload, cycle_ms))
