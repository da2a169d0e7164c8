"""The backend starts with the threads of the config."""

import os
import subprocess
import sys

import pytest

# Prints the number of XLA's threads; each thread of a process has a name. A thread of another library may end between
# the listing and the reading.
PROGRAM = """
import contextlib
import pathlib
import sys
from gigpo_jax.config import default_config
from gigpo_jax.devices.backend import start_backend

config = default_config().unlock()
config.compilation.cpu_threads = int(sys.argv[1])
start_backend(config)
names = []
for task in pathlib.Path("/proc/self/task").iterdir():
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        names.append((task / "comm").read_text())
print(sum("XLAEigen" in name for name in names))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
def test_the_config_decides_the_number_of_threads() -> None:
    for threads in ("1", "3"):
        words = [sys.executable, "-c", PROGRAM, threads]
        environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        output = subprocess.run(
            words, check=True, capture_output=True, text=True, timeout=120, env=environment
        )
        assert output.stdout.strip() == threads
