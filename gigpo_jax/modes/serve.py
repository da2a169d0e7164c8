"""A run's newest weights behind an OpenAI-compatible endpoint, with recorded sessions."""

import asyncio
import concurrent.futures
import contextlib
import errno
import json
import os
from pathlib import Path

from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError, storage_errors
from gigpo_jax.core.files import check_writable
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.engines.endpoint.sessions import EndpointSession, session_record
from gigpo_jax.rollout.engines import make_engine
from gigpo_jax.rollout.harness import MODEL, check_endpoint, make_endpoint
from gigpo_jax.run import report
from gigpo_jax.run.coroutines import run_async
from gigpo_jax.run.interrupts import Interrupted
from gigpo_jax.run.open_run import open_run

KEY = "GIGPO_API_KEY"
# Sessions that programs may have open at once: a program that forgets to end its sessions is
# refused before the records fill the memory.
MAX_SESSIONS = 1024


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Serves a run's newest weights until SIGINT or SIGTERM.

    Args:
      config: Config as from `config.resolve`.
      workdir: Folder of the training run.
      out: File that gets a line of JSON for each rewarded session; default
        WORKDIR/sessions.jsonl.

    Returns:
      The exit status: 0 done, 1 the engine was lost.

    Raises:
      InputError: there is no key; or see `check_endpoint` and `open_run`.
    """
    # From the environment: every user of the machine can read a command line.
    key = os.environ.get(KEY, "")
    if not key:
        raise InputError(
            "not set",
            key=KEY,
            fix="export a random one for server and clients, such as $(openssl rand -hex 24)",
        )
    check_endpoint(config)
    path = Path(out) if out else workdir / "sessions.jsonl"
    check_writable(path.parent, "--out" if out else "--workdir")
    opened = open_run(config, workdir)
    tokenizer = opened.policy.tokenizer
    engine = make_engine(
        config, opened.policy, opened.params, version=opened.version, folder=workdir / "servers"
    )
    # Closed after the endpoint, whose requests use it.
    with contextlib.closing(engine):
        endpoint = make_endpoint(
            config,
            engine,
            tokenizer,
            key,
            max_sessions=MAX_SESSIONS,
            on_end=lambda session: _record_session(session, path),
        )
        # An interrupt is the usual end of a server: status 0.
        with contextlib.closing(endpoint), contextlib.suppress(Interrupted):
            report.say(f"{opened.source} is served; sessions: {path}")
            report.say(f"OPENAI_BASE_URL={endpoint.url}/v1 OPENAI_API_KEY=${KEY} model {MODEL}")
            try:
                run_async(_wait_for_end(endpoint.ended))
            except EngineLost as error:
                report.say(f"stopped: {error}")
                return 1
    return 0


def _record_session(session: EndpointSession, path: Path) -> None:
    """Adds a rewarded session to the file; reports abandoned ones."""
    if session.outcome is None:
        calls = len(session.turns)
        report.say(
            f"session {session.id} of task {session.task.id} was abandoned after {calls} "
            "recorded calls"
        )
        return
    line = json.dumps(session_record(session)).encode() + b"\n"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _append_line(path, line)


async def _wait_for_end(ended: "concurrent.futures.Future[None]") -> None:
    await asyncio.wrap_future(ended)


def _append_line(path: Path, line: bytes) -> None:
    """Adds a whole line to a file, or nothing if the disk is full."""
    # One system call for a line: a process that is killed leaves no half of it in a buffer.
    with path.open("ab", buffering=0) as file:
        previous_size = file.tell()
        # A disk with some room left takes a part of the line without an error.
        if file.write(line) < len(line):
            file.truncate(previous_size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
