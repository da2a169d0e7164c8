"""A run's newest weights as a Hugging Face folder."""

from pathlib import Path

from ml_collections import ConfigDict

from gigpo_jax import partition, report
from gigpo_jax.checkpoint import newest_params
from gigpo_jax.models.weights import save_hf
from gigpo_jax.policy import load_policy


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Writes the newest checkpoint of a workdir (or `model.path`, if it has none) for transformers and vLLM.

    Args:
      config: as from `config.default_config`, validated.
      workdir: of the training run.
      out: the folder; default WORKDIR/export.
    """
    mesh = partition.make_mesh(**config.mesh)
    policy = load_policy(config, mesh)
    params, version = newest_params(workdir / "checkpoints", policy.params)
    target = Path(out) if out else workdir / "export"
    save_hf(target, policy.config, params, tokenizer=policy.tokenizer)
    report.say(f"{f'checkpoint {version}' if version else config.model.path} is in {target}")
    return 0
