"""An expert as a script, behind the scripted server: it plans by rules of thumb and climbs by what it observes.

It knows no task's answer. Its plan couples levers that belong together, as serving engineers do; its steps vary one or
two levers around the best configuration it was told, nearest values first, and never repeat a proposal.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from evals.scripted_llm import Policy, Reply

Json = dict[str, Any]
LONG_PROMPT = 4  # prompt tokens an answer token from which a request is mostly prompt, by rule of thumb
FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]\n(.*?)(?=\n\n\[\[ ## |\n\nRespond )", re.DOTALL)


def expert() -> Policy:
    """A policy with a memory of what it proposed; one for each search."""
    tried: set[str] = set()
    notes = 0

    def reply(body: Mapping[str, Any]) -> Reply:
        nonlocal notes
        text = str(body["messages"][-1]["content"])
        fields = dict(FIELD.findall(text))
        if "`rationale`" in text:
            tried.clear()
            return _plan(_Problem(fields), tried)
        if "`next_tool_name`" not in text:
            return {"summary": "see the trials", "worked": "levers moved together", "follow_ups": "measure the best"}
        evaluated = fields["trajectory"].count('"tool":"evaluate"')
        if evaluated // 4 > notes:
            notes += 1
            return _step("write_note", f"note {notes}", {"text": f"after {evaluated} tries the best is kept"})
        problem = _Problem(fields)
        partial = next((one for one in problem.neighbours() if _key(one) not in tried), None)
        if partial is None:
            return _step("finish", "every neighbour of the best was tried", {})
        tried.add(_key(partial))
        return _step("evaluate", "vary what decides the objective around the best", {"changes": _changes(partial)})

    return reply


def _plan(problem: "_Problem", tried: set[str]) -> Json:
    partials: list[Json] = []
    for one in problem.rules_of_thumb():
        if _key(one) not in tried and len(partials) < 8:
            tried.add(_key(one))
            partials.append(one)
    return {
        "rationale": "Couple width, copies and batch: each alone only moves the bottleneck.",
        "hypotheses": [
            "the whole cluster at the right width beats a wide group",
            "drafts pay once the batch suits them",
            "separate pools pay when both have copies",
        ],
        "configurations": [{"hypothesis": 1, "changes": _changes(one)} for one in partials],
        "polish": "neighbours of the best, two levers at a time",
    }


def _changes(partial: Mapping[str, Any]) -> list[Json]:
    return [{"lever": name, "value": "default" if value is None else str(value)} for name, value in partial.items()]


def _step(tool: str, thought: str, arguments: Json) -> Json:
    return {"next_thought": thought, "next_tool_name": tool, "next_tool_args": arguments}


def _key(partial: Mapping[str, Any]) -> str:
    return json.dumps(dict(sorted(partial.items())), default=str)


class _Problem:
    """The five inputs as an expert reads them."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        read = {name: json.loads(fields[name]) for name in ("architecture", "cluster", "levers", "objective", "trials")}
        self.levers: dict[str, list[Any]] = {
            name: entry["values"] if isinstance(entry, dict) and "values" in entry else entry
            for name, entry in read["levers"]["open"].items()
            if not (isinstance(entry, dict) and "any_of" in entry)
        }
        self.gpus: int = read["cluster"]["gpus_per_node"] * read["cluster"]["nodes"]
        traffic = read["objective"]["traffic"]
        self.clients: int = traffic["clients"]
        self.prompt_tokens: int = traffic["input_tokens"]
        self.answer_tokens: int = traffic["output_tokens"]
        self.attention: str = read["architecture"]["attention"]
        self.fixed: dict[str, Any] = read["levers"]["fixed"]
        best = _best(read["trials"], fields.get("trajectory", ""), read["objective"]["direction"] == "max")
        self.best: Json = best or {}

    def rules_of_thumb(self) -> Iterator[Json]:
        """Combinations an engineer tries first."""
        widths = [tp for tp in self.levers.get("tp", []) if self.gpus % tp == 0]
        yield from self._pools(widths)
        yield from self._one_wide_decoder(widths)
        yield from self._latent_attention()
        yield from self._drafts()
        yield from self._cache(widths)
        yield from self._copies(widths)

    def _copies(self, widths: list[int]) -> Iterator[Json]:
        """The whole cluster as copies of each width, with a short and a long step."""
        for tp in reversed(widths):
            copies = self.gpus // tp
            if "replicas" in self.levers and copies > 1:
                for budget in [one for one in self.levers.get("token_budget", []) if one in (2048, 8192)] or [0]:
                    yield {"tp": tp, "replicas": copies, **({"token_budget": budget} if budget else {})}

    def _pools(self, widths: list[int]) -> Iterator[Json]:
        """Half of the cluster for prefill, half for decode, at each width."""
        for handoff in [one for one in self.levers.get("disagg", []) if one != "off"][-1:]:
            for tp in widths:
                copies = self.gpus // 2 // tp
                if copies >= 1:
                    yield {
                        "disagg": handoff,
                        "tp": tp,
                        "prefill_tp": tp,
                        "replicas": copies,
                        "prefill_replicas": copies,
                    }

    def _one_wide_decoder(self, widths: list[int]) -> Iterator[Json]:
        """Long prompts: as many GPUs for prefill as for decode, but decode wide, for its latency, and prefill narrow.

        A prompt fills even one GPU's arithmetic, so width only adds its collectives; a decode step is weights read.
        """
        if self.prompt_tokens < LONG_PROMPT * self.answer_tokens:
            return
        for handoff in [one for one in self.levers.get("disagg", []) if one != "off"][:1]:
            for tp in reversed(widths):
                if 1 < tp <= self.gpus // 2:
                    narrow = min(widths)
                    yield {"disagg": handoff, "tp": tp, "prefill_tp": narrow, "prefill_replicas": tp // narrow}

    def _latent_attention(self) -> Iterator[Json]:
        """Latent attention: a rank of its own requests for every GPU, with shallow drafts."""
        if self.attention != "mla" or "attn_dp" not in self.levers:
            return
        for ranks in self.levers["attn_dp"][-1:]:
            yield {"attn_dp": ranks}
            yield from ({"attn_dp": ranks, **draft} for draft in self._draft_settings((1, 2, 3)))

    def _drafts(self) -> Iterator[Json]:
        """Deep drafts on a capped batch."""
        caps = [cap for cap in self.levers.get("max_running", []) if isinstance(cap, int) and cap < self.clients]
        for draft in self._draft_settings((8, 5)):
            yield from ({**draft, "max_running": cap} for cap in sorted(caps)[-3:])

    def _draft_settings(self, depths: tuple[int, ...]) -> Iterator[Json]:
        methods = [one for one in self.levers.get("spec_method", []) if one not in ("none", "ngram")]
        for depth in depths:
            yield from ({"spec_method": method, "spec_depth": depth} for method in methods[:1])

    def _cache(self, widths: list[int]) -> Iterator[Json]:
        """A narrow cache at each width, with the batch capped near what the bound may bear."""
        narrow = [one for one in self.levers.get("kv_dtype", []) if one == "fp8"]
        caps = [cap for cap in self.levers.get("max_running", []) if isinstance(cap, int) and cap <= self.clients]
        for tp in reversed(widths):
            for kv in narrow:
                yield from ({"tp": tp, "kv_dtype": kv, "max_running": cap} for cap in sorted(caps)[-2:])

    def neighbours(self) -> Iterator[Json]:
        """The best with width traded for copies, with one lever at a near value, then with two."""
        yield from self._trades()
        steps = {name: self._near(name) for name in self.levers}
        for name, values in steps.items():
            yield from ({**self.best, name: value} for value in values[:2])
        for first, second in combinations(steps, 2):
            for one in steps[first][:2]:
                yield from ({**self.best, first: one, second: other} for other in steps[second][:2])

    def _trades(self) -> Iterator[Json]:
        """The same GPUs as copies twice as wide and half as many, or the other way round, in either pool."""
        for width, copies in (("tp", "replicas"), ("prefill_tp", "prefill_replicas")):
            wide, many = self.best.get(width, 1), self.best.get(copies, 1)
            if isinstance(wide, int) and isinstance(many, int):
                for one in ({width: wide * 2, copies: many // 2}, {width: wide // 2, copies: many * 2}):
                    if all(value in self.levers.get(name, []) for name, value in one.items()):
                        yield {**self.best, **one}

    def _near(self, name: str) -> list[Any]:
        """Other values of a lever, nearest to the best's first."""
        values = self.levers[name]
        now = self.best.get(name)
        place = values.index(now) if now in values else 0
        others = [value for value in values if value != now]
        return sorted(others, key=lambda value: abs(values.index(value) - place))


def _best(trials: Json, trajectory: str, larger: bool) -> Json | None:
    """What the best legal trial changed: from the trials, else from what the steps since have shown."""
    found = trials["best"] or trials["baseline"]
    best = dict(found["set"]) if found else {}
    score = _worth(found) if found else float("-inf")
    for line in trajectory.splitlines():
        if line.startswith("{"):
            step = json.loads(line)
            seen = step.get("observation", {})
            if step.get("tool") == "evaluate" and _worth(seen) > score:
                best, score = {name: value for name, value in step["args"]["changes"].items()}, _worth(seen)
    return best


def _worth(seen: Json) -> float:
    """The score, larger is better, of a legal trial; it has a sign of its own only where smaller is better."""
    return float(seen["signed_score" if "signed_score" in seen else "score"]) if seen.get("legal") else float("-inf")
