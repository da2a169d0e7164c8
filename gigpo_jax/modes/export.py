"""A run's newest weights as a Hugging Face folder."""

import json
import shlex
from pathlib import Path

import jax
from ml_collections import ConfigDict

from gigpo_jax.core.errors import storage_errors
from gigpo_jax.core.files import check_writable
from gigpo_jax.learner.critic_model import FOLDER, abstract_critic_params, save_critic
from gigpo_jax.learner.signals.critic import CHECKPOINT_PARAMS
from gigpo_jax.models.files import hub
from gigpo_jax.models.files.save_weights import check_target
from gigpo_jax.modes.model_folder import save_policy
from gigpo_jax.policy import longest_text
from gigpo_jax.run import report
from gigpo_jax.run.newest import newest_params
from gigpo_jax.run.open_run import open_run
from gigpo_jax.run.progress import show_stage


def run(config: ConfigDict, workdir: Path, out: str, push: str = "") -> int:
    """Writes the newest weights for transformers and vLLM, and a critic, if any, into `critic/`.

    See `model_folder.save_policy` for a policy with an adapter, and `critic_model.save_critic`.

    Args:
      config: Config as from `config.resolve`.
      workdir: Folder of the training run.
      out: Folder to write; default WORKDIR/export.
      push: Model ORG/NAME of the Hugging Face Hub that gets the folder too; "" for none.

    Returns:
      The exit status, 0.

    Raises:
      InputError: see `open_run`; or the folder cannot be written.
      StorageError: the push failed; the folder is complete.
    """
    if push:
        # First: a missing token is known before the model is read and written.
        hub.check_push(push)
    target = Path(out) if out else workdir / "export"
    check_target(target)
    check_writable(target.parent, "--out" if out else "--workdir")
    opened = open_run(config, workdir, samples=False)
    critic = None
    # Version 0 is model.path, for which no critic was trained.
    if config.critic.kind != "none" and opened.version:
        shapes = abstract_critic_params(config, opened.policy, opened.mesh)
        critic, _ = newest_params(opened.checkpoints, shapes, CHECKPOINT_PARAMS)
    # All hosts take part: the parameters may be spread over them.
    with show_stage(f"writing {target}"), storage_errors(target):
        params = save_policy(target, config, opened.policy, opened.trained)
        if critic is not None:
            save_critic(target / FOLDER, config, opened.policy, params, critic)
    report.say(f"{opened.source} is in {target}")
    report.say(_serve_line(config, target))
    if push and jax.process_index() == 0:
        report.say(f"pushed to {hub.push(target, push)}")
    return 0


def _serve_line(config: ConfigDict, folder: Path) -> str:
    """The command that serves the folder with vLLM."""
    command = shlex.join(
        [
            "vllm",
            "serve",
            str(folder),
            "--dtype",
            config.engine.dtype,
            "--max-model-len",
            str(longest_text(config)),
        ]
    )
    if not config.sampling.stop:
        return f"serve: {command}"
    # vLLM takes stop strings from requests alone.
    stop = json.dumps({"stop": list(config.sampling.stop), "include_stop_str_in_output": True})
    return f"serve: {command}    (each request with {stop})"
