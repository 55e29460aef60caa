"""What each model and tier has to serve: users at once, or output tokens a second."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent.tiers import Tier
from predictor.errors import BadInput, unknown_name

_FORM = re.compile(r"(?P<model>.+):(?P<tier>[^:=]+)=(?P<amount>[0-9.]+)(?P<unit>tok/s)?")


@dataclass(frozen=True, slots=True)
class Demand:
    """One slot's load; ``tok_s`` counts output tokens."""

    model: str
    tier: str
    users: float = 0.0
    tok_s: float = 0.0


def parse_demands(texts: Sequence[str], models: Sequence[str], tiers: Sequence[Tier]) -> tuple[Demand, ...]:
    """Read ``MODEL:TIER=USERS`` or ``MODEL:TIER=NUMBERtok/s``, each slot once."""
    found = tuple(_parse(text, models, tiers) for text in texts)
    slots = [(one.model, one.tier) for one in found]
    for slot in slots:
        if slots.count(slot) > 1:
            raise BadInput(f"demand {':'.join(slot)}: given twice")
    return found


def _parse(text: str, models: Sequence[str], tiers: Sequence[Tier]) -> Demand:
    match = _FORM.fullmatch(text.strip())
    if match is None or not _number(match["amount"]):
        raise BadInput(f"demand {text!r}: write MODEL:TIER=USERS or MODEL:TIER=NUMBERtok/s, such as GLM-5.2:bulk=200")
    names = {model.lower(): model for model in models}
    model = names.get(match["model"].lower())
    if model is None:
        raise unknown_name("demand's model", match["model"], models)
    if match["tier"] not in [tier.name for tier in tiers]:
        raise unknown_name("demand's tier", match["tier"], [tier.name for tier in tiers])
    amount = float(match["amount"])
    return Demand(model, match["tier"], tok_s=amount) if match["unit"] else Demand(model, match["tier"], users=amount)


def _number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
