"""Latency tiers: classes of users, each with a least token rate and a longest wait for the first token, as data."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from predictor.errors import BadFile, BadInput


class Tier(BaseModel):
    """One class of users; a limit that is left out does not bind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1)]
    min_tok_s_user: Annotated[float, Field(ge=0)] = 0.0
    max_ttft_ms: Annotated[float, Field(gt=0)] | None = None

    def meets(self, tok_s_user: float, ttft_ms: float, ttft_share: float = 1.0) -> bool:
        """Whether a deployment serves the tier; ``ttft_share`` of the limit counts, for a planner that leaves room.

        >>> Tier(name="fast", min_tok_s_user=70.0, max_ttft_ms=2500.0).meets(80.0, 1500.0, ttft_share=0.5)
        False
        """
        return self.shortfall(tok_s_user, ttft_ms, ttft_share) == 0.0

    def shortfall(self, tok_s_user: float, ttft_ms: float, ttft_share: float = 1.0) -> float:
        """Sum of relative misses; 0 where the tier is met."""
        rate = max(0.0, 1.0 - tok_s_user / self.min_tok_s_user) if self.min_tok_s_user else 0.0
        limit = self.ttft_limit_ms(ttft_share)
        return rate + max(0.0, ttft_ms / limit - 1.0)

    def headroom(self, tok_s_user: float, ttft_ms: float, ttft_share: float = 1.0) -> float:
        """How far the nearer of the two limits is, as a factor; infinite without limits.

        >>> Tier(name="fast", min_tok_s_user=50.0, max_ttft_ms=2000.0).headroom(100.0, 500.0)
        2.0
        """
        rate = tok_s_user / self.min_tok_s_user if self.min_tok_s_user else inf
        return min(rate, self.ttft_limit_ms(ttft_share) / ttft_ms)

    def ttft_limit_ms(self, share: float = 1.0) -> float:
        """Longest TTFT, ms."""
        return inf if self.max_ttft_ms is None else self.max_ttft_ms * share


class _TierFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tier: Annotated[list[Tier], Field(min_length=1)]


def read_tiers(path: str | None = None) -> tuple[Tier, ...]:
    """Tiers of an operator's TOML file, or the four that come with the tool, in the file's order."""
    if path is None:
        return _parsed(files("agent").joinpath("tiers.toml").read_text(encoding="utf-8"), "tiers.toml")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"tiers {path!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return _parsed(text, path)


def _parsed(text: str, name: str) -> tuple[Tier, ...]:
    try:
        tiers = _TierFile.model_validate(tomllib.loads(text)).tier
    except tomllib.TOMLDecodeError as error:
        raise BadFile(f"{name}: not readable as TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadFile(f"{name}: {where}: {first['msg']}") from None
    twice = repeated(tiers)
    if twice:
        raise BadFile(f"{name}: tier names must differ: {twice}")
    return tuple(tiers)


def repeated(tiers: Sequence[Tier]) -> str:
    """The names, where one stands twice; else nothing."""
    names = [tier.name for tier in tiers]
    return ", ".join(names) if len(set(names)) < len(names) else ""


def given_tiers(values: Sequence[Mapping[str, object]] | None) -> tuple[Tier, ...]:
    """Tiers a request holds, or the four that come with the tool."""
    if values is None:
        return read_tiers()
    tiers = tuple(Tier.model_validate(one) for one in values)
    twice = repeated(tiers)
    if twice:
        raise BadInput(f"tiers: names must differ: {twice}")
    return tiers
