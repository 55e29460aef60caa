"""What an operator should know about the commands of a plan."""

from collections.abc import Iterator

from agent.launch import atom, sglang, trtllm, vllm
from agent.launch.names import unswitchable
from agent.launch.types import ServerCase
from predictor.types import Flag

SWITCHES = {"vLLM": vllm.SWITCHES, "SGLang": sglang.SWITCHES, "ATOM": atom.SWITCHES, "TensorRT-LLM": trtllm.SWITCHES}


def notes(case: ServerCase) -> Iterator[Flag]:
    """Notes on the main pool's commands, whose first case this is."""
    engine, settings, ranks = case.profile.name, case.settings, case.layout.attn_dp
    if case.max_len and engine != "SGLang":
        text = f"servers take requests of up to {case.max_len} tokens, as this workload sends; raise it for longer"
        yield Flag("length_limit", text)
    if case.handoff:
        text = "name the cluster's RDMA devices for the KV hand-off if the engine does not find them"
        yield Flag("rdma_devices", text)
    if missing := unswitchable(case, SWITCHES[engine]):
        text = f"{engine} has no switch for {', '.join(missing)}: it fuses by itself where it can"
        yield Flag("fusion_not_switchable", text)
    if engine == "SGLang" and ranks > 1:
        each = f"{settings.chunk_size} prompt tokens and {settings.max_running} requests"
        yield Flag("per_rank", f"SGLang divides its limits by {ranks}: each attention-DP rank gets {each}")
    if engine == "TensorRT-LLM" and settings.capture_sizes and not settings.graph_padding:
        text = "graph padding is off, as by default: unlisted batch sizes run eager; set graph_max_bs to turn it on"
        yield Flag("graph_padding", text)
