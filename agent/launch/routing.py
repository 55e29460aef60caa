"""Routers in front of several replicas or of two pools."""

from collections.abc import Sequence

from agent.launch.trtllm import disaggregated
from agent.launch.types import Command, Process, host_of
from agent.launch.vllm import PING_PORT

# One request after the other to the next replica: what a closed loop of like requests is priced with. Sessions that
# share prefixes do better with the routers' cache_aware policy.
POLICY = "round_robin"
KV_CONNECTORS = {"nixl": "nixl", "mooncake": "mooncake", "mori": "moriio"}


def router(engine: str, servers: Sequence[Process], handoff: str | None, prefill_ranks: int, port: int) -> Command:
    """The engine's own router. TensorRT-LLM has one for pools only; its replicas stand behind vLLM's.

    ``prefill_ranks`` are the attention-DP ranks of a prefill server: each has a Mooncake engine of its own.
    """
    listen = ["--host", "0.0.0.0", "--port", str(port)]
    prefill = [server for server in servers if server.role == "prefill"]
    decode = [server for server in servers if server.role == "decode"]
    if engine == "TensorRT-LLM" and handoff:
        file = disaggregated(_addresses(prefill), _addresses(decode), port)
        return Command(("trtllm-serve", "disaggregated", "-c", file.name), (), (file,))
    if engine == "SGLang":
        argv = ["python3", "-m", "sglang_router.launch_router", *listen, "--policy", POLICY]
        return Command(tuple(argv + (_sglang_pools(prefill, decode) if handoff else _workers(servers))))
    if engine == "ATOM":
        argv = ["atomesh", "launch", *listen, "--backend", "atom", "--policy", POLICY]
        pools = ["--pd-disaggregation", *_urls("--prefill", prefill), *_urls("--decode", decode)]
        return Command(tuple(argv + (pools if handoff else _workers(servers))))
    argv = ["vllm-router", *listen, "--policy", POLICY]
    if handoff == "mooncake" and prefill_ranks > 1:
        argv += ["--intra-node-data-parallel-size", str(prefill_ranks)]
    return Command(tuple(argv + (_vllm_pools(handoff, prefill, decode) if handoff else _workers(servers))))


def _vllm_pools(handoff: str, prefill: list[Process], decode: list[Process]) -> list[str]:
    argv = ["--vllm-pd-disaggregation", "--kv-connector", KV_CONNECTORS[handoff]]
    if handoff == "mori":  # these workers announce themselves
        return [*argv, "--vllm-discovery-address", f"0.0.0.0:{PING_PORT}"]
    return [*argv, *_urls("--prefill", prefill), *_urls("--decode", decode)]


def _sglang_pools(prefill: list[Process], decode: list[Process]) -> list[str]:
    argv = ["--pd-disaggregation"]
    for server in prefill:
        bootstrap = server.command.argv[server.command.argv.index("--disaggregation-bootstrap-port") + 1]
        argv += ["--prefill", _url(server), bootstrap]
    return [*argv, *_urls("--decode", decode)]


def _workers(servers: Sequence[Process]) -> list[str]:
    return ["--worker-urls", *(_url(server) for server in servers)]


def _urls(flag: str, servers: Sequence[Process]) -> list[str]:
    return [part for server in servers for part in (flag, _url(server))]


def _url(server: Process) -> str:
    return f"http://{host_of(server.name)}:{server.port}"


def _addresses(servers: Sequence[Process]) -> list[tuple[str, int]]:
    return [(server.name, server.port) for server in servers]
