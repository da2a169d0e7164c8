"""A run's newest weights as a Hugging Face folder."""

import json
import shlex
from pathlib import Path

import jax
from ml_collections import ConfigDict

from gigpo_jax.columns.critic import CHECKPOINT, FOLDER, abstract_params, save_critic
from gigpo_jax.errors import writing
from gigpo_jax.models import hub
from gigpo_jax.models.weights import check_target
from gigpo_jax.policy import load_policy, save_policy
from gigpo_jax.rollout.engines import max_length
from gigpo_jax.run import partition, report
from gigpo_jax.run.checkpoint import newest_params
from gigpo_jax.run.workdir import check_adapter, check_writable


def run(config: ConfigDict, workdir: Path, out: str, push: str = "") -> int:
    """Writes the newest checkpoint of a workdir, or `model.path` if it has none, for transformers and vLLM.

    With an adapter see `policy.save_policy`.

    A critic goes into `critic/` of the folder, see `critic.save_critic`.

    Args:
      config: as from `config.resolve`.
      workdir: of the training run.
      out: the folder; default WORKDIR/export.
      push: ORG/NAME, where the Hugging Face Hub gets the folder too; "" for nowhere.

    Raises:
      InputError: the workdir has a checkpoint of another adapter or model, or the folder cannot be written.
      StorageError: the push failed; the folder is complete.
    """
    if push:
        hub.check_push(push)
    target = Path(out) if out else workdir / "export"
    check_target(target)
    check_writable(target.parent, "--out" if out else "--workdir")
    mesh = partition.learner_mesh(config)
    policy = load_policy(config, mesh, samples=False)
    check_adapter(workdir, config, policy.base)
    trained, version = newest_params(workdir / "checkpoints", policy.trained)
    if config.critic.kind == "none" or not version:
        critic = None
    else:
        abstract = abstract_params(config, policy, mesh)
        critic, _ = newest_params(workdir / "checkpoints", abstract, f"{CHECKPOINT}params")
    with writing(target):
        written = save_policy(target, config, policy, trained)
        if critic is not None:
            save_critic(target / FOLDER, config, policy, written, critic)
    report.say(f"{f'checkpoint {version}' if version else config.model.path} is in {target}")
    report.say(serve_line(config, target))
    if push and jax.process_index() == 0:
        report.say(f"pushed to {hub.push(target, push)}")
    return 0


def serve_line(config: ConfigDict, folder: Path) -> str:
    """The command that serves the folder with vLLM, which takes stop strings from requests alone."""
    words = ["vllm", "serve", str(folder), "--dtype", config.engine.dtype, "--max-model-len", str(max_length(config))]
    stop = json.dumps({"stop": list(config.sampling.stop), "include_stop_str_in_output": True})
    return f"serve: {shlex.join(words)}" + (f"    (each request with {stop})" if config.sampling.stop else "")
