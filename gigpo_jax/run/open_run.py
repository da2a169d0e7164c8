"""Opens a run: the mesh, the policy and its newest parameters."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import local_rows
from gigpo_jax.devices.mesh import learner_mesh
from gigpo_jax.policy import Policy, SignalBytes
from gigpo_jax.run.newest import newest_params
from gigpo_jax.run.open_policy import open_policy
from gigpo_jax.run.progress import show_stage
from gigpo_jax.run.workdir_names import CHECKPOINTS


@dataclass(frozen=True)
class OpenRun:
    """The policy of a run, as in its newest checkpoint.

    Attributes:
      config: Config of the run.
      workdir: Folder of the run.
      mesh: Mesh of the learner's devices.
      policy: Policy with the parameters of `model.path`.
      trained: Newest parameters, in place of `policy.trained`.
      version: Iteration of these parameters; 0: they are the parameters of `model.path`.
    """

    config: ConfigDict
    workdir: Path
    mesh: Mesh
    policy: Policy
    trained: Any
    version: int

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.workdir / CHECKPOINTS

    @property
    def params(self) -> Any:
        """All newest parameters, for an engine."""
        return self.policy.whole(self.trained)

    @property
    def source(self) -> str:
        """Where the parameters come from, for people."""
        if self.version:
            return f"checkpoint {self.version} of {self.workdir}"
        model = self.config.model
        return f"{model.path} with {model.lora.path}" if model.lora.path else model.path


def open_run(
    config: ConfigDict,
    workdir: Path,
    signal_bytes: SignalBytes | None = None,
    *,
    samples: bool = True,
    scores: bool = False,
) -> OpenRun:
    """Reads the newest checkpoint of a workdir, else `model.path`.

    Args:
      config: Config as from `config.resolve`.
      workdir: Folder of the run.
      signal_bytes: Memory of the learner's signals, as for `load_policy`.
      samples: Whether an engine will sample from the policy.
      scores: Whether the learner's programs will score steps.

    Raises:
      InputError: see `open_policy`; or, with `scores`, `batch.rows` does not fit the mesh.
    """
    mesh = learner_mesh(config)
    if scores:
        # Checked before the model is read, which may take minutes.
        local_rows(mesh, config.batch.rows)
    policy = open_policy(config, workdir, mesh, signal_bytes, samples=samples)
    with show_stage("reading the newest checkpoint"):
        trained, version = newest_params(workdir / CHECKPOINTS, policy.trained)
    return OpenRun(config, workdir, mesh, policy, trained, version)
