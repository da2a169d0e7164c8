"""GiGPO on ALFWorld with the published settings (arXiv 2505.10978), 150 iterations.

    gigpo train --config=configs/alfworld.py:1.5b --workdir=runs/alfworld \
        --config.model.path=/models/Qwen2.5-1.5B-Instruct \
        --config.env.options.data=$ALFWORLD_DATA/json_2.1.1 \
        --config.eval.panel=genuine_seen.json

The panel is an evaluation set, frozen from the same games once (docs/alfworld.md, "Panels");
without one nothing is evaluated. The authors' scripts evaluate on the 140 games of valid_seen by
default.

Hardware: 1.5b from one GPU with 80 GB; 7b from eight (fsdp=8), or a TPU slice with as much memory.
Expected: the paper reports 86.7% (1.5B) and 90.8% (7B) success, mean of three seeds, without naming
the split. Nothing has been trained at that size with this code yet; docs/guide.md says what to
watch. docs/settings.md compares all settings with the paper and the authors' scripts.

The variants 1.5b_ppo and 7b_ppo are the paper's PPO baseline, with a critic and 128 tasks of one
episode, as in the authors' script: 54.4% and 80.4%. A critic needs as much memory as the policy;
two GPUs with 80 GB, and sixteen.
"""

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def get_config(variant: str = "1.5b") -> ConfigDict:
    """The config of a model size, 1.5b or 7b; with _ppo PPO in place of GiGPO."""
    size, _, ppo = variant.partition("_")
    if size not in ("1.5b", "7b") or variant not in (size, f"{size}_ppo"):
        raise ValueError("no such variant; choose 1.5b, 7b, 1.5b_ppo or 7b_ppo")
    config = default_config().unlock()
    config.env.workers = 8
    config.engine.prefill_chunk = 32
    config.engine.prefill_rows = (32,)
    config.sampling.stop = ()  # the end-of-sequence token ends a response, and is trained too
    config.rl.entropy_coef = 0.001
    config.rl.old_logprobs = "recompute"
    config.mesh.fsdp = {"1.5b": 1, "7b": 8}[size]
    config.batch.rows = {"1.5b": 8, "7b": 16}[size]
    if ppo:
        config.rl.algorithm = "ppo"
        config.train.groups = 128
        config.train.group_size = 1
        config.mesh.fsdp *= 2
    return config.lock()
