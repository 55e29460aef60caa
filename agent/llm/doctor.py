"""``inferasim doctor``: is everything there that a search needs, and if not, what to do about it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent.anchor_files import bundled_anchors, cache_folder, read_anchor
from agent.tune import default_ledger
from ledger import open_ledger
from ledger.errors import LedgerError
from predictor.anchors.schema import Anchor
from predictor.errors import InferaSimError
from predictor.profiles.loader import engine_names, engine_profile, model_card, model_names, platform, platform_names

Status = Literal["ok", "off", "failed"]
FIXES = {  # what to do about a failure of the language model, by code
    "llm_not_configured": "set INFERASIM_LLM_MODEL to provider/model, such as openai/NAME, and INFERASIM_LLM_API_BASE "
    "for a server of your own; or go on with --seed-only",
    "llm_auth": "set the provider's key, in INFERASIM_LLM_API_KEY or in its own variable such as OPENAI_API_KEY",
    "llm_unreachable": "check INFERASIM_LLM_API_BASE and that the server is up",
    "llm_server_error": "check INFERASIM_LLM_API_BASE and that the server is up; its own log says more",
    "llm_timeout": "raise INFERASIM_LLM_TIMEOUT_S, or use a faster model",
    "llm_rate_limited": "wait, or raise INFERASIM_LLM_ATTEMPTS and INFERASIM_LLM_RETRY_WAIT_S",
    "llm_refused": "check the model's name; INFERASIM_LLM_RESPONSE_SCHEMA=off helps servers that take no JSON schema",
    "llm_context_exceeded": "set INFERASIM_LLM_CONTEXT_TOKENS to what the server holds, 8192 at least",
    "llm_unreadable": "the model does not answer in JSON; INFERASIM_LLM_RESPONSE_SCHEMA=on makes many servers enforce",
}
OTHER_FIX = "raise the cap that the message names, or see docs/agent.md"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, how it is, and how to mend it."""

    name: str
    status: Status
    message: str
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        """As ``doctor --json`` prints it."""
        return {"name": self.name, "status": self.status, "message": self.message, "fix": self.fix}


def examine(model: str | None = None, ledger: str | None = None, *, ask_llm: bool = True) -> list[Check]:
    """Every check, in order; none stops the others."""
    checks = [
        _guarded("catalogue", lambda: _catalogue(model)),
        *_anchors(model),
        _guarded("ledger", lambda: _ledger(ledger)),
    ]
    return [*checks, *_language_model(ask_llm)]


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    """An expected error is a finding."""
    try:
        return look()
    except (InferaSimError, LedgerError) as error:
        return Check(name, "failed", str(error), "see the message: it names what is wrong and what is legal")


def _catalogue(model: str | None) -> Check:
    for name in model_names():
        model_card(name)
    for name in platform_names():
        platform(name)
    for name in engine_names():
        engine_profile(name)
    counts = f"{len(model_names())} models, {len(platform_names())} GPUs, {len(engine_names())} engines"
    if model is None:
        return Check("catalogue", "ok", counts)
    card = model_card(model)
    return Check("catalogue", "ok", f"{card.name}: {card.layers} layers, from {card.source}; {counts}")


def _anchors(model: str | None) -> Iterator[Check]:
    """Bundled anchors, and each file of the user's folder."""
    found: list[Anchor] = list(bundled_anchors())
    folder = cache_folder()
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            found.append(read_anchor(file))
        except InferaSimError as error:
            yield Check(
                "anchors", "failed", str(error), f"mend or remove {file.name}; `inferasim anchors check` explains"
            )
    if model is None:
        yield Check("anchors", "ok", f"{len(found)} anchors on hand; your folder is {folder}")
        return
    try:
        name = model_card(model).name
    except InferaSimError:
        return  # the catalogue's check says it
    mine = [anchor.name for anchor in found if anchor.signature.model == name]
    if mine:
        yield Check("anchors", "ok", f"{name}: {', '.join(mine)}")
    else:
        yield Check(
            "anchors", "off", f"none of {name}: predictions are simulated, for ranking only",
            f"import a benchmark with `inferasim anchors import`, or put an anchor into {folder}",
        )  # fmt: skip


def _ledger(url: str | None) -> Check:
    place = url or default_ledger()
    try:
        with open_ledger(place) as book:
            count = len(book.searches())
            return Check("ledger", "ok", f"{book.label}: writable, {count} searches")
    except LedgerError as error:
        return Check("ledger", "failed", str(error), "name another with --ledger or INFERASIM_LEDGER, or mend this one")


def _language_model(ask: bool) -> Iterator[Check]:
    """Settings, then one small question through the whole chain."""
    from agent.llm.settings import config_file, load_settings

    try:
        settings = load_settings()
        source = config_file()
    except InferaSimError as error:
        yield Check("language model", "failed", str(error), "correct the setting that the message names")
        return
    if not settings.configured:
        yield Check("language model", "off", "none is set: searches use the seeds alone", FIXES["llm_not_configured"])
        return
    where = f", settings from {Path(source)}" if source else ""
    if not ask:
        yield Check("language model", "ok", f"{settings.model}{where}; not asked")
        return
    yield _ask(settings, where)


def _ask(settings: Any, where: str) -> Check:
    from agent.llm.failures import LlmFailure
    from agent.llm.lm import Backbone
    from agent.llm.session import open_session

    try:
        session = open_session(settings)
        if isinstance(session.backbone, LlmFailure):
            raise session.backbone
        backbone: Backbone = session.backbone
        question = '"Is the serving simulator ready? Answer with one word."'
        backbone.ask("doctor", session.program.asking, question=question, context='"{}"')
    except LlmFailure as failure:
        return Check(
            "language model", "failed", f"{failure.code}: {failure.message}", FIXES.get(failure.code, OTHER_FIX)
        )
    except InferaSimError as error:
        return Check("language model", "failed", str(error), "correct the setting that the message names")
    usage = backbone.usage
    price = "price unknown: set INFERASIM_LLM_USD_PER_M_INPUT and …_OUTPUT to keep a cap on money"
    cost = price if usage.unpriced_calls else f"${usage.cost_usd:.6f}"
    schema = "refused, JSON mode instead" if backbone.schema_refused else settings.response_schema
    return Check(
        "language model",
        "ok",
        f"{settings.model} answered in {usage.wall_s:.1f} s, {usage.tokens} tokens, {cost}; context "
        f"{backbone.context_tokens} tokens, counted by {backbone.counted_by}, JSON schema {schema}{where}",
    )
