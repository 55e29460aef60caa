"""Facts are asked for, checked against each other and never guessed."""

import pytest

from predictor.anchors.import_formats import BenchRun, Latency
from predictor.anchors.import_formats.run import Fact
from predictor.anchors.import_solve.facts import SPECS, ModelNameDiffers, read_facts
from predictor.anchors.import_solve.setting import Lookups, load_workload, resolve, rules_of, with_length_ranges
from predictor.errors import BadInput
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Arrival, Dtype

FIND = Lookups(model_card, platform, engine_profile)
DENSE: dict[str, Fact] = {
    "model": "Llama-3.1-70B",
    "gpu": "H200",
    "engine": "vllm",
    "engine_version": "0.33.0",
    "tp": 4,
    "weight_dtype": "fp8",
    "kv_dtype": "bf16",
    "prefix_cache": "off",
    "real_weights": True,
    "spec_method": "none",
}


def run(origin: str = "a.json", **recorded: Fact) -> BenchRun:
    return BenchRun(origin, "t", 4, 40, Latency(100.0), Latency(10.0), recorded=recorded)


def without(*names: str) -> dict[str, Fact]:
    return {name: value for name, value in DENSE.items() if name not in names}


def test_every_missing_fact_is_named_at_once_with_its_flag() -> None:
    with pytest.raises(BadInput) as error:
        resolve([run(model_name="meta-llama/Llama-3.1-70B-Instruct")], {}, FIND)
    message = str(error.value)
    for name in ("gpu", "engine", "engine_version", "tp", "weight_dtype", "kv_dtype", "prefix_cache", "real_weights"):
        assert f"--{name.replace('_', '-')} (" in message
    assert message.startswith("a.json: does not record ")
    assert "\n" not in message


@pytest.mark.parametrize("name", [name for name in DENSE if name != "spec_method"])
def test_no_fact_is_guessed(name: str) -> None:
    with pytest.raises(BadInput, match=f"--{name.replace('_', '-')}"):
        resolve([run()], without(name), FIND)


def test_a_mixture_of_experts_also_needs_its_expert_and_attention_widths() -> None:
    with pytest.raises(BadInput, match=r"ep, attn_dp: give --ep .* --attn-dp"):
        resolve([run()], DENSE | {"model": "gpt-oss-120b"}, FIND)


def test_whether_it_speculated_is_asked_only_where_the_tool_cannot_tell() -> None:
    with pytest.raises(BadInput, match="--spec-method"):
        resolve([run()], without("spec_method"), FIND)
    assert not resolve([run(speculates=False)], without("spec_method"), FIND).deployment.speculation.active
    with pytest.raises(BadInput, match=r"spec_method, spec_depth"):
        resolve([run(speculates=True)], without("spec_method"), FIND)


def test_a_flag_that_contradicts_the_file_is_refused() -> None:
    with pytest.raises(BadInput, match="records tp 8, --tp says 4: one of them is of another run"):
        resolve([run(tp=8)], DENSE, FIND)


def test_files_of_two_deployments_are_not_mixed() -> None:
    with pytest.raises(BadInput, match=r"differ in kv_dtype: fp8 \(a\.json\), bf16 \(b\.json\); import them apart"):
        resolve([run(kv_dtype="fp8"), run("b.json", kv_dtype="bf16")], without("kv_dtype"), FIND)


def test_a_served_name_no_card_knows_is_asked_about() -> None:
    with pytest.raises(BadInput, match="its model is 'prod-chat', which no card is called: give --model"):
        resolve([run(model_name="prod-chat")], without("model"), FIND)


def test_a_name_that_differs_from_the_card_needs_a_confirmation() -> None:
    named = run(model_name="Qwen/Qwen3-32B")
    with pytest.raises(ModelNameDiffers, match="--accept-model-name 'Qwen/Qwen3-32B'") as error:
        resolve([named], DENSE, FIND)
    assert (error.value.written, error.value.wanted) == ("Qwen/Qwen3-32B", "Llama-3.1-70B")
    assert resolve([named], DENSE, FIND, "Qwen/Qwen3-32B").card.name == "Llama-3.1-70B"
    assert resolve([run(model_name="meta-llama/Llama-3.1-70B-Instruct")], DENSE, FIND).card.name == "Llama-3.1-70B"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prefix_cache": "on"}, "neither prefill nor TTFT can be told"),
        ({"pp": 2}, "measured without pipeline stages"),
        ({"weight_dtype": "int3"}, "weight_dtype 'int3': must be one of bf16, fp8, fp4"),
        ({"tp": 0}, "tp 0: must be at least 1"),
        ({"length_range": 1.2}, "length_range 1.2: must be above 0 and at most 1"),
        ({"gpuu": "H200"}, "unknown fact 'gpuu'; did you mean 'gpu'"),
        ({"engine_version": "0.22.0"}, "vLLM 0.22.0 are not known .*: give --max-running, --token-budget"),
    ],
)
def test_values_are_checked(change: dict[str, Fact], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        resolve([run()], read_facts(DENSE | change, "given"), FIND)


def test_formats_have_the_names_people_use() -> None:
    setting = resolve([run()], read_facts(DENSE | {"weight_dtype": "nvfp4", "kv_dtype": "bfloat16"}, "given"), FIND)
    assert setting.deployment.precision.weight is Dtype.FP4
    assert setting.deployment.precision.linear is Dtype.FP4
    assert setting.deployment.precision.kv is Dtype.BF16


def test_an_unknown_release_takes_its_limits_from_the_user_alone() -> None:
    limits: dict[str, Fact] = {"engine_version": "0.22.0", "max_running": 64, "token_budget": 4096}
    setting = resolve([run()], DENSE | limits, FIND)
    rules = rules_of(setting)
    assert (rules.max_running, rules.token_budget) == (64, 4096)
    assert setting.signature.engine_version == "0.22.0"


def test_lengths_come_from_means_and_the_range_they_were_drawn_on() -> None:
    one = BenchRun("a", "t", 4, 40, Latency(1.0), Latency(1.0), mean_prompt_tokens=900.0, mean_output_tokens=90.0)
    setting = resolve([one], DENSE, FIND)
    with pytest.raises(BadInput, match="--length-range"):
        with_length_ranges([one], DENSE)
    workload = load_workload(one, 0.8, setting, DENSE)
    assert (workload.isl_tokens, workload.osl_tokens, workload.requests_per_client) == (1000, 100, 10)
    with pytest.raises(BadInput, match="means 8100 tokens on average, the file counts 900"):
        load_workload(one, 0.8, setting, DENSE | {"isl": 9000})


def test_the_range_is_pooled_over_loads_of_one_shape() -> None:
    def drawn(low: float, high: float, mean: float) -> BenchRun:
        return BenchRun("a", "t", 1, 10, Latency(1.0), Latency(1.0), mean_prompt_tokens=mean, prompt_range=(low, high))

    runs = [drawn(850.0, 990.0, 905.0), drawn(800.0, 1000.0, 899.0), drawn(4000.0, 4000.0, 4000.0)]
    assert [share for _, share in with_length_ranges(runs, {})] == [0.8, 0.8, 1.0]


def test_open_arrivals_and_replicas_become_one_scheduler_s_load() -> None:
    facts = DENSE | {"replicas": 2, "length_range": 1.0}
    one = BenchRun(
        "a",
        "t",
        None,
        400,
        Latency(1.0),
        Latency(1.0),
        request_rate_per_s=8.0,
        burstiness=0.5,
        mean_prompt_tokens=100.0,
        mean_output_tokens=10.0,
    )
    workload = load_workload(one, 1.0, resolve([one], facts, FIND), facts)
    assert workload.arrival is Arrival.GAMMA
    assert workload.request_rate_per_s == 4.0
    assert workload.concurrency * workload.requests_per_client == 200


def test_flags_are_unique() -> None:
    flags = [spec.flag for spec in SPECS]
    assert len(flags) == len(set(flags))
