"""A run's newest weights as a Hugging Face folder."""

from pathlib import Path

from ml_collections import ConfigDict

from gigpo_jax.columns.critic import CHECKPOINT, FOLDER, abstract_params, save_critic
from gigpo_jax.errors import writing
from gigpo_jax.models.weights import check_target
from gigpo_jax.policy import load_policy, save_policy
from gigpo_jax.run import partition, report
from gigpo_jax.run.checkpoint import newest_params
from gigpo_jax.run.workdir import check_adapter, check_writable


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Writes the newest checkpoint of a workdir, or `model.path` if it has none, for transformers and vLLM.

    With an adapter see `policy.save_policy`.

    A critic goes into `critic/` of the folder, see `critic.save_critic`.

    Args:
      config: as from `config.resolve`.
      workdir: of the training run.
      out: the folder; default WORKDIR/export.

    Raises:
      InputError: the workdir has a checkpoint of another adapter or model, or the folder cannot be written.
    """
    target = Path(out) if out else workdir / "export"
    check_target(target)
    check_writable(target.parent, "--out" if out else "--workdir")
    mesh = partition.make_mesh(**config.mesh)
    policy = load_policy(config, mesh)
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
    return 0
