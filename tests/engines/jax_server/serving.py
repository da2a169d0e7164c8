"""Engine servers in processes of their own, and learner's engines that use them."""

import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gigpo_jax.engines.jax_server.client import KEY, JaxServer, jax_request
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.engines.remote.protocol import Limits
from gigpo_jax.engines.vllm.launch import free_ports
from tests.engines.vllm import serving

PASSWORD = serving.KEY
LIMITS = Limits(start_s=60.0, connect_s=60.0, request_s=60.0, push_s=60.0, restarts=0)
# The shapes of `serving.in_process`, so that the engine of this process has the same programs.
FLAGS = (
    "--config=quickstart",
    f"--config.model.path={serving.TINY}",
    "--config.engine.slots=12",
    "--config.engine.dtype=float32",
    "--config.engine.prefill_buckets=(80,)",
    "--config.engine.prefill_rows=(12,)",
    "--config.sampling.max_prompt_tokens=80",
    "--config.sampling.max_response_tokens=16",
)


class Process:
    """A server on a fixed port, which can be started again.

    Attributes:
      url: Its address.
      log: File with its output.
    """

    def __init__(self, folder: pathlib.Path, *flags: str, base: Sequence[str] = FLAGS):
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"server_{port}.log"
        self._command = [sys.executable, "-m", "gigpo_jax", "engine", *base, *flags]
        self._command += [f"--config.serve.port={port}", f"--workdir={folder / 'run'}"]
        self.start()

    def start(self) -> None:
        environment = os.environ | {KEY: PASSWORD}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=serving.ROOT,
            )

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ends the server; returns its status."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def server(folder: pathlib.Path, *flags: str, base: Sequence[str] = FLAGS) -> Iterator[Process]:
    """A server that ends with the block."""
    process = Process(folder, *flags, base=base)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def engine(
    config: Any, params: Any, words: Any, folder: pathlib.Path, *urls: str, **changes: Any
) -> RemoteEngine:
    """The engine of a learner that sends its weights in pieces."""
    settings = {
        "server": functools.partial(JaxServer, folder=folder),
        "make_request": jax_request,
        "limits": LIMITS,
    }
    return serving.engine(
        config, params, words, urls=urls, weights_dir=folder, **(settings | changes)
    )
