"""The seed list: App. J's order, one lever at a time, legal and distinct."""

import pytest

from levers.baseline import baseline
from levers.build import search_context
from levers.context import SearchContext
from levers.legality import illegal_reasons
from levers.seeds import Seed, legal_or_skipped, seed_settings, thinned
from levers.space import to_deployment
from predictor.errors import Refusal
from predictor.types import Dtype, Workload


def of(model: str = "DeepSeek-R1", engine: str = "SGLang", gpu: str = "MI355X", **more: object) -> SearchContext:
    load = Workload(isl_tokens=8192, osl_tokens=1024, concurrency=64)
    return search_context(model=model, gpu=gpu, engine=engine, workload=load, nodes=2, **more)  # type: ignore[arg-type]


def seeds(here: SearchContext, **more: int) -> list[Seed]:
    return list(seed_settings(here, baseline(here), **more))


def first(names: list[str], start: str) -> int:
    return next(position for position, name in enumerate(names) if name.startswith(start))


def test_the_order_is_that_of_the_paper() -> None:
    names = [seed.name for seed in seeds(of(free=("load", "precision")))]
    groups = ("tp=8", "tp=8 attn_dp=2", "weight_dtype=", "concurrency=", "max_running=", "spec_method=", "tp=8 ep=2",
              "tp=4 allreduce=", "disagg=", "fusions=")  # fmt: skip
    positions = [first(names, start) for start in groups]
    assert positions == sorted(positions)


def test_seeds_are_legal_and_launch_different_deployments() -> None:
    here = of(free=("load", "precision"))
    launched = [to_deployment(seed.setting, here) for seed in seeds(here)]
    assert len(set(launched)) == len(launched)
    assert to_deployment(baseline(here), here) not in launched
    assert not any(illegal_reasons(*each, here) for each in launched)


def test_most_seeds_change_one_lever_and_the_others_bring_what_it_needs() -> None:
    changed = [len(seed.changes) for seed in seeds(of())]
    assert max(changed) <= 4
    assert sum(count == 1 for count in changed) > len(changed) / 2


def test_the_first_n_are_a_prefix_of_all() -> None:
    here = of()
    everything = seeds(here)
    assert seeds(here, limit=20) == everything[:20]
    assert len(seeds(here, per_lever=2)) < len(everything)


def test_closed_levers_stay_at_their_baseline() -> None:
    here = of(pins={"tp": 8, "spec_method": "none"})
    touched = {name for seed in seeds(here) for name, _ in seed.changes}
    assert not touched & {"tp", "spec_method", "spec_depth", "concurrency", "weight_dtype", "kv_dtype"}


def test_full_fusions_and_their_bf16_safe_subset_come_last() -> None:
    names = [seed.name for seed in seeds(of())]
    assert names[-2:] == [
        "fusions=norm_quant+add_rmsnorm+moe_expert+moe_routing+act_quant+rope_kvstore",
        "fusions=add_rmsnorm+moe_expert+moe_routing+rope_kvstore",
    ]
    dense = [seed.name for seed in seeds(of("Llama-3.1-8B"))]
    assert dense[-1] == "fusions=add_rmsnorm+rope_kvstore"


def test_a_checkpoint_change_brings_its_own_formats() -> None:
    here = of("MiniMax-M2.5", free=("weight_dtype",), validated=(Dtype.FP8, Dtype.FP4))
    (fp4,) = [seed for seed in seeds(here) if seed.name == "weight_dtype=fp4"]
    assert dict(fp4.changes) == {"weight_dtype": "fp4", "linear_dtype": "fp4", "expert_dtype": "fp4"}


def test_what_is_not_legal_is_listed_with_reasons() -> None:
    here = of("Llama-3.1-8B")
    skipped = [seed for seed in legal_or_skipped(here, baseline(here)) if not isinstance(seed, Seed)]
    assert skipped
    assert all(seed.reasons and seed.changes for seed in skipped)


def test_the_baseline_is_the_narrowest_layout_that_fits() -> None:
    assert baseline(of("Llama-3.1-8B"))["tp"] == 1
    assert baseline(of("DeepSeek-R1"))["tp"] == 4
    assert baseline(of("Llama-3.1-70B", gpu="H100"))["tp"] == 4
    wide = baseline(of("Kimi-K2.5", gpu="H100"))
    assert (wide["tp"], wide["pp"]) == (8, 2)


def test_the_baseline_chunks_long_prompts_where_the_engine_would_reject_them() -> None:
    load = Workload(isl_tokens=32768, osl_tokens=512, concurrency=4)
    here = search_context(model="Llama-3.1-70B", gpu="H200", engine="TensorRT-LLM", workload=load)
    assert baseline(here)["chunk_size"] == 8192


def test_nothing_legal_says_why_and_what_else_there_is() -> None:
    here = search_context(model="GLM-5", gpu="H200", engine="SGLang", workload=Workload(1024, 1024, 8))
    with pytest.raises(
        Refusal, match=r"(?s)exceed 90%.*checkpoints in fp8, fp4: pin weight_dtype|GiB for KV.*fp8, fp4"
    ):
        baseline(here)


def test_thinning_keeps_both_ends() -> None:
    assert thinned((1, 2, 3, 4, 5, 6, 7), 4) == (1, 3, 5, 7)
    assert thinned((1, 2), None) == (1, 2)
    assert thinned((1, 2, 3), 1) == (2,)
