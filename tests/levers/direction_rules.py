"""What each lever moves, and which way: the mechanism of every price, as data.

A rule sets one lever on an otherwise equal deployment and names what must rise or fall, and why. Readings are taken
from predictions by kernel models, so that no anchor hides a price.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from levers.context import LeverValue
from predictor.types import Arrival, Prediction, Workload

Reading = Callable[[Prediction], float]


@dataclass(frozen=True)
class Load:
    """Range of the traffic under which a mechanism shows; lengths and clients are drawn from it."""

    isl: tuple[int, ...] = (512, 1024, 4096)
    osl: tuple[int, ...] = (64, 200)
    clients: tuple[int, ...] = (8, 32)
    arrival: Arrival = Arrival.CLOSED
    rate_per_s: float | None = None
    prefix_hit_frac: float = 0.0


@dataclass(frozen=True, eq=False)
class Rule:
    """One change of one lever: from ``values[0]`` to each later value in turn, and what follows."""

    lever: str
    values: tuple[LeverValue, ...]
    why: str
    rises: Mapping[str, Reading] = field(default_factory=dict)
    falls: Mapping[str, Reading] = field(default_factory=dict)
    case: tuple[str, str, str] = ("Llama-3.1-70B", "MI355X", "SGLang")
    base: Mapping[str, LeverValue] = field(default_factory=dict)
    load: Load = Load()


def extra(name: str) -> Reading:
    """A named figure."""
    return lambda p: p.extras[name]


def term(name: str) -> Reading:
    """A term of the decode step, ms."""
    return lambda p: p.step_ms.get(name, 0.0)


def ttft_ms(p: Prediction) -> float:
    """Mean TTFT."""
    return p.ttft_ms.mean


def tpot_ms(p: Prediction) -> float:
    """Mean TPOT."""
    return p.tpot_ms.mean


def itl_p99_ms(p: Prediction) -> float:
    """Slowest gaps between tokens."""
    assert p.itl_ms.p99 is not None
    return p.itl_ms.p99


def output_tok_s(p: Prediction) -> float:
    """Throughput."""
    return p.output_tok_s


def weights(p: Prediction) -> float:
    """Weight bytes of the busiest GPU."""
    return p.memory.weights_bytes


def kv_tokens(p: Prediction) -> float:
    """Tokens the KV pool holds."""
    return p.memory.kv_pool_tokens


def room(p: Prediction) -> float:
    """Requests that fit at once."""
    return p.max_concurrency


def running(p: Prediction) -> float:
    """Requests in decode on average."""
    return p.running


def graphs(p: Prediction) -> float:
    """Memory of captured graphs."""
    return p.memory.graph_bytes


decode_step = extra("decode_step_ms")
mixed_step = extra("mixed_step_ms")
R1 = ("DeepSeek-R1", "MI355X", "SGLang")
R1_BASE = {"tp": 8}
EP8 = {"tp": 8, "ep": 8}
DP8 = {"tp": 8, "ep": 8, "attn_dp": 8}
SPLIT = {"tp": 4, "disagg": "mori", "prefill_tp": 4}
SPLIT_R1 = {"tp": 8, "disagg": "mori", "prefill_tp": 8}
FEW = Load(clients=(1, 2))
LONG = Load(isl=(16384, 32768), osl=(64,), clients=(8, 16))

RULES = (
    Rule("tp", (1, 2, 4, 8), "each GPU holds and reads a share of weights and cache",
         rises={"kv_tokens": kv_tokens}, falls={"weights": weights, "decode_step": decode_step, "ttft": ttft_ms}),
    Rule("tp", (1, 2), "partial sums cross the links", rises={"collectives": term("collectives")}),
    Rule("ep", (1, 8), "a few tokens meet whole experts: the busiest rank reads more of them than its slice would be",
         rises={"experts": term("experts")}, case=R1, base=R1_BASE, load=FEW),
    Rule("attn_dp", (1, 8), "a rank owns whole requests: the latent cache is stored once and not eight times",
         rises={"room": room}, case=R1, base=EP8),
    Rule("pp", (1, 2, 4), "a stage holds its own layers; one request pays every hop",
         rises={"tpot": tpot_ms}, falls={"weights": weights}, load=FEW),
    Rule("dcp", (1, 2, 4), "ranks share one context: each holds and reads a part, partial results cross the links",
         rises={"room": room}, falls={"attention": term("attention")}, case=R1, base=R1_BASE, load=LONG),
    Rule("replicas", (1, 2, 4), "copies share the clients", rises={"output_tok_s": output_tok_s, "room": room},
         falls={"tpot": tpot_ms}, base={"tp": 2}),
    Rule("disagg", ("off", "mori"), "no prompt interrupts a decode step", falls={"pollution": extra("tpot_pollution")},
         base={"tp": 4}, load=Load(isl=(8192, 16384), clients=(16, 32))),
    Rule("prefill_tp", (1, 2, 4), "a wider prefill pool ends a prompt sooner", falls={"ttft": ttft_ms},
         base={"tp": 4, "disagg": "mori", "prefill_tp": 1}),
    Rule("prefill_ep", (1, 8), "a long prompt's experts: the busiest rank gates each layer", rises={"ttft": ttft_ms},
         case=R1, base=SPLIT_R1, load=FEW),
    Rule("prefill_attn_dp", (1, 8), "one prompt runs on one rank of eight: alone it takes longer",
         rises={"ttft": ttft_ms}, case=R1, base=SPLIT_R1, load=FEW),
    Rule("prefill_replicas", (1, 2, 4), "prompts queue for more places", falls={"ttft": ttft_ms},
         base={"tp": 2, "disagg": "mori", "prefill_tp": 1}, load=Load(isl=(4096, 8192), clients=(16, 32))),
    Rule("weight_dtype", ("bf16", "fp8", "fp4"), "fewer bytes are stored and read",
         falls={"weights": weights, "decode_step": decode_step}, base={"tp": 2}),
    Rule("linear_dtype", ("bf16", "fp8"), "the GEMMs of a prompt multiply at twice the rate", falls={"ttft": ttft_ms},
         base={"tp": 2, "weight_dtype": "fp8", "linear_dtype": "bf16"}, load=Load(isl=(4096, 8192))),
    Rule("expert_dtype", ("fp8", "fp4"), "expert weights are smaller", case=R1, base=R1_BASE,
         falls={"weights": weights, "experts": term("experts")}),
    Rule("kv_dtype", ("bf16", "fp8"), "a cached token takes half the bytes", rises={"kv_tokens": kv_tokens},
         falls={"attention": term("attention")}, base={"tp": 2}, load=LONG),
    Rule("attn_backend", ("auto", "triton"), "Triton's kernel reads the cache slower than FlashAttention",
         rises={"attention": term("attention"), "ttft": ttft_ms}, case=("Llama-3.1-8B", "H100", "SGLang"), load=LONG),
    Rule("moe_backend", ("flashinfer_trtllm", "triton"), "Triton's grouped GEMM reaches less of Blackwell",
         rises={"experts": term("experts")}, case=("Qwen3-235B-A22B", "B200", "SGLang"),
         base={"tp": 4, "weight_dtype": "fp8"}),
    Rule("a2a_backend", ("none", "mori_ht"), "tokens travel to the ranks of their experts, not to all",
         falls={"collectives": term("collectives"), "ttft": ttft_ms}, case=R1, base=DP8),
    Rule("eplb_redundant", (0, 32), "copies of busy experts take memory and even the ranks out",
         rises={"weights": weights}, falls={"experts": term("experts")}, case=R1, base=EP8),
    Rule("fusions", ((), ("rope_kvstore",)), "one launch and one trip through memory less a layer",
         falls={"decode_step": decode_step}, case=("Llama-3.1-8B", "MI355X", "SGLang")),
    Rule("graph_mode", ("full", "none"), "the host issues each kernel, longer than the GPU of a wide replica works",
         rises={"decode_step": decode_step}, case=("Llama-3.1-8B", "MI355X", "vLLM"), base={"tp": 8}),
    Rule("graph_mode", ("piecewise", "none"), "pieces are replayed, all other kernels are not",
         rises={"decode_step": decode_step}, case=("Llama-3.1-8B", "MI355X", "vLLM"), base={"tp": 8}),
    Rule("graph_max_bs", (64, 4), "batches above the largest graph run eager; fewer graphs take less memory",
         rises={"decode_step": decode_step}, falls={"graphs": graphs}, case=("Llama-3.1-8B", "MI355X", "SGLang"),
         base={"tp": 8}, load=Load(clients=(16, 32))),
    Rule("allreduce", ("custom", "rccl"), "the library takes longer to start than a decode step's message takes",
         rises={"launch": term("launch"), "decode_step": decode_step}, base={"tp": 8}),
    Rule("max_running", (32, 16, 4), "requests wait at the cap, and those that run share the step with fewer",
         rises={"ttft": ttft_ms}, falls={"running": running}, base={"tp": 4}, load=Load(clients=(64,))),
    Rule("token_budget", (2048, 4096, 16384), "a step takes more prompt tokens: decodes wait longer for it",
         rises={"itl_p99": itl_p99_ms}, case=("Llama-3.1-70B", "MI355X", "vLLM"), base={"tp": 4},
         load=Load(isl=(8192, 16384), osl=(200,), clients=(32,))),
    Rule("chunk_size", (8192, 2048, 512), "a prompt takes more steps, each with a fixed cost", rises={"ttft": ttft_ms},
         base={"tp": 4}, load=Load(isl=(8192, 16384), clients=(8, 16))),
    Rule("chunk_size", (8192, 512), "a step takes fewer tokens of a prompt: a decode beside it waits less",
         falls={"itl_p99": itl_p99_ms}, case=("Llama-3.1-70B", "MI355X", "vLLM"), base={"tp": 4},
         load=Load(isl=(16384,), osl=(64,), clients=(8, 16), arrival=Arrival.POISSON, rate_per_s=1.0)),
    Rule("kv_mem_fraction", (0.8, 0.85, 0.92), "more of the memory is the pool's", rises={"kv_tokens": kv_tokens},
         base={"tp": 2}),
    Rule("block_size", (1, 64), "the last block of a request is partly empty", falls={"room": room}, base={"tp": 2},
         load=Load(isl=(129, 257, 1025), osl=(32,))),
    Rule("spec_method", ("none", "mtp"), "a step commits more tokens than one and costs a draft more",
         rises={"tokens_per_step": extra("tokens_per_step"), "decode_step": decode_step}, falls={"tpot": tpot_ms},
         case=R1, base=R1_BASE, load=Load(osl=(200,), clients=(1, 4))),
    Rule("spec_depth", (1, 2, 3), "each draft adds a token's chance and a pass of the drafter",
         rises={"tokens_per_step": extra("tokens_per_step"), "decode_step": decode_step}, case=R1,
         base={**R1_BASE, "spec_method": "mtp"}, load=Load(osl=(200,), clients=(1, 4))),
    Rule("prefix_cache", (False, True), "a cached share of the prompt is not computed again", falls={"ttft": ttft_ms},
         base={"tp": 4}, load=Load(isl=(4096, 8192), prefix_hit_frac=0.8)),
    Rule("concurrency", (1, 8, 32, 128), "more requests share a step, which takes longer",
         rises={"output_tok_s": output_tok_s, "tpot": tpot_ms, "running": running}, base={"tp": 4}),
    Rule("arrival_process", ("constant", "poisson"), "random arrivals crowd: some wait for others",
         rises={"ttft": ttft_ms}, base={"tp": 4}, load=Load(arrival=Arrival.CONSTANT, rate_per_s=4.0)),
    Rule("request_rate", (1.0, 4.0, 16.0), "more requests are under way at once",
         rises={"output_tok_s": output_tok_s, "running": running, "tpot": tpot_ms}, base={"tp": 4},
         load=Load(arrival=Arrival.POISSON, rate_per_s=4.0)),
)  # fmt: skip

# The same from a measured step, which every lever must move as well. Prompts of a dense model may take longer on two
# GPUs than on one, where two links carry the sums (paper Table 20: 170 to 238 ms at two stages): no rule for them.
LLAMA = ("Llama-3.1-8B", "MI355X", "SGLang")
QWEN = ("Qwen3.6-35B-A3B", "MI355X", "SGLang")
ANCHORED = (
    Rule("tp", (1, 2, 4, 8), "shares of weights and cache", case=LLAMA, rises={"kv_tokens": kv_tokens},
         falls={"weights": weights, "decode_step": decode_step}),
    Rule("ep", (1, 8), "the busiest rank reads more", rises={"experts": term("experts")}, case=QWEN, base={"tp": 8},
         load=FEW),
    Rule("pp", (1, 2, 4), "hops", rises={"tpot": tpot_ms}, falls={"weights": weights}, case=LLAMA, load=FEW),
    Rule("replicas", (1, 2, 4), "copies share the clients", rises={"output_tok_s": output_tok_s},
         falls={"tpot": tpot_ms}, case=LLAMA),
    Rule("weight_dtype", ("bf16", "fp8"), "fewer bytes", falls={"weights": weights, "decode_step": decode_step},
         case=LLAMA),
    Rule("kv_dtype", ("bf16", "fp8"), "half the cache", rises={"kv_tokens": kv_tokens},
         falls={"decode_step": decode_step}, case=LLAMA, load=LONG),
    Rule("a2a_backend", ("none", "mori_ht"), "tokens travel to their experts' ranks only",
         falls={"decode_step": decode_step, "ttft": ttft_ms}, case=QWEN, base=DP8),
    Rule("eplb_redundant", (0, 32), "the busiest rank is less busy", rises={"weights": weights},
         falls={"experts": term("experts"), "decode_step": decode_step}, case=QWEN, base=EP8),
    Rule("fusions", ((), ("rope_kvstore",)), "one launch less a layer", falls={"decode_step": decode_step}, case=LLAMA),
    Rule("graph_mode", ("full", "none"), "the host issues each kernel", rises={"decode_step": decode_step}, case=LLAMA,
         base={"tp": 8}),
    Rule("graph_max_bs", (64, 4), "eager above the largest graph", rises={"decode_step": decode_step}, case=LLAMA,
         base={"tp": 8}, load=Load(clients=(16, 32))),
    Rule("allreduce", ("custom", "rccl"), "the library starts later", rises={"decode_step": decode_step}, case=LLAMA,
         base={"tp": 8}),
    Rule("max_running", (32, 16, 4), "requests wait", rises={"ttft": ttft_ms}, falls={"running": running}, case=LLAMA,
         load=Load(clients=(64,))),
    Rule("chunk_size", (8192, 2048, 512), "more steps a prompt", rises={"ttft": ttft_ms}, case=LLAMA,
         load=Load(isl=(8192, 16384), clients=(8, 16))),
    Rule("spec_method", ("none", "eagle3"), "a step commits more tokens", falls={"tpot": tpot_ms}, case=LLAMA,
         rises={"tokens_per_step": extra("tokens_per_step"), "decode_step": decode_step}, load=FEW),
    Rule("concurrency", (1, 8, 32, 128), "requests share a step", rises={"output_tok_s": output_tok_s, "tpot": tpot_ms},
         case=LLAMA),
)  # fmt: skip

# host_kv_gb: test_host_memory_brings_back_what_the_pool_could_not_hold. sparse_topk, of which only the trained width is
# legal: test_a_narrower_sparse_attention_reads_less.
ELSEWHERE = ("host_kv_gb", "sparse_topk")


def workload(load: Load, isl: int, osl: int, clients: int) -> Workload:
    """One traffic of the range."""
    return Workload(
        isl,
        osl,
        clients,
        arrival=load.arrival,
        request_rate_per_s=load.rate_per_s,
        requests_per_client=4,
        prefix_hit_frac=load.prefix_hit_frac,
    )
