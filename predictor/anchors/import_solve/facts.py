"""What must be known of a deployment before its benchmark is an anchor, and where each fact came from.

A fact comes from a flag, from a side file, or from the benchmark file, in this order. A fact that nobody states is
asked for; two sources that disagree are an error. Nothing is filled in by a guess.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from predictor.anchors.import_formats.run import Fact
from predictor.errors import BadInput, UnknownName
from predictor.types import Dtype

Facts = Mapping[str, Fact]

PREFIX_CACHE = ("off", "cold", "on")


@dataclass(frozen=True, slots=True)
class FactSpec:
    """One fact: its flag, what it is, and how a value is read."""

    name: str
    what: str
    read: Callable[[str, Fact], Fact]

    @property
    def flag(self) -> str:
        """The command's flag."""
        return f"--{self.name.replace('_', '-')}"


def _text(name: str, value: Fact) -> Fact:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name} {value!r}: expected a name")
    return value.strip()


def _whole(name: str, value: Fact) -> Fact:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadInput(f"{name} {value!r}: expected a whole number")
    return value


def _positive(name: str, value: Fact) -> Fact:
    number = _whole(name, value)
    if number == 0:
        raise BadInput(f"{name} {value!r}: must be at least 1")
    return number


def _share(name: str, value: Fact) -> Fact:
    try:
        share = float(value)
    except ValueError:
        raise BadInput(f"{name} {value!r}: expected a number above 0 and at most 1") from None
    if not 0.0 < share <= 1.0:
        raise BadInput(f"{name} {value!r}: must be above 0 and at most 1")
    return share


_DTYPE_NAMES = {"mxfp4": Dtype.FP4, "nvfp4": Dtype.FP4, "bfloat16": Dtype.BF16, "float16": Dtype.BF16}


def _dtype(name: str, value: Fact) -> Fact:
    text = str(value).lower()
    try:
        return str(_DTYPE_NAMES.get(text) or Dtype(text))
    except ValueError:
        raise BadInput(f"{name} {value!r}: must be one of {', '.join(Dtype)}") from None


def _one_of(*legal: str) -> Callable[[str, Fact], Fact]:
    def read(name: str, value: Fact) -> Fact:
        if value not in legal:
            raise BadInput(f"{name} {value!r}: must be one of {', '.join(legal)}")
        return value

    return read


def _yes_no(name: str, value: Fact) -> Fact:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if not isinstance(value, bool):
        raise BadInput(f"{name} {value!r}: must be true or false")
    return value


SPECS: tuple[FactSpec, ...] = (
    FactSpec("gpu", "GPU type, such as H200", _text),
    FactSpec("engine", "vllm, sglang, atom or trtllm", _text),
    FactSpec("engine_version", "engine release or image tag", _text),
    FactSpec("model", "model card, name or config.json", _text),
    FactSpec("tp", "tensor-parallel width", _positive),
    FactSpec("ep", "expert-parallel width (1: none)", _positive),
    FactSpec("attn_dp", "attention data-parallel ranks (1: none)", _positive),
    FactSpec("dcp", "decode context-parallel width", _positive),
    FactSpec("pp", "pipeline stages", _positive),
    FactSpec("replicas", "replicas behind a router", _positive),
    FactSpec("weight_dtype", "bf16, fp8 or fp4", _dtype),
    FactSpec("linear_dtype", "bf16, fp8 or fp4; the weights' if left out", _dtype),
    FactSpec("expert_dtype", "bf16, fp8 or fp4; the weights' if left out", _dtype),
    FactSpec("kv_dtype", "bf16, fp8 or fp4", _dtype),
    FactSpec("attention_backend", "attention backend where it was set", _text),
    FactSpec("moe_backend", "MoE backend where it was set", _text),
    FactSpec("a2a_backend", "all-to-all backend where it was set", _text),
    FactSpec("graph_mode", "none, piecewise or full", _one_of("none", "piecewise", "full")),
    FactSpec("spec_method", "none, mtp, eagle3, dspark or ngram", _text),
    FactSpec("spec_depth", "draft tokens a step", _whole),
    FactSpec("prefix_cache", "off, cold (on, but no prompt repeats another) or on", _one_of(*PREFIX_CACHE)),
    FactSpec("real_weights", "whether the weights were real", _yes_no),
    FactSpec("isl", "longest prompt drawn, tokens", _positive),
    FactSpec("osl", "longest answer drawn, tokens", _positive),
    FactSpec("length_range", "shortest over longest length drawn (1: fixed)", _share),
    FactSpec("requests", "requests sent in a run", _positive),
    FactSpec("concurrency", "clients of a run", _positive),
    FactSpec("max_running", "cap on running requests", _positive),
    FactSpec("token_budget", "tokens a step", _positive),
    FactSpec("chunk_size", "prompt tokens of one chunk", _positive),
    FactSpec("kv_pool_tokens", "KV pool of a GPU, tokens", _positive),
    FactSpec("model_name", "what a file calls its model", _text),
    FactSpec("speculates", "whether the run speculated", _yes_no),
)
BY_NAME = {spec.name: spec for spec in SPECS}
# Facts a user may state; the other two are read off files only.
STATED = tuple(spec for spec in SPECS if spec.name not in ("model_name", "speculates"))


class ModelNameDiffers(BadInput):
    """A file calls its model otherwise than the card the user named: only the user knows whether they are the same."""

    def __init__(self, origin: str, written: str, wanted: str) -> None:
        super().__init__(
            f"{origin}: its model is {written!r}, --model says {wanted}: if they are the same weights, confirm with "
            f"--accept-model-name {written!r}"
        )
        self.origin, self.written, self.wanted = origin, written, wanted


def read_facts(given: Facts, origin: str) -> dict[str, Fact]:
    """Check names and values of stated facts; ``origin`` (a flag set or a file) leads the error."""
    found: dict[str, Fact] = {}
    for name, value in given.items():
        key = name.replace("-", "_")
        if key not in BY_NAME:
            near = get_close_matches(key, [spec.name for spec in STATED], n=1)
            raise BadInput(f"{origin}: unknown fact {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        found[key] = BY_NAME[key].read(f"{origin}: {key}", value)
    return found


def merge(recorded: Facts, stated: Facts, origin: str) -> dict[str, Fact]:
    """Facts of one run: what was stated wins, but may not contradict what the file records."""
    merged = read_facts(recorded, origin)
    for name, value in stated.items():
        if name in merged and name not in ("model", "gpu", "engine") and merged[name] != value:
            raise BadInput(
                f"{origin}: records {name} {merged[name]}, {BY_NAME[name].flag} says {value}: "
                "one of them is of another run"
            )
        merged[name] = value
    return merged


def one_value(name: str, values: Sequence[tuple[str, Fact | None]]) -> Fact | None:
    """The value all runs share; runs that differ in it do not belong in one anchor."""
    seen: dict[Fact | None, str] = {}
    for origin, value in values:
        seen.setdefault(value, origin)
    if len(seen) > 1:
        listed = ", ".join(
            f"{value if value is not None else 'not recorded'} ({origin})" for value, origin in seen.items()
        )
        raise BadInput(
            f"runs of one anchor differ in {name}: {listed}; import them apart or state {BY_NAME[name].flag}"
        )
    return next(iter(seen), None)


def ask(missing: Sequence[str], origin: str) -> BadInput:
    """One line naming every fact that is not recorded and its flag."""
    names = [BY_NAME[name] for name in missing]
    flags = ", ".join(f"{spec.flag} ({spec.what})" for spec in names)
    return BadInput(
        f"{origin}: does not record {', '.join(spec.name for spec in names)}: give {flags} or --facts FILE.toml"
    )


def card_name(facts: Facts, find: Callable[[str], str], accepted: str | None, origin: str) -> str:
    """The model card a run is of: what was stated, checked against what the file calls its model.

    ``find`` gives the card's name for a name or id. ``accepted`` is the file's own name where the user has confirmed
    that it means the stated model.
    """
    stated, written = facts.get("model"), facts.get("model_name")
    resolved = None
    if written is not None:
        try:
            resolved = find(str(written))
        except UnknownName:
            resolved = None
    if stated is None:
        if written is None:
            raise ask(["model"], origin)
        if resolved is None:
            raise BadInput(f"{origin}: its model is {str(written)!r}, which no card is called: give --model CARD")
        return resolved
    wanted = find(str(stated))
    if written is None or resolved == wanted or accepted == written:
        return wanted
    raise ModelNameDiffers(origin, str(written), wanted)
