"""Starts vLLM servers on this machine and ends them: command, environment, memory check and log.

A server runs under `worker/guard.py`, which ends it when this process closes its pipe or is killed.
The key goes through the environment; it is in no command line and no file.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
from dataclasses import dataclass

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.vllm.worker.extension import WEIGHTS_DIR

ROOT = pathlib.Path(__file__).parents[3]  # the folder that contains gigpo_jax
WORKER = "gigpo_jax.engines.vllm.worker"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM accepts for --max-lora-rank
STOP_LIMIT_S = 30.0
GIB = 2**30
# Settings of malloc for CPUs: memory of a load is kept for the next one. New pages took a third of
# its CPU seconds.
MALLOC = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=1099511627776"
HEAD = '{"head_dtype": "float32"}'
# Memory of a server's processes beside weights and cache, CPU build (docs/scaling.md).
PROGRAM_BYTES = 2 * GIB


START_S = 600.0  # the start of a server, which compiles for minutes on a GPU
RESTARTS = 3  # in a run; a server that dies again and again has a fault that a restart keeps


@dataclass(frozen=True)
class VllmSettings:
    """Settings of the servers that a run starts.

    Attributes:
      python: Interpreter of the environment that has vLLM.
      model: Folder of the model.
      dtype: Dtype of the computation.
      max_length: Largest number of tokens of prompt and response together.
      sequences: Largest number of sequences that one server decodes together.
      weights_dir: Folder that the servers take weights from.
      folder: Folder of the logs.
      gpu: Whether the servers run on GPUs.
      cache_gib: Size of a server's KV cache, GiB, CPU only.
      gpu_memory_fraction: Fraction of a GPU's memory that a server takes.
      lora_rank: Rank of the adapters that the servers sample with; 0 for none.
      arguments: Further arguments of the server.
    """

    python: pathlib.Path
    model: pathlib.Path
    dtype: str
    max_length: int
    sequences: int
    weights_dir: pathlib.Path
    folder: pathlib.Path
    gpu: bool
    cache_gib: float = 1.0
    gpu_memory_fraction: float = 0.85
    lora_rank: int = 0
    arguments: tuple[str, ...] = ()


def cache_gib() -> float:
    """Size of a server's KV cache on CPUs, GiB: vLLM's own variable, or 1."""
    return float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 1)


def server_command(settings: VllmSettings, port: int) -> list[str]:
    """Returns the command of one server on loopback; `launch/vllm_sidecar.sh` has its arguments."""
    if settings.gpu:
        device = ["--gpu-memory-utilization", f"{settings.gpu_memory_fraction:g}"]
    else:
        # On a CPU a request's own seed together with chunked prefill kills the engine, and
        # compiling takes longer than it saves for models that a CPU can serve.
        device = ["--enforce-eager", "--no-enable-chunked-prefill"]
        device += ["--max-num-batched-tokens", str(max(settings.max_length, 2048))]
    adapters = []
    if settings.lora_rank:
        rank = next(rank for rank in RANKS if rank >= settings.lora_rank)
        # One adapter more than the newest: a late request for the previous one must not evict it.
        adapters = ["--enable-lora", "--max-lora-rank", str(rank), "--max-cpu-loras", "2"]
    # Log-probabilities are those of the distribution that tokens are drawn from (processed), which
    # the learner's ratio divides by. "--generation-config vllm" keeps defaults of the model's
    # folder, such as a repetition penalty, out of that distribution. The learner computes logits in
    # float32; vLLM's default is the dtype of the model.
    return [
        str(settings.python),
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(settings.model.resolve())),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", settings.dtype),
        *("--max-model-len", str(settings.max_length)),
        *("--max-num-seqs", str(settings.sequences)),
        *("--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
        *("--hf-overrides", HEAD),
        "--enable-scale-out",
        *("--worker-extension-cls", f"{WORKER}.extension.WeightLoader"),
        *("--middleware", "gigpo_jax.engines.access.RequireKey"),
        "--disable-uvicorn-access-log",
        *adapters,
        *device,
        *settings.arguments,
    ]


def server_environment(settings: VllmSettings, key: str) -> dict[str, str]:
    """Returns the environment of a server: this process's without JAX, with vLLM's settings."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))
    }
    # A server imports thousands of modules; compiling them at every start takes minutes.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    if not settings.gpu:
        inherited.setdefault("GLIBC_TUNABLES", MALLOC)
    return inherited | {
        "PYTHONPATH": str(ROOT),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_API_KEY": key,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": f"{max(1, round(settings.cache_gib))}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        WEIGHTS_DIR: str(settings.weights_dir),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if settings.lora_rank else "0",
    }


def check_settings(settings: VllmSettings, servers: int) -> None:
    """Checks for an interpreter with vLLM, and enough memory.

    Raises:
      InputError: Servers with these settings cannot start.
    """
    environment = settings.python.parent.parent
    if not settings.python.is_file():
        raise InputError(
            "no such interpreter",
            key="config.engine.vllm.python",
            value=repr(str(settings.python)),
            fix="for CPUs: make vllm-venv; on a GPU node: python -m venv .venv-vllm && "
            ".venv-vllm/bin/pip install 'vllm>=0.32,<0.34'",
        )
    installed = any(environment.glob("lib/python*/site-packages/vllm/__init__.py"))
    # Only in a virtual environment is the place known where vLLM must be.
    if (environment / "pyvenv.cfg").is_file() and not installed:
        raise InputError(
            "vLLM is not installed there",
            key="config.engine.vllm.python",
            value=repr(str(settings.python)),
            fix="make vllm-venv",
        )
    available = available_memory()
    # On a GPU vLLM itself checks that its fraction of the memory is enough.
    if settings.gpu or available is None:
        return
    # Weights are in memory twice while they are packed, at worst as float32 from bfloat16 files.
    # Memory that malloc keeps has gaps: half as much again.
    weights = 2.5 * sum(file.stat().st_size for file in settings.model.glob("*.safetensors"))
    cache = max(1, round(settings.cache_gib))
    needed = servers * (weights + cache * GIB + PROGRAM_BYTES)
    if needed > available:
        raise InputError(
            f"needs about {needed / GIB:.1f} GiB ({servers} x (weights {weights / GIB:.1f} + "
            f"cache {cache} + program {PROGRAM_BYTES / GIB:.1f})), {available / GIB:.1f} are free",
            key="config.engine.vllm.servers",
            value=servers,
            fix="use fewer servers, a smaller VLLM_CPU_KVCACHE_SPACE or engine.name=jax",
        )


def available_memory() -> int | None:
    """Returns the bytes of free host memory, or None if the system does not report them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def has_gpu() -> bool:
    """Returns whether an NVIDIA or AMD GPU can be reached."""
    return any(pathlib.Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))


def free_ports(count: int) -> list[int]:
    """Returns free ports of loopback."""
    ports = []
    # All sockets stay open until the end: the system then gives no port twice.
    with contextlib.ExitStack() as open_sockets:
        for _ in range(count):
            server = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports.append(server.getsockname()[1])
    return ports


class ServerProcess:
    """One server that this run starts, and may restart.

    Attributes:
      url: Address of the server.
      log: File with its output.
    """

    def __init__(self, settings: VllmSettings, port: int, key: str):
        """Prepares command and environment; starts nothing yet."""
        self.url = f"http://127.0.0.1:{port}"
        self.log = settings.folder / f"server_{port}.log"
        self._command = server_command(settings, port)
        self._environment = server_environment(settings, key)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts or restarts the server; the log is continued."""
        # A server that hangs still holds its port.
        self.stop()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # The process has its own copy of the file descriptor; this one can be closed.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{WORKER}.guard", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the learner alone
            )

    @property
    def running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ends the server and waits for its end; may be called twice."""
        if self._process is None:
            return
        # The guard ends the server when its standard input closes.
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def log_tail(self) -> str:
        """Returns the last lines of the log that name an error, or the last lines if none does."""
        try:
            lines = self.log.read_bytes()[-65536:].decode(errors="replace").splitlines()
        except OSError:
            return "no log"
        # A traceback quotes lines of code that name errors; only messages are wanted.
        noise = ("Traceback", "WARNING", "INFO", "raise ", "except ")
        errors = []
        for line, next_line in zip(lines, [*lines[1:], ""]):
            if "Error" in line and not any(word in line for word in noise):
                # pydantic writes the reason into an indented line below its error.
                errors.append(line + next_line if next_line.startswith("  ") else line)
        tail = errors or [line for line in lines if line.strip()]
        return " | ".join(" ".join(line.split())[:400] for line in tail[-3:])
