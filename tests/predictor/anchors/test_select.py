"""Refusals, coverage and flags of anchors (paper §3.1.1, §5.1, App. E)."""

from dataclasses import replace

import pytest

from agent.anchor_files import bundled_anchors
from predictor.anchors.schema import Anchor, all_fields, checked
from predictor.anchors.select import assess, select_anchor
from predictor.errors import AnchorRefused
from predictor.types import Coverage, Deployment, Dtype, Layout, Precision, Speculation, Workload

WORKLOAD = Workload(1024, 1024, 16)


@pytest.fixture
def llama() -> Anchor:
    return next(anchor for anchor in bundled_anchors() if anchor.signature.model == "Llama-3.1-8B")


@pytest.fixture
def target(llama: Anchor) -> Deployment:
    signature = llama.signature
    return Deployment(signature.model, signature.gpu, signature.engine, signature.engine_version)


def codes(anchor: Anchor, deployment: Deployment, workload: Workload = WORKLOAD) -> set[str]:
    return {flag.code for flag in assess(anchor, deployment, workload).flags}


def test_its_own_configuration_is_covered(llama: Anchor, target: Deployment) -> None:
    assert assess(llama, target, WORKLOAD).coverage is Coverage.COVERED


@pytest.mark.parametrize(
    ("field", "value", "both"),
    [
        ("gpu", "MI300X", ("MI355X", "MI300X")),
        ("engine", "vLLM", ("SGLang", "vLLM")),
        ("model", "Qwen3-14B", ("Llama-3.1-8B", "Qwen3-14B")),
    ],
)
def test_another_gpu_engine_or_model_is_refused_with_both_names(
    llama: Anchor, target: Deployment, field: str, value: str, both: tuple[str, str]
) -> None:
    with pytest.raises(AnchorRefused) as refusal:
        assess(llama, replace(target, **{field: value}), WORKLOAD)
    assert all(name in str(refusal.value) for name in (field, *both))


def test_every_differing_field_is_named(llama: Anchor, target: Deployment) -> None:
    with pytest.raises(AnchorRefused, match=r"gpu: .*engine: "):
        assess(llama, replace(target, gpu="H200", engine="vLLM"), WORKLOAD)


def test_an_anchor_with_speculation_never_serves_a_target_without(llama: Anchor, target: Deployment) -> None:
    drafted = replace(llama, signature=replace(llama.signature, spec_method="eagle3", spec_depth=3))
    with pytest.raises(AnchorRefused, match="speculation"):
        assess(drafted, target, WORKLOAD)
    assert assess(drafted, replace(target, speculation=Speculation("eagle3", 3)), WORKLOAD)
    with pytest.raises(AnchorRefused, match="eagle3, the target uses mtp"):
        assess(drafted, replace(target, speculation=Speculation("mtp", 3)), WORKLOAD)


def test_a_harvest_with_the_prefix_cache_on_is_refused(llama: Anchor, target: Deployment) -> None:
    cached = replace(llama, provenance=replace(llama.provenance, prefix_cache_off=False))
    with pytest.raises(AnchorRefused, match="prefix cache"):
        assess(cached, target, WORKLOAD)


def test_load_is_covered_within_four_times(llama: Anchor, target: Deployment) -> None:
    assert assess(llama, target, replace(WORKLOAD, concurrency=256)).coverage is Coverage.COVERED
    assert assess(llama, target, replace(WORKLOAD, concurrency=257)).coverage is Coverage.PROJECTED
    assert "load_outside" in codes(llama, target, replace(WORKLOAD, concurrency=1024))


def test_a_short_ladder_does_not_cover_a_wider_layout(llama: Anchor, target: Deployment) -> None:
    wide = replace(target, layout=Layout(tp=2))
    assert assess(llama, wide, WORKLOAD).coverage is Coverage.PROJECTED
    points = [{"batch": size, "step_ms": 4.0 + size / 10} for size in (1, 2, 4, 8, 16, 32, 64)]
    sweep = {"prompt_tokens": 1024, "output_tokens": 1024, "points": points}
    full = checked(Anchor, {**all_fields(llama), "decode": [sweep]})
    assert assess(full, wide, WORKLOAD).coverage is Coverage.COVERED


def test_more_than_one_doubling_is_flagged_as_extrapolated(llama: Anchor, target: Deployment) -> None:
    assert "width_extrapolated" not in codes(llama, replace(target, layout=Layout(tp=2)))
    assert "width_extrapolated" in codes(llama, replace(target, layout=Layout(tp=4)))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"precision": Precision(weight=Dtype.FP8, linear=Dtype.FP8)}, "weight_dtype"),
        ({"layout": Layout(tp=2, attn_dp=2)}, "attention DP"),
    ],
)
def test_other_kernels_and_layouts_are_projected_and_said(
    llama: Anchor, target: Deployment, change: dict[str, object], word: str
) -> None:
    selection = assess(llama, replace(target, **change), WORKLOAD)  # type: ignore[arg-type]
    assert selection.coverage is Coverage.PROJECTED
    assert any(word in flag.message for flag in selection.flags)


def test_a_far_prompt_length_is_flagged(llama: Anchor, target: Deployment) -> None:
    assert "prompt_length_differs" in codes(llama, target, replace(WORKLOAD, isl_tokens=32_000))
    assert "prompt_length_differs" not in codes(llama, target, replace(WORKLOAD, isl_tokens=8192))


def test_selection_reports_why_each_refused_anchor_was_refused(target: Deployment) -> None:
    chosen, refused = select_anchor(bundled_anchors(), target, WORKLOAD)
    assert chosen is not None
    assert chosen.anchor.signature.model == target.model
    assert len(refused) == len(bundled_anchors()) - 1
    none, all_refused = select_anchor(bundled_anchors(), replace(target, gpu="B200"), WORKLOAD)
    assert none is None
    assert len(all_refused) == len(bundled_anchors())


def test_a_covering_anchor_is_preferred_to_a_nearer_name(llama: Anchor, target: Deployment) -> None:
    other_build = replace(llama, name="a-first-by-name", signature=replace(llama.signature, engine_version="0.5.23"))
    chosen, _ = select_anchor((other_build, llama), target, WORKLOAD)
    assert chosen is not None
    assert chosen.anchor is llama
