"""A container of a server, which ends with this process however that ends."""

import functools
import select
import shutil
import subprocess
import time
import urllib.request
import uuid

from gigpo_jax.core.errors import InputError

PORT = 8000  # of OpenEnv's servers, in the container
_WAIT_S = 0.2
# A shell in a session of its own guards the container. Its standard input is a pipe from this
# process: the kernel closes it when this process ends, also by SIGKILL, and `read` returns.
_GUARD = f"""
trap "" INT TERM HUP
docker run --detach --rm --pull never --name "$0" --publish 127.0.0.1::{PORT} "$1" >/dev/null &&
docker port "$0" {PORT} &&
read -r line
docker rm --force "$0" >/dev/null 2>&1
"""


@functools.cache
def start_container(image: str, limit_s: float) -> str:
    """Starts a server, once in a process; returns its URL.

    Args:
      image: Image that is on this machine.
      limit_s: Time limit until the server answers, s.

    Raises:
      InputError: There is no docker or no such image, or the server does not answer.
    """
    key = "config.env.name"
    value = repr(f"openenv:{image}")
    fix = "start the server by hand, and give its URL"
    if shutil.which("docker") is None:
        raise InputError("an image needs docker, which is not here", key=key, value=value, fix=fix)
    deadline = time.monotonic() + limit_s
    guard = subprocess.Popen(
        ["sh", "-c", _GUARD, f"gigpo-{uuid.uuid4().hex[:12]}", image],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    assert guard.stderr is not None
    address = ""
    if select.select([guard.stdout], [], [], limit_s)[0]:
        address = guard.stdout.readline().strip()
    url = f"http://{address}"
    if address and _wait_for_health(url, deadline):
        _GUARDS.append(guard)
        return url
    # The guard removes the container.
    guard.stdin.close()
    reason = f"no answer within {limit_s:g} s"
    if not address and time.monotonic() < deadline:
        reason = " ".join(guard.stderr.read().split()) or "docker run has failed"
    raise InputError(
        f"the container does not start ({reason})",
        key=key,
        value=value,
        fix=f"docker pull {image}, or {fix}",
    )


_GUARDS: list[subprocess.Popen[str]] = []  # while this process lives, so do their pipes


def _wait_for_health(url: str, deadline: float) -> bool:
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=left_s):
                return True
        # A server that is not up yet, or answers only half.
        except (OSError, ValueError):
            time.sleep(_WAIT_S)
    return False
