"""A whole harvest: engine up, facts read, sweeps, fit, checks, artefact, engine down."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agent.bench.prompts import PromptSource
from agent.harvest import checks
from agent.harvest.artefact import Measured, artefact, verdicts
from agent.harvest.engine import read_log, running
from agent.harvest.facts import EngineFacts, check_model, endpoint_of, read_endpoint, read_start_log
from agent.harvest.idle import Idle, check_idle
from agent.harvest.request import HarvestRefused, Prepared, state_folder_of
from agent.harvest.state import Kept
from agent.harvest.sweeps import PrefillMeasurement, Session, cache_probe, decode_sweep, packed_probe, prefill_sweep
from predictor.anchors.fit import PrefillFit, fit_prefill
from predictor.anchors.schema import Anchor, Check
from predictor.errors import BadInput
from predictor.profiles.loader import model_card

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Harvested:
    """The artefact and every check."""

    anchor: Anchor
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    kept: Kept  # measurements on disk: to be forgotten once the artefact is saved

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that marked it."""
        return tuple(check for check in self.checks if not check.passed)


def harvest(prepared: Prepared, say: Say, idle: Callable[[bool], Idle] = check_idle) -> Harvested:
    """Run it. Raises EngineFailed or EndpointFailed (measurements are kept, run again to resume) or HarvestRefused."""
    request = prepared.request
    found = idle(prepared.command is None)
    if not found.idle and not request.even_busy:
        raise BadInput(f"not idle: {found.detail}; stop the other job, or pass --even-busy, which marks the anchor")
    with _engine(prepared, say) as url:
        facts = read_endpoint(url)
        check_model(facts.model, request.card, model_card)
        log_text = read_log(prepared.command.log) if prepared.command is not None else ""
        facts = _with_log(facts, log_text)
        session = _session(prepared, facts, url, say)
        try:
            measured = _measure(session)
        except KeyboardInterrupt:
            say(f"interrupted: {len(session.kept.rows)} measurements kept in {session.kept.path}; run again to resume")
            raise
    given = verdicts(prepared, facts, measured, found)
    refused = [check for check in given if not check.passed and check.name in checks.REFUSING]
    if refused:
        session.kept.forget()
        raise HarvestRefused("no artefact: " + "; ".join(f"{check.name}: {check.detail}" for check in refused))
    anchor = artefact(prepared, facts, measured, given, tuple(session.skipped))
    return Harvested(anchor, given, tuple(session.skipped), session.kept)


@contextmanager
def _engine(prepared: Prepared, say: Say) -> Iterator[str]:
    """The endpoint's address, with an engine behind it that ends with the block where one was started."""
    if prepared.command is None:
        yield prepared.request.url or ""
        return
    with running(prepared.command, say):
        yield prepared.command.url


def _with_log(facts: EngineFacts, text: str) -> EngineFacts:
    """What the start log tells wins over what was not asked for: pool, limits, graph sizes, dummy weights."""
    log = read_start_log(text)
    if log.pool is not None:
        facts = replace(
            facts,
            kv_pool_tokens=log.pool.tokens or facts.kv_pool_tokens,
            token_budget=log.pool.budget_tokens or facts.token_budget,
            max_running=log.pool.max_running or facts.max_running,
        )
    sizes = facts.capture_sizes if log.capture_sizes is None else log.capture_sizes
    return replace(facts, capture_sizes=sizes, dummy_weights=log.dummy_weights or facts.dummy_weights)


def _session(prepared: Prepared, facts: EngineFacts, url: str, say: Say) -> Session:
    request = prepared.request
    signature = f"{request.deployment} {facts.version} {facts.model}"
    kept = Kept.open(state_folder_of(request), prepared.plan.key(signature))
    if kept.rows:
        say(f"resuming: {len(kept.rows)} measurements of an interrupted harvest are kept")
    endpoint = endpoint_of(url, facts, request.profile.name, request.timeout_s, request.token_ids)
    # Each start of an interrupted harvest sends other prompts, so that none of them can be cached from the one before.
    prompts = PromptSource(request.seed + 1000 * len(kept.rows), request.card.vocab, request.token_ids)
    longest = min(request.card.max_context_tokens, facts.max_model_len or request.card.max_context_tokens)
    over = [tokens for tokens in prepared.plan.prefill_tokens if tokens + 2 > longest]
    plan = prepared.plan
    if over:
        plan = replace(plan, prefill_tokens=tuple(t for t in plan.prefill_tokens if t not in over))
        say(f"prompts of {', '.join(map(str, over))} tokens left out: the engine holds {longest}")
    return Session(endpoint, prompts, plan, kept, say, longest)


def _measure(session: Session) -> Measured:
    """All sweeps; the short ones first, so that a wrong setting shows early."""
    prefill = prefill_sweep(session)
    if not prefill:
        raise BadInput("no prompt length fits the engine's context")
    probe = cache_probe(session)
    packed = packed_probe(session)
    decode = decode_sweep(session)
    if not decode:
        raise HarvestRefused(f"no batch could be measured: {'; '.join(session.skipped)}")
    return Measured(tuple(decode), tuple(prefill), packed, probe, _fitted(prefill))


def _fitted(prefill: Sequence[PrefillMeasurement]) -> PrefillFit:
    """The fit; where noise leaves only a quadratic term, the line through the same points."""
    lengths = [one.counted_tokens or one.tokens for one in prefill]
    times = [one.ttft_ms for one in prefill]
    fit = fit_prefill(lengths, times)
    if fit.per_token_ms <= 0.0:
        fit = fit_prefill(lengths, times, quadratic=False)
    if fit.per_token_ms <= 0.0:
        raise HarvestRefused(
            f"no artefact: prompts of {lengths[0]} to {lengths[-1]} tokens take {times[0]:.1f} to {times[-1]:.1f} ms, "
            "which tells no cost a token: use longer --prompt-tokens"
        )
    return fit
