"""Bytes and seconds of weight pushes over slow cables: `python -m tests.network.push_rates MODEL...`.

A learner pushes random weights, or an adapter alone, to `gigpo engine` on another host. MODEL is
135m or a name of `models.published`, such as 0.5b. Needs root. Prints for each rate: bytes of the
cable, seconds until all pieces are there, and seconds until the server has the verified weights.
"""

import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.vllm import SMOLLM2, TINY, random_params
from gigpo_jax.engines.jax_server.client import JaxServer
from gigpo_jax.engines.remote.protocol import Limits
from gigpo_jax.models import lora
from gigpo_jax.models.files.checksum import folder_checksum
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.published import PUBLISHED
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.jax_server import serving
from tests.network.hosts import Network
from tests.network.programs import QUIET

PORT = 8000
RANK = 32
DTYPE = "bfloat16"
GBITS = (1, 10)
LIMIT_S = 900.0
SENT_BYTES = pathlib.Path("/sys/class/net/eth0/statistics/tx_bytes")
SERVER_FLAGS = (
    "--config=quickstart",
    f"--config.engine.dtype={DTYPE}",
    "--config.engine.slots=2",
    "--config.engine.prefill_buckets=(80,)",
    "--config.engine.prefill_rows=(1,)",
    "--config.sampling.max_prompt_tokens=80",
    "--config.sampling.max_response_tokens=16",
    "--config.serve.host=0.0.0.0",
    f"--config.serve.port={PORT}",
)


class TimedServer(JaxServer):
    """Counts the seconds of sending."""

    sent_s = 0.0

    async def _send_files(self, folder: pathlib.Path, name: str) -> None:
        start = time.perf_counter()
        await super()._send_files(folder, name)
        self.sent_s = time.perf_counter() - start


def limit_rate(gbit: int) -> None:
    """Limits what this host sends."""
    words = ["root", "tbf", "rate", f"{gbit}gbit", "burst", f"{4 * gbit}mbit", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "replace", "dev", "eth0", *words], check=True)


def push(model: str, rank: int, url: str, folder: pathlib.Path) -> None:
    """Pushes once for each rate; prints a line each."""
    words = load_tokenizer(TINY)
    config = replace((PUBLISHED | {"135m": SMOLLM2})[model], num_tokens=words.vocab_size)
    params = random_params(config, jnp.dtype(DTYPE))
    base = ""
    if rank:
        shape = lora.LoraConfig(rank, float(rank))
        adapter = lora.init_adapter(config, shape, jax.random.key(0))
        params = lora.attach_adapter(params, adapter, 1.0)
        base = folder_checksum(folder.with_name("model"))
    server = functools.partial(TimedServer, folder=folder)
    limits = Limits(start_s=LIMIT_S, connect_s=LIMIT_S, request_s=60.0, push_s=LIMIT_S, restarts=0)
    changes: dict[str, Any] = {"server": server, "limits": limits, "dtype": DTYPE, "base": base}
    with serving.engine(config, params, words, folder, url, **changes) as engine:
        (timed,) = engine._pool.servers
        assert isinstance(timed, TimedServer)
        for version, gbit in enumerate(GBITS, 1):
            limit_rate(gbit)
            sent_bytes = int(SENT_BYTES.read_text())
            start = time.perf_counter()
            engine.update_weights(params, version)
            row = {
                "model": model,
                "rank": rank,
                "gbit": gbit,
                "megabytes": (int(SENT_BYTES.read_text()) - sent_bytes) / 1e6,
                "sent_s": timed.sent_s,
                "push_s": time.perf_counter() - start,
            }
            print(json.dumps(row), flush=True)


def measure(model: str, rank: int, folder: pathlib.Path) -> None:
    """Starts the hosts, and prints what the learner prints."""
    config = (PUBLISHED | {"135m": SMOLLM2})[model]
    path = folder / "model"
    if not path.exists():
        params = random_params(config, jnp.dtype(DTYPE))
        save_hf(path, config, params, tokenizer=load_tokenizer(TINY))
    with Network(folder, ("learner", "engine")) as network:
        url = f"http://{network.addresses['engine']}:{PORT}"
        program = [sys.executable, "-m", "gigpo_jax", "engine", *SERVER_FLAGS]
        flags = [f"--config.model.path={path}", f"--config.model.lora.rank={rank}"]
        command = [*program, *flags, f"--workdir={folder / 'engine'}"]
        server = network.start("engine", command, QUIET)
        role = [sys.executable, "-m", "tests.network.push_rates", "--learner", model, str(rank)]
        learner = network.start("learner", [*role, url, str(folder / "pushes")], QUIET)
        out, err = learner.communicate(timeout=2 * LIMIT_S)
        server.terminate()
        assert learner.returncode == 0, (err, server.communicate()[1])
    print(*(line for line in out.splitlines() if line.startswith("{")), sep="\n", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--learner":
        push(sys.argv[2], int(sys.argv[3]), sys.argv[4], pathlib.Path(sys.argv[5]))
    for model in () if sys.argv[1] == "--learner" else sys.argv[1:]:
        with tempfile.TemporaryDirectory() as name:
            for rank in (0, RANK):
                measure(model, rank, pathlib.Path(name))
