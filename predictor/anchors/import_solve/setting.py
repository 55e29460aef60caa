"""From runs and facts to what the solver needs: the deployment, its scheduler, and each run's workload."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from predictor.anchors.import_formats.run import BenchRun, Fact, StepRun
from predictor.anchors.import_solve.facts import BY_NAME, ask, card_name, merge, one_value
from predictor.anchors.schema import Signature, checked
from predictor.cards import EngineProfile, ModelCard, Platform
from predictor.des.rules import SchedulerRules
from predictor.des.schedulers import scheduler_rules
from predictor.des.schedulers.base import Replica
from predictor.engines import effective_settings
from predictor.errors import BadInput, DoesNotFit
from predictor.memory import max_concurrency, memory
from predictor.types import (
    Arrival,
    Deployment,
    Dtype,
    Kernels,
    Layout,
    Precision,
    SchedulerSettings,
    Speculation,
    StartMode,
    Workload,
)

# Anchor-defining facts: one value for all runs of an anchor.
SHARED = (
    "gpu",
    "engine",
    "engine_version",
    "tp",
    "ep",
    "attn_dp",
    "dcp",
    "pp",
    "replicas",
    "weight_dtype",
    "linear_dtype",
    "expert_dtype",
    "kv_dtype",
    "attention_backend",
    "moe_backend",
    "a2a_backend",
    "graph_mode",
    "spec_method",
    "spec_depth",
    "prefix_cache",
    "real_weights",
    "max_running",
    "token_budget",
    "chunk_size",
    "kv_pool_tokens",
)
NEEDED = ("gpu", "engine", "engine_version", "tp", "weight_dtype", "kv_dtype", "prefix_cache", "real_weights")
NEEDED_OF_MOE = ("ep", "attn_dp")


@dataclass(frozen=True, slots=True)
class Lookups:
    """How names become records; handed in, so that nothing here knows where they lie."""

    card: Callable[[str], ModelCard]
    platform: Callable[[str], Platform]
    engine: Callable[[str], EngineProfile]


@dataclass(frozen=True, slots=True)
class Setting:
    """One deployment, as far as its benchmark and its owner tell."""

    card: ModelCard
    platform: Platform
    profile: EngineProfile
    deployment: Deployment
    prefix_cache: str
    real_weights: bool
    kv_pool_tokens: int | None
    facts: Mapping[str, Fact]
    notes: tuple[str, ...] = ()

    @property
    def signature(self) -> Signature:
        """The anchor's signature."""
        wanted, kernels = self.deployment, self.deployment.kernels
        return checked(
            Signature,
            {
                "gpu": wanted.gpu,
                "engine": wanted.engine,
                "engine_version": wanted.engine_version,
                "model": wanted.model,
                "weight_dtype": wanted.precision.weight,
                "linear_dtype": wanted.precision.linear,
                "expert_dtype": wanted.precision.expert,
                "kv_dtype": wanted.precision.kv,
                "attention_backend": kernels.attention,
                "moe_backend": kernels.moe,
                "a2a_backend": kernels.a2a,
                "graph_mode": kernels.graph_mode,
                "spec_method": wanted.speculation.method,
                "spec_depth": wanted.speculation.depth,
                "tp": wanted.layout.tp,
                "ep": wanted.layout.ep,
                "attn_dp": wanted.layout.attn_dp,
                "dcp": wanted.layout.dcp,
            },
        )


def run_facts(run: BenchRun | StepRun, stated: Mapping[str, Fact]) -> dict[str, Fact]:
    """What is known of one run."""
    return merge(run.recorded, stated, run.origin)


def resolve(
    runs: Sequence[BenchRun | StepRun], stated: Mapping[str, Fact], find: Lookups, accepted_name: str | None = None
) -> Setting:
    """The deployment all runs share. Raises BadInput naming what is missing, contradicts or cannot be an anchor."""
    each = [(run.origin, run_facts(run, stated)) for run in runs]
    origin = each[0][0]
    names = {card_name(facts, lambda name: find.card(name).name, accepted_name, where) for where, facts in each}
    if len(names) > 1:
        raise BadInput(f"runs of one anchor are of different models: {', '.join(sorted(names))}; import them apart")
    card = find.card(str(each[0][1].get("model", next(iter(names)))))
    facts: dict[str, Fact] = {}
    for name in SHARED:
        value = one_value(name, [(where, known.get(name)) for where, known in each])
        if value is not None:
            facts[name] = value
    missing = [name for name in (*NEEDED, *(NEEDED_OF_MOE if card.moe else ())) if name not in facts]
    speculates = any(known.get("speculates") for _, known in each) or "spec_method" in facts
    if not speculates and any("speculates" not in known for _, known in each):
        missing.append("spec_method")
    if speculates and facts.get("spec_method") != "none":
        missing += [name for name in ("spec_method", "spec_depth") if name not in facts]
    if missing:
        raise ask(missing, origin)
    return _setting(card, facts, find, origin)


def _setting(card: ModelCard, facts: Mapping[str, Fact], find: Lookups, origin: str) -> Setting:
    if facts["prefix_cache"] == "on":
        raise BadInput(
            f"{origin}: prefix cache on: prompts were partly read from the cache, so neither prefill nor TTFT can be "
            "told; measure with it off, or say cold if no prompt shared a prefix with an earlier one"
        )
    if _whole(facts, "pp") > 1:
        raise BadInput(f"{origin}: pp {facts['pp']}: anchors are measured without pipeline stages; use a run with pp 1")
    platform, profile = find.platform(str(facts["gpu"])), find.engine(str(facts["engine"]))
    weight = Dtype(str(facts["weight_dtype"]))
    linear = Dtype(str(facts.get("linear_dtype", weight)))
    expert = Dtype(str(facts.get("expert_dtype", weight)))
    layout = Layout(
        tp=_whole(facts, "tp"), ep=_whole(facts, "ep"), attn_dp=_whole(facts, "attn_dp"), dcp=_whole(facts, "dcp")
    )
    deployment = Deployment(
        model=card.name,
        gpu=platform.name,
        engine=profile.name,
        engine_version=str(facts["engine_version"]),
        layout=layout,
        precision=Precision(weight, linear, expert, Dtype(str(facts["kv_dtype"]))),
        kernels=Kernels(
            attention=str(facts.get("attention_backend", "auto")),
            moe=str(facts.get("moe_backend", "auto")),
            a2a=str(facts.get("a2a_backend", "none")),
            graph_mode=str(facts.get("graph_mode", "full")),
        ),
        scheduler=SchedulerSettings(
            max_running=_maybe(facts, "max_running"),
            token_budget=_maybe(facts, "token_budget"),
            chunk_size=_maybe(facts, "chunk_size"),
            prefix_cache=facts["prefix_cache"] != "off",
        ),
        speculation=Speculation(str(facts.get("spec_method", "none")), int(facts.get("spec_depth", 0))),
        replicas=_whole(facts, "replicas"),
    )
    return _with_scheduler(
        Setting(
            card,
            platform,
            profile,
            deployment,
            str(facts["prefix_cache"]),
            bool(facts["real_weights"]),
            _maybe(facts, "kv_pool_tokens"),
            facts,
        ),
        origin,
    )


def _with_scheduler(setting: Setting, origin: str) -> Setting:
    """Check that the scheduler's limits are known: stated, or defaults of a release that has a table."""
    profile, wanted = setting.profile, setting.deployment
    if any(release.version == wanted.engine_version for release in profile.versions):
        return setting
    needed = ["max_running", "token_budget", *(["chunk_size"] if profile.name == "SGLang" else [])]
    missing = [name for name in needed if name not in setting.facts]
    if missing:
        flags = ", ".join(BY_NAME[name].flag for name in missing)
        known = ", ".join(release.version for release in profile.versions)
        raise BadInput(
            f"{origin}: the defaults of {profile.name} {wanted.engine_version} are not known (known: {known}): "
            f"give {flags}"
        )
    return setting


def known_version(setting: Setting) -> str:
    """The release whose scheduler rules apply: the stated one, or the newest where every limit was stated."""
    version = setting.deployment.engine_version
    return version if any(one.version == version for one in setting.profile.versions) else ""


def rules_of(setting: Setting) -> SchedulerRules:
    """Scheduler of one attention-DP rank."""
    wanted = setting.deployment
    version = known_version(setting)
    resolved = effective_settings(setting.profile, version, setting.platform, setting.card, wanted)
    limits = SchedulerSettings(
        max_running=wanted.scheduler.max_running or resolved.max_running,
        token_budget=wanted.scheduler.token_budget or resolved.token_budget,
        chunk_size=wanted.scheduler.chunk_size or (resolved.chunk_size if setting.profile.name == "SGLang" else None),
        block_size=resolved.block_size,
    )
    draft = wanted.speculation.depth if wanted.speculation.active else 0
    return scheduler_rules(setting.profile.name, version, limits, Replica(draft, wanted.layout.attn_dp))


def kv_blocks(
    setting: Setting, rules: SchedulerRules, tokens_per_request: int, ran_at_once: float
) -> tuple[int, str | None]:
    """KV blocks of one rank: from the stated pool, else from the memory model, which is said; and a note.

    What the runs themselves show to fit at once, fits.
    """
    if setting.kv_pool_tokens is not None:
        return max(1, setting.kv_pool_tokens // rules.block_tokens), None
    settings = effective_settings(
        setting.profile, known_version(setting), setting.platform, setting.card, setting.deployment
    )
    ranks = setting.deployment.layout.attn_dp
    a_request = -(-tokens_per_request // rules.block_tokens)
    shown = ceil(ran_at_once)
    try:
        # Window and state layers keep less of a request than the others: count requests, then blocks a whole one takes.
        breakdown = memory(setting.card, setting.platform, setting.deployment, settings)
        held = max_concurrency(breakdown, tokens_per_request, setting.deployment.layout) // ranks
    except DoesNotFit as error:
        if not shown:
            raise BadInput(f"KV pool not recorded, and by the memory model {error}: give --kv-pool-tokens") from None
        held = 0
    said = (
        f"KV pool not recorded (--kv-pool-tokens): {held} requests of {tokens_per_request} tokens by the memory model"
    )
    if shown > held:
        return shown * a_request, f"{said}, but {shown} ran at once: taken from the runs"
    return held * a_request, said


def with_length_ranges(runs: Sequence[BenchRun], stated: Mapping[str, Fact]) -> list[tuple[BenchRun, float]]:
    """Each run with the range its lengths were drawn on: recorded, stated, or pooled over runs of like mean length.

    A run of ten requests rarely meets both ends of the range, all loads together do.
    """
    paired = []
    for run in runs:
        facts = run_facts(run, stated)
        if "length_range" in facts:
            paired.append((run, float(facts["length_range"])))
            continue
        like = [
            other.prompt_range
            for other in runs
            if other.prompt_range is not None and _alike(other.mean_prompt_tokens, run.mean_prompt_tokens)
        ]
        if not like:
            raise ask(["length_range"], run.origin)
        paired.append((run, min(low for low, _ in like) / max(high for _, high in like)))
    return paired


def _alike(one: float | None, two: float | None) -> bool:
    return one is not None and two is not None and abs(one / two - 1.0) < 0.1


def load_workload(run: BenchRun, share: float, setting: Setting, stated: Mapping[str, Fact]) -> Workload:
    """What one scheduler of the deployment was sent; ``share`` is shortest over longest length."""
    facts = run_facts(run, stated)
    isl = _nominal(facts, "isl", run.mean_prompt_tokens, share, run.origin)
    osl = _nominal(facts, "osl", run.mean_output_tokens, share, run.origin)
    schedulers = setting.deployment.replicas * setting.deployment.layout.attn_dp
    requests = run.requests or int(facts.get("requests", 0))
    concurrency = run.concurrency or int(facts.get("concurrency", 0))
    if not requests:
        raise ask(["requests"], run.origin)
    if run.request_rate_per_s is not None:
        return Workload(
            isl,
            osl,
            concurrency=max(1, requests // schedulers),
            arrival=Arrival.POISSON if run.burstiness == 1.0 else Arrival.GAMMA,
            request_rate_per_s=run.request_rate_per_s / schedulers,
            burstiness=run.burstiness,
            length_range_frac=share,
            requests_per_client=1,
        )
    clients = max(1, round((concurrency or requests) / schedulers))
    return Workload(
        isl,
        osl,
        concurrency=clients,
        length_range_frac=share,
        requests_per_client=max(1, round(requests / schedulers / clients)),
        start=StartMode.BURST,
        seed=int(facts.get("seed", 0)),
    )


def _nominal(facts: Mapping[str, Fact], name: str, mean: float | None, share: float, origin: str) -> int:
    """Longest length drawn: stated, or from the mean of lengths drawn evenly up to it."""
    if name in facts:
        nominal = int(facts[name])
        expected = nominal * (1.0 + share) / 2.0
        if mean is not None and not 0.5 < mean / expected < 2.0:
            raise BadInput(
                f"{origin}: {name} {nominal} with length range {share:g} means {expected:.0f} tokens on average, "
                f"the file counts {mean:.0f}"
            )
        return nominal
    if mean is None:
        raise ask([name], origin)
    return max(1, round(2.0 * mean / (1.0 + share)))


def _whole(facts: Mapping[str, Fact], name: str) -> int:
    return int(facts.get(name, 1))


def _maybe(facts: Mapping[str, Fact], name: str) -> int | None:
    return int(facts[name]) if name in facts else None
