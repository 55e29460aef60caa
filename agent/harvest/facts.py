"""What an endpoint says about itself: model, release, limits, cache, weights."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from agent.bench.client import Endpoint
from agent.bench.metrics import parse_metrics
from agent.failures import EndpointFailed
from predictor.anchors.import_formats.run import Fact
from predictor.anchors.import_formats.sglang import server_facts
from predictor.cards import ModelCard
from predictor.errors import BadFile, BadInput, InferaSimError
from predictor.pool_logs import PoolLog, read_pool_log

# vLLM prints its whole configuration, SGLang what it captures; a list that is cut with dots tells nothing.
_GRAPH_SIZES = re.compile(r"(?:cudagraph_capture_sizes['\"]?\s*:\s*|Capture cuda graph bs )\[([\d, ]*)\]")
_DUMMY = re.compile(r"load[-_]format['\"]?\s*[=:, ]+\s*['\"]?dummy", re.I)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What was read; None where nothing tells."""

    model: str
    version: str | None = None
    max_model_len: int | None = None
    prefix_cache_on: bool | None = None
    dummy_weights: bool | None = None
    kv_pool_tokens: int | None = None
    token_budget: int | None = None
    max_running: int | None = None
    capture_sizes: tuple[int, ...] | None = None
    counters: bool = False  # whether the server counts time between tokens
    recorded: Mapping[str, Fact] = field(default_factory=dict)


def read_endpoint(url: str, timeout_s: float = 10.0) -> EngineFacts:
    """Ask ``/v1/models``, ``/version``, ``/server_info`` and ``/metrics``; the first must answer."""
    base = url.rstrip("/").removesuffix("/v1")
    with httpx.Client(timeout=timeout_s, trust_env=False) as client:
        models = _json(client, f"{base}/v1/models")
        listed = models.get("data") if isinstance(models, Mapping) else None
        if not listed:
            raise EndpointFailed(f"{url}: /v1/models names no model: is an OpenAI-compatible engine listening there?")
        info = _json(client, f"{base}/server_info")
        recorded = server_facts(info) if isinstance(info, Mapping) and "tp_size" in info else {}
        version = _json(client, f"{base}/version")
        counters = parse_metrics(_text(client, f"{base}/metrics") or "")
    first = listed[0]
    config = counters.config or {}
    cache = config.get("enable_prefix_caching")
    on = None if cache is None else cache.lower() == "true"
    if recorded.get("prefix_cache") == "off":
        on = False
    stated = version.get("version") if isinstance(version, Mapping) else None
    weights = recorded.get("real_weights")
    pool = recorded.get("kv_pool_tokens") or config.get("kv_cache_size_tokens")
    return EngineFacts(
        model=str(first.get("id")),
        version=str(stated or recorded.get("engine_version") or "") or None,
        max_model_len=_whole(first.get("max_model_len")),
        prefix_cache_on=on,
        dummy_weights=None if weights is None else not weights,
        kv_pool_tokens=_whole(pool),
        token_budget=_whole(recorded.get("token_budget")),
        max_running=_whole(recorded.get("max_running")),
        counters=counters.token_count is not None,
        recorded=recorded,
    )


def check_model(served: str, card: ModelCard, find: Callable[[str], ModelCard]) -> None:
    """Refuse an endpoint or a file that names another known model; a name no card has says nothing.

    ``find`` gives the card of a name.
    """
    try:
        other = find(served)
    except InferaSimError:
        return
    if other.name != card.name:
        raise BadInput(f"model {served!r} is {other.name}, {card.name} was asked for: another endpoint or file?")


def endpoint_of(url: str, facts: EngineFacts, engine: str, timeout_s: float, token_ids: bool = True) -> Endpoint:
    """Where to send: vLLM returns token ids when asked."""
    base = url.rstrip("/").removesuffix("/v1")
    return Endpoint(base, facts.model, timeout_s, token_ids, counts_ids=engine == "vLLM")


@dataclass(frozen=True, slots=True)
class StartLog:
    """What an engine printed at its start; None where it did not."""

    pool: PoolLog | None = None
    capture_sizes: tuple[int, ...] | None = None
    dummy_weights: bool | None = None


def read_start_log(text: str) -> StartLog:
    """Pool and effective limits, captured graph sizes, and whether the weights are dummies.

    >>> read_start_log("INFO Capture cuda graph bs [1, 2, 4]").capture_sizes
    (1, 2, 4)
    """
    try:
        pool = read_pool_log(text)
    except BadFile:
        pool = None
    sizes = _GRAPH_SIZES.findall(text)
    captured = tuple(sorted(int(size) for size in sizes[-1].split(",") if size.strip())) if sizes else None
    return StartLog(pool, captured, True if _DUMMY.search(text) else None)


def _json(client: httpx.Client, url: str) -> Any:
    try:
        response = client.get(url)
    except httpx.HTTPError as error:
        if url.endswith("/v1/models"):
            raise EndpointFailed(f"{url}: not reachable ({error or type(error).__name__})") from None
        return {}
    if response.status_code != httpx.codes.OK:
        if url.endswith("/v1/models"):
            raise EndpointFailed(f"{url}: HTTP {response.status_code}: no OpenAI-compatible engine answers there")
        return {}
    try:
        return response.json()
    except ValueError:
        return {}


def _text(client: httpx.Client, url: str) -> str | None:
    try:
        response = client.get(url)
    except httpx.HTTPError:
        return None
    return response.text if response.status_code == httpx.codes.OK else None


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isdigit() and int(value) > 0 else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
