"""Starts vLLM servers on this machine and ends them: command, environment, memory check and log.

A server runs under `worker/guard.py`, which ends it when this process closes its pipe or is killed. The key goes
through the environment; it is in no command line and no file.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
from dataclasses import dataclass

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.vllm.worker.extension import WEIGHTS_DIR

ROOT = pathlib.Path(__file__).parents[3]
WORKER = "gigpo_jax.sampling.vllm.worker"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM 0.32 accepts for --max-lora-rank
STOP_LIMIT_S = 30.0
GIB = 2**30
PROGRAM_BYTES = 2 * GIB  # of a server's processes beside weights and cache, CPU build (docs/scaling.md)


@dataclass(frozen=True)
class LaunchPlan:
    """How servers are started.

    Attributes:
      python: interpreter of the environment that has vLLM.
      model: the model's folder.
      dtype: of the computation.
      max_length: prompt and response together, tokens.
      sequences: most sequences that one server decodes together.
      weights_dir: the folder that they take weights from.
      folder: for logs.
      gpu: whether they run on GPUs.
      cache_gib: KV cache of each, CPU only.
      gpu_memory_fraction: of a GPU's memory, for each.
      lora_rank: of the adapters that they sample with; 0 for none.
      arguments: more arguments of the server.
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


def server_command(plan: LaunchPlan, port: int) -> list[str]:
    """Returns the command of one server on loopback; `launch/vllm_sidecar.sh` uses the same arguments."""
    if plan.gpu:
        device = ["--gpu-memory-utilization", f"{plan.gpu_memory_fraction:g}"]
    else:
        # On a CPU a request's own seed together with chunked prefill kills the engine, and compiling takes longer than
        # it saves for models that a CPU can serve.
        device = ["--enforce-eager", "--no-enable-chunked-prefill"]
        device += ["--max-num-batched-tokens", str(max(plan.max_length, 2048))]
    adapters = []
    if plan.lora_rank:
        rank = next(allowed for allowed in RANKS if allowed >= plan.lora_rank)
        # One more than is sampled with: a late request for the previous adapter must not evict the newest.
        adapters = ["--enable-lora", "--max-lora-rank", str(rank), "--max-cpu-loras", "2"]
    return [
        str(plan.python),
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(plan.model.resolve())),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", plan.dtype, "--max-model-len", str(plan.max_length), "--max-num-seqs", str(plan.sequences)),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-scale-out"),
        *("--worker-extension-cls", f"{WORKER}.extension.WeightLoader"),
        *("--middleware", f"{WORKER}.access.RequireKey", "--disable-uvicorn-access-log"),
        *adapters,
        *device,
        *plan.arguments,
    ]


def server_environment(plan: LaunchPlan, key: str) -> dict[str, str]:
    """Returns the environment of a server: this process's without JAX settings, and what vLLM needs."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)  # a server imports thousands of modules; compiling them takes minutes
    return ours | {
        "PYTHONPATH": str(ROOT),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_API_KEY": key,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": f"{max(1, round(plan.cache_gib))}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        WEIGHTS_DIR: str(plan.weights_dir),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if plan.lora_rank else "0",
    }


def check_plan(plan: LaunchPlan, servers: int) -> None:
    """Refuses what cannot start: no interpreter with vLLM, or too little memory.

    Raises:
      InputError: with the key, the value and the fix.
    """
    environment = plan.python.parent.parent
    if not plan.python.is_file():
        raise InputError(
            f"config.engine.vllm.python={str(plan.python)!r}: no such interpreter; for CPUs: make vllm-venv; "
            "on a GPU node: python -m venv .venv-vllm && .venv-vllm/bin/pip install vllm==0.32.0"
        )
    installed = any(environment.glob("lib/python*/site-packages/vllm/__init__.py"))
    if (environment / "pyvenv.cfg").is_file() and not installed:
        raise InputError(f"config.engine.vllm.python={str(plan.python)!r}: vLLM is not installed there; make vllm-venv")
    free = available_memory()
    if plan.gpu or free is None:
        return
    # Weights a second time while they are packed, at worst as float32 from bfloat16 files.
    weights = 2 * sum(file.stat().st_size for file in plan.model.glob("*.safetensors"))
    cache = max(1, round(plan.cache_gib))
    needed = servers * (weights + cache * GIB + PROGRAM_BYTES)
    if needed > free:
        raise InputError(
            f"config.engine.vllm.servers={servers}: needs about {needed / GIB:.1f} GiB ({servers} x (weights "
            f"{weights / GIB:.1f} + cache {cache} + program {PROGRAM_BYTES / GIB:.1f})), {free / GIB:.1f} are free; "
            "use fewer servers, a smaller engine.vllm.cache_gib or engine.name=jax"
        )


def available_memory() -> int | None:
    """Returns the bytes of host memory that new processes can take; None if the system does not tell."""
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
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class ServerProcess:
    """One server that this run starts, and may restart.

    Attributes:
      url: its address.
      log: its output.
    """

    def __init__(self, plan: LaunchPlan, port: int, key: str):
        """Starts nothing yet."""
        self.url = f"http://127.0.0.1:{port}"
        self.log = plan.folder / f"server_{port}.log"
        self._command, self._environment = server_command(plan, port), server_environment(plan, key)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts or restarts it; the log is continued."""
        self.stop()
        self.log.parent.mkdir(parents=True, exist_ok=True)
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
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ends it and waits until it has ended; may be called twice."""
        if self._process is None:
            return
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
        """Returns the last lines of the log that name an error, each with its continuation; else the last lines."""
        try:
            lines = self.log.read_bytes()[-65536:].decode(errors="replace").splitlines()
        except OSError:
            return "no log"
        noise = ("Traceback", "WARNING", "INFO", "raise ", "except ")
        errors = [
            line + following * following.startswith("  ")  # where pydantic says what is wrong
            for line, following in zip(lines, [*lines[1:], ""])
            if "Error" in line and not any(word in line for word in noise)
        ]
        chosen = errors or [line for line in lines if line.strip()]
        return " | ".join(" ".join(line.split())[:400] for line in chosen[-3:])
