"""Starts vLLM servers on this machine: their command, environment and log, and their end.

A server runs under `worker/guard.py`, which ends it and all its processes when this process closes its pipe or is
killed.
The key goes through the environment, never the command line, and is written nowhere.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.errors import InputError
from gigpo_jax.sampling.vllm.worker.adapter import served_rank
from gigpo_jax.sampling.vllm.worker.extension import WEIGHTS_DIR, WEIGHTS_URL

PACKAGE = pathlib.Path(__file__).parents[2]
STOP_LIMIT_S = 30.0
GIB = 2**30
PROGRAM_BYTES = 2 * GIB  # of a server's processes beside weights and cache, CPU build (docs/scaling.md)


@dataclass(frozen=True)
class LaunchPlan:
    """How servers are started.

    Attributes:
      python: interpreter of the environment that has vLLM.
      model: the model's folder.
      dtype: to compute in.
      max_length: prompt and response together, in tokens.
      sequences: the most that are decoded together by one server.
      weights_dir: the folder that they take weights from.
      weights_url: the address that they may pull weights from; "" for none.
      folder: for logs.
      gpu: whether they run on GPUs.
      cache_gib: KV cache of each, CPU only.
      gpu_memory_fraction: share of a GPU's memory that each takes.
      lora_rank: of the adapters that they sample with; 0 for none.
      arguments: more arguments of the server.
    """

    python: pathlib.Path
    model: pathlib.Path
    dtype: str
    max_length: int
    sequences: int
    weights_dir: pathlib.Path
    weights_url: str
    folder: pathlib.Path
    gpu: bool
    cache_gib: float = 1.0
    gpu_memory_fraction: float = 0.85
    lora_rank: int = 0
    arguments: tuple[str, ...] = ()


def server_command(plan: LaunchPlan, port: int) -> list[str]:
    """The command of one server on loopback; `launch/vllm_sidecar.sh` gives the same arguments."""
    batched = str(max(plan.max_length, 2048))
    device = (
        ["--gpu-memory-utilization", f"{plan.gpu_memory_fraction:g}"]
        if plan.gpu
        # On a CPU a seed of a request's own together with chunked prefill kills the engine; compiling takes longer than
        # it saves for models that a CPU can serve.
        else [
            "--enforce-eager",
            "--no-enable-chunked-prefill",
            "--max-num-batched-tokens",
            batched,
        ]
    )
    loader, adapters = "extension.WeightLoader", []
    if plan.lora_rank:
        loader = "adapter.AdapterLoader"
        # One more than is sampled with: a late request for the adapter before must not push the newest out.
        adapters = ["--enable-lora", "--max-lora-rank", str(served_rank(plan.lora_rank)), "--max-cpu-loras", "2"]
    return [
        str(plan.python),
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(plan.model.resolve())),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", plan.dtype, "--max-model-len", str(plan.max_length), "--max-num-seqs", str(plan.sequences)),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-scale-out"),
        *("--worker-extension-cls", f"gigpo_jax.sampling.vllm.worker.{loader}"),
        *("--middleware", "gigpo_jax.sampling.vllm.worker.access.RequireKey"),
        "--disable-uvicorn-access-log",
        *adapters,
        *device,
        *plan.arguments,
    ]


def server_environment(plan: LaunchPlan, key: str) -> dict[str, str]:
    """The environment of a server: ours, without what is meant for jax, and what vLLM needs."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)  # a server imports thousands of modules; compiling them takes minutes
    return ours | {
        "PYTHONPATH": str(PACKAGE.parent),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_API_KEY": key,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": f"{max(1, round(plan.cache_gib))}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        WEIGHTS_DIR: str(plan.weights_dir),
        WEIGHTS_URL: plan.weights_url,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if plan.lora_rank else "0",
    }


def check_plan(plan: LaunchPlan, servers: int) -> None:
    """Refuses what cannot start: no interpreter with vLLM, or too little memory.

    Raises:
      InputError: with the key, the value and the fix.
    """
    if not plan.python.is_file():
        raise InputError(
            f"config.engine.vllm.python={str(plan.python)!r}: no such interpreter; for CPUs: make vllm-venv; "
            "on a GPU node: python -m venv .venv-vllm && .venv-vllm/bin/pip install vllm==0.32.0"
        )
    libraries = plan.python.parent.parent.glob("lib/python*/site-packages/vllm/__init__.py")
    if plan.python.parent.parent.joinpath("pyvenv.cfg").is_file() and not any(libraries):
        raise InputError(f"config.engine.vllm.python={str(plan.python)!r}: vLLM is not installed there; make vllm-venv")
    if not plan.gpu:
        _check_host_memory(plan, servers)


def _check_host_memory(plan: LaunchPlan, servers: int, available: int | None = None) -> None:
    files = sum(file.stat().st_size for file in plan.model.glob("*.safetensors"))
    weights = files * 2  # a second time while they are packed, and at worst as float32 from bfloat16 files
    cache = max(1, round(plan.cache_gib))
    needed = servers * (weights + cache * GIB + PROGRAM_BYTES)
    there = available_memory() if available is None else available
    if there is not None and needed > there:
        raise InputError(
            f"config.engine.vllm.servers={servers}: needs about {needed / GIB:.1f} GiB ({servers} x (weights "
            f"{weights / GIB:.1f} + cache {cache} + program {PROGRAM_BYTES / GIB:.1f})), free are "
            f"{there / GIB:.1f}; use fewer servers, a smaller engine.vllm.cache_gib or engine.name=jax"
        )


def available_memory() -> int | None:
    """Bytes of host memory that new processes can take; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def has_gpu() -> bool:
    """Whether an NVIDIA or AMD GPU can be reached from here."""
    return any(pathlib.Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))


def choose_ports(first: int, servers: int) -> list[int]:
    """Ports of this machine that are free: `first` and the ones after it, or any if that is 0.

    Raises:
      InputError: one is in use.
    """
    ports = []
    with contextlib.ExitStack() as held:
        for number in range(servers):
            probe = held.enter_context(contextlib.closing(socket.socket()))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            wanted = first + number if first else 0
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError as err:
                raise InputError(
                    f"config.engine.vllm.port={first}: port {wanted} is in use ({err.strerror}); another one, or 0"
                ) from err
            ports.append(probe.getsockname()[1])
    return ports


class ServerProcess:
    """One server that we started; it can be started again."""

    def __init__(self, plan: LaunchPlan, port: int, key: str):
        """Starts nothing yet."""
        self.url = f"http://127.0.0.1:{port}"
        self.log = plan.folder / f"server_{port}.log"
        self._command, self._environment = server_command(plan, port), server_environment(plan, key)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, or starts it again; its log goes on."""
        self.stop()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        guard = [sys.executable, "-m", "gigpo_jax.sampling.vllm.worker.guard", *self._command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                guard,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the learner alone
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ends it and waits until it has; may be called twice."""
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

    def last_words(self, lines: int = 3) -> str:
        """The end of its log that says most: the last lines with an error, or just the last."""
        try:
            text = self.log.read_bytes()[-65536:].decode(errors="replace").splitlines()
        except OSError:
            return "no log"
        chosen = _errors(text) or [line for line in text if line.strip()]
        return " | ".join(" ".join(line.split())[:400] for line in chosen[-lines:])


def _errors(lines: Sequence[str]) -> list[str]:
    """The lines that name an error, each with the indented one after it, where pydantic says what is wrong."""
    noise = ("Traceback", "WARNING", "INFO", "raise ", "except ")
    return [
        line + following * following.startswith("  ")
        for line, following in zip(lines, [*lines[1:], ""])
        if "Error" in line and not any(word in line for word in noise)
    ]


def wait_message(url: str, started: float, process: ServerProcess | None) -> str:
    """What to tell a person who waits for a server."""
    where = f"; log: {process.log}" if process else ""
    return f"waiting for {url}, {time.monotonic() - started:.0f} s{where}"
