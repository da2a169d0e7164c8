"""Reads the policy of a run, unless the workdir's checkpoints are of another model."""

from pathlib import Path

from jax.sharding import Mesh
from ml_collections import ConfigDict

from gigpo_jax.policy import Policy, SignalBytes, load_policy
from gigpo_jax.run.progress import show_stage
from gigpo_jax.run.workdir_names import CONFIG


def open_policy(
    config: ConfigDict,
    workdir: Path,
    mesh: Mesh,
    signal_bytes: SignalBytes | None = None,
    *,
    samples: bool = True,
) -> Policy:
    """Reads the policy of `model.path`, to which the checkpoints of the workdir have to fit.

    Raises:
      InputError: see `load_policy`; or the workdir has checkpoints of another adapter or model.
    """
    with show_stage(f"loading {config.model.path}"):
        policy = load_policy(config, mesh, signal_bytes, samples=samples)
    if (workdir / CONFIG).exists():
        from gigpo_jax.run.resumed import check_adapter

        check_adapter(workdir, config, policy.base)
    return policy
