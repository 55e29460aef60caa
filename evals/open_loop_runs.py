"""The open-loop runs of four dense and sparse Llama-like models on H100 and what was sent in them.

Traps met here. The recorded answer lengths count the returned text again, so that degenerate answers look short: E2E is
spread by a few percent where those lengths spread tenfold. Every answer runs to its limit, and the median length is
that limit. The prompts are few (``shared_prompts`` × ``users_per_prompt``) and repeat, so after one round they are
prefix-cache hits: TTFT does not depend on prompt length.
"""

from dataclasses import dataclass
from pathlib import Path

from evals.request_runs import rows
from predictor.cards import ModelCard
from predictor.profiles.hf import card_from_config

RUNS = "measured/h100_vllm_open_loop_runs.csv"
SIMULATORS = "measured/h100_vllm_simulators_vs_measured.csv"
# The client gives a request up after five minutes: in every overloaded run the longest answer ends just before.
TIMEOUT_MS = 300_000.0

# source: config.json of the checkpoints on Hugging Face (meta-llama/Llama-2-*-hf, codellama/CodeLlama-34b-Instruct-hf,
# mistralai/Mixtral-8x7B-v0.1): hidden, layers, heads, KV heads, intermediate, vocabulary, experts, experts a token
_CONFIGS: dict[str, tuple[int, int, int, int, int, int, int, int]] = {
    "llama-2-7b": (4096, 32, 32, 32, 11008, 32000, 0, 0),
    "llama-2-70b": (8192, 80, 64, 8, 28672, 32000, 0, 0),
    "codellama-34b": (8192, 48, 64, 8, 22016, 32000, 0, 0),
    "mixtral-8x7b": (4096, 32, 32, 8, 14336, 32000, 8, 2),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of constant rate, or a whole run of several (``parts``), and what the client saw in ms."""

    experiment: str
    stage: str
    model: str
    tp: int
    rate_per_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    distinct_prompts: int
    system_tokens: int
    token_budget: int
    max_running: int
    e2e_mean_ms: float
    e2e_p50_ms: float
    e2e_p99_ms: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    overloaded: bool

    @property
    def whole_run(self) -> bool:
        """Whether the row sums up all stages of a run."""
        return self.stage == "summary"


def model_of(experiment: str) -> str:
    """Key of the model an experiment's name carries."""
    return next(name for name in _CONFIGS if name in experiment)


def card(model: str) -> ModelCard:
    """Model card from the checkpoint's published dimensions."""
    hidden, layers, heads, kv_heads, intermediate, vocabulary, experts, active = _CONFIGS[model]
    config = {
        "architectures": ["MixtralForCausalLM" if experts else "LlamaForCausalLM"],
        "model_type": "mixtral" if experts else "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768 if experts else 4096,
        "torch_dtype": "bfloat16",
    }
    if experts:
        config |= {"num_local_experts": experts, "num_experts_per_tok": active}
    return card_from_config(config, model, model)


def stages(data: Path) -> list[Stage]:
    """All 40 rows."""
    return [_stage(row) for row in rows(data / RUNS)]


def _stage(row: dict[str, str]) -> Stage:
    return Stage(
        experiment=row["experiment"],
        stage=row["stage"],
        model=model_of(row["experiment"]),
        tp=int(row["tp"]),
        rate_per_s=float(row["requested_rate"] or 0.0),
        requests=int(row["count"]) + int(row["failures"]),
        prompt_tokens=round(float(row["prompt_len_median"])),
        output_tokens=round(float(row["output_len_median"])),
        distinct_prompts=int(row["shared_prompts"]) * int(row["users_per_prompt"]),
        system_tokens=int(row["system_prompt_tokens"]),
        token_budget=int(row["max_num_batched_tokens"]),
        max_running=int(row["max_num_seqs"]),
        e2e_mean_ms=float(row["e2e_ms_mean"]),
        e2e_p50_ms=float(row["e2e_ms_median"]),
        e2e_p99_ms=float(row["e2e_ms_p99"]),
        ttft_mean_ms=float(row["ttft_ms_mean"]),
        ttft_p50_ms=float(row["ttft_ms_median"]),
        ttft_p99_ms=float(row["ttft_ms_p99"]),
        overloaded=row["overloaded"] == "1",
    )
