"""The in-process engine as a server, for a learner on another machine (docs/engine_server.md)."""

import contextlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command
from gigpo_jax.devices.mesh import learner_mesh
from gigpo_jax.devices.server_config import server_config
from gigpo_jax.engines.endpoint.address import check_address
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.engines.remote.weight_store import WeightStore, push_name
from gigpo_jax.engines.vllm.worker.extension import architecture, describe_vision
from gigpo_jax.models.files.folders import model_folder
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.lora import LoraConfig
from gigpo_jax.policy import Policy, load_policy, longest_text, lora_config
from gigpo_jax.rollout.engines import make_engine
from gigpo_jax.rollout.remote_engines import model_fingerprint
from gigpo_jax.run import report
from gigpo_jax.run.coroutines import run_async
from gigpo_jax.run.interrupts import Interrupted
from gigpo_jax.run.progress import show_stage


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Serves an engine until SIGINT or SIGTERM.

    Args:
      config: Config as from `config.resolve`.
      workdir: Not used: the weights come from `model.path` and then from the learner.
      out: Not used.

    Returns:
      The exit status: 0.

    Raises:
      InputError: a package or the key is missing, the address cannot be used, or the model does not
        fit.
    """
    del out
    if importlib.util.find_spec("aiohttp") is None:
        raise InputError("needs the package aiohttp", fix=install_command("serve"))
    # Imported here: it needs aiohttp.
    client = importlib.import_module("gigpo_jax.engines.jax_server.client")
    server = importlib.import_module("gigpo_jax.engines.jax_server.server")
    # From the environment: every user of the machine can read a command line.
    key = os.environ.get(client.KEY, "")
    if not key:
        raise InputError(
            "not set",
            key=client.KEY,
            fix="export a random one for server and learner, such as $(openssl rand -hex 24)",
        )
    check_address(config.serve.host, config.serve.port)
    with contextlib.ExitStack() as resources:
        store = WeightStore(config.engine.weights_dir)
        resources.callback(store.close)
        folder = store.folder.resolve()
        if not config.engine.weights_dir:
            # That of all servers and learners of this user; each server has one of its own in it.
            folder /= push_name("server")
            folder.mkdir()
            resources.callback(shutil.rmtree, folder, ignore_errors=True)
        engine, description, params = open_engine(config, workdir)
        resources.callback(engine.close)
        shape = lora_config(config)
        engine_server = server.EngineServer(
            engine,
            params,
            server.ServerSettings(
                host=config.serve.host,
                port=config.serve.port,
                key=key,
                folder=folder,
                is_shared=config.engine.weights_dir != "",
                description=description,
                dtype=config.engine.dtype,
                # The learner writes pairs of scale 1, which is the scale of alpha = rank.
                adapter=shape and LoraConfig(shape.rank, float(shape.rank), shape.targets),
                max_body=server.largest_body(engine.config.vision, longest_text(config)),
            ),
            report.say,
        )
        # They would stay in memory beside the learner's parameters.
        del params
        # An interrupt is the usual end of a server: status 0.
        with contextlib.suppress(Interrupted):
            run_async(engine_server.serve())
    return 0


def open_engine(config: ConfigDict, workdir: Path) -> tuple[JaxEngine, dict[str, Any], Any]:
    """Makes the engine of `model.path`.

    Returns:
      The engine, what the learner checks of it, and its parameters.
    """
    folder = model_folder(config.model.path, config.model.revision)
    config = server_config(config, read_config(folder))
    with show_stage(f"loading {config.model.path}"):
        policy = load_policy(config, learner_mesh(config), trains=False)
    params = policy.whole(policy.trained)
    engine = make_engine(config, policy, params, version=0, folder=workdir)
    return engine, describe_engine(config, policy), params


def describe_engine(config: ConfigDict, policy: Policy) -> dict[str, Any]:
    """The model and settings, as `JaxServer.check` compares them."""
    description = architecture(config_json(policy.config, config.engine.dtype))
    description |= describe_vision(policy.config.vision)
    return description | {
        "tokenizer": model_fingerprint(config),
        "dtype": config.engine.dtype,
        "max_model_len": longest_text(config),
        "adapter_rank": config.model.lora.rank,
        "device": jax.devices()[0].device_kind,
        "base": policy.base,
        "weights": "folder" if config.engine.weights_dir else "pieces",
        "entropies": config.engine.entropies,
    }
