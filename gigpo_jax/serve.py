"""A run's newest weights behind an OpenAI-compatible endpoint, and the sessions that programs have with them."""

import asyncio
import concurrent.futures
import contextlib
import errno
import json
import os
from pathlib import Path

from ml_collections import ConfigDict

from gigpo_jax.endpoint.sessions import Session, as_json
from gigpo_jax.errors import InputError, writing
from gigpo_jax.policy import load_policy
from gigpo_jax.rollout.engines import make_engine
from gigpo_jax.rollout.harness import MODEL, check_endpoint, make_endpoint
from gigpo_jax.run import partition, report
from gigpo_jax.run.checkpoint import newest_params
from gigpo_jax.run.interrupts import Interrupted, run_async
from gigpo_jax.run.workdir import check_adapter, check_writable
from gigpo_jax.sampling.base import EngineLost

KEY = "GIGPO_API_KEY"


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Serves the newest checkpoint of a workdir, or `model.path` if it has none, until SIGINT or SIGTERM.

    Args:
      config: as from `config.resolve`.
      workdir: of the training run.
      out: gets a line of JSON for each rewarded session; default WORKDIR/sessions.jsonl.

    Raises:
      InputError: no key, as `check_endpoint`, or the workdir's adapter is another one.
    """
    key = os.environ.get(KEY, "")
    if not key:
        raise InputError(f"{KEY}: not set; export a random one for server and clients, such as $(openssl rand -hex 24)")
    if config.distributed:
        raise InputError("config.distributed=True: one host serves; leave it out")
    check_endpoint(config)
    path = Path(out) if out else workdir / "sessions.jsonl"
    check_writable(path.parent, "--out" if out else "--workdir")
    policy = load_policy(config, partition.learner_mesh(config))
    check_adapter(workdir, config, policy.base)
    trained, version = newest_params(workdir / "checkpoints", policy.trained)

    def on_end(session: Session) -> None:
        if session.outcome is None:
            calls = len(session.turns)
            report.say(f"session {session.id} of task {session.task.id} was abandoned after {calls} recorded calls")
            return
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _append(path, json.dumps(as_json(session)).encode() + b"\n")

    engine = make_engine(config, policy, policy.whole(trained), version=version, folder=workdir / "servers")
    with contextlib.closing(engine):
        sessions = config.serve.max_sessions
        endpoint = make_endpoint(config, engine, policy.tokenizer, key, max_sessions=sessions, on_end=on_end)
        with contextlib.closing(endpoint), contextlib.suppress(Interrupted):
            report.say(f"{f'checkpoint {version}' if version else config.model.path} is served; sessions: {path}")
            report.say(f"OPENAI_BASE_URL={endpoint.url}/v1 OPENAI_API_KEY=${KEY} model {MODEL}")
            try:
                run_async(_end_of(endpoint.ended))
            except EngineLost as error:
                report.say(f"stopped: {error}")
                return 1
    return 0


async def _end_of(ended: "concurrent.futures.Future[None]") -> None:
    await asyncio.wrap_future(ended)


def _append(path: Path, line: bytes) -> None:
    """Adds a whole line to a file or, if the disk is full, nothing."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        if file.write(line) < len(line):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
