"""Advantages, loss and gradient of one saved batch, beside verl-agent's own core functions.

    gigpo train --config=configs/quickstart.py --workdir=runs/batch --config.train.iterations=1 \\
        --config.train.save_rollouts=1 --config.eval.panel= --config.seed=100
    python -m benchmarks.beside_verl_agent write runs/batch/rollouts/iteration_000001.host0.jsonl.gz \\
        runs/batch.npz
    python benchmarks/beside_verl_agent.py check runs/batch.npz FOLDER_OF_VERL_AGENT

`check` needs numpy, torch and a clone of verl-agent, and neither jax nor this package: it takes the
functions by name from the clone's files and runs them. The new and reference log-probabilities are
the rollout's plus seeded noise, so that clips, dual clip and KL term take part. The loss is
differentiated with respect to the new log-probabilities of tokens; what follows is the model's own
gradient.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

GAMMA = 0.95
CLIP = 0.2
DUAL_CLIP = 3.0
KL_COEF = 0.01
PRESETS = ("verl_agent", "paper")
NORMALIZE = {"mean_std": False, "mean": True}  # value of remove_std
FUNCTIONS = {
    "gigpo/core_gigpo.py": (
        "to_hashable",
        "compute_step_discounted_returns",
        "episode_norm_reward",
        "build_step_group",
        "step_norm_reward",
    ),
    "verl/trainer/ppo/core_algos.py": ("agg_loss", "compute_policy_loss", "kl_penalty"),
    "verl/utils/torch_functional.py": ("masked_mean", "masked_sum"),
}


def make_batch(episodes: Sequence[Any]) -> dict[str, Any]:
    """The columns and tokens of saved episodes; learner and reference differ by seeded noise."""
    steps = [(e, t, step) for e, row in enumerate(episodes) for t, step in enumerate(row.steps)]
    width = max(len(step.tokens) for _, _, step in steps)
    lengths = np.array([len(step.tokens) for _, _, step in steps])
    mask = np.arange(width) < lengths[:, None]
    behaviour = np.zeros(mask.shape, np.float32)
    for row, (_, _, step) in zip(behaviour, steps, strict=True):
        row[: len(step.logprobs)] = step.logprobs
    rng = np.random.default_rng(0)
    return {
        "mask": mask,
        "behaviour": behaviour,
        "logprob": behaviour + mask * rng.normal(0, 0.5, mask.shape).astype(np.float32),
        "reference": behaviour + mask * rng.normal(0, 0.5, mask.shape).astype(np.float32),
        "reward": np.array([step.reward for _, _, step in steps], np.float32),
        "penalty": np.array([step.penalty for _, _, step in steps], np.float32),
        "trajectory": np.array([e for e, _, _ in steps], np.int32),
        "step": np.array([t for _, t, _ in steps], np.int32),
        "group": np.array([episodes[e].group for e, _, _ in steps], np.int32),
        "anchor": np.array([step.anchor for _, _, step in steps]),
    }


def write(source: str, target: str) -> None:
    """Writes a batch as arrays, with our advantages, losses and gradients."""
    import jax
    import jax.numpy as jnp

    from gigpo_jax.env_bridge.types import anchor_hash
    from gigpo_jax.rl.algorithms import make_advantages
    from gigpo_jax.rl.losses import LossSettings, loss_divisor, policy_loss
    from gigpo_jax.rl.types import StepBatch, StepColumns
    from gigpo_jax.rollout.read_record import read_rollouts

    episodes = [episode for episode in read_rollouts(Path(source)).episodes if episode.steps]
    batch = make_batch(episodes)
    mask, behaviour = batch["mask"], batch["behaviour"]
    columns = StepColumns(
        **{name: batch[name] for name in ("reward", "penalty", "trajectory", "step", "group")},
        anchor=np.array([anchor_hash(text) for text in batch["anchor"]], np.uint32),
        mask=np.ones(len(mask), bool),
    )
    settings = LossSettings(CLIP, CLIP, dual_clip=DUAL_CLIP, kl_coef=KL_COEF)
    for preset in PRESETS:
        for normalize in NORMALIZE:
            function = make_advantages(
                "gigpo", preset, gamma=GAMMA, step_weight=1.0, normalize=normalize
            )
            advantages = function(columns)
            name = f"{preset}/{normalize}"
            batch[f"{name}/episode"] = np.asarray(advantages.episode)
            batch[f"{name}/step"] = np.asarray(advantages.step)
            zeros = np.zeros(mask.shape, np.int32)
            minibatch = StepBatch(
                tokens=zeros,
                positions=zeros,
                segment_ids=mask.astype(np.int32),
                response_index=zeros,
                responses=mask.astype(np.int32),
                targets=zeros,
                behaviour=behaviour,
                advantage=np.asarray(advantages.total)[:, None] * mask,
                weight=mask.astype(np.float32),
                microbatches=np.int32(1),
                reference=batch["reference"],
            )

            def loss(logprob: jax.Array, minibatch: StepBatch = minibatch) -> jax.Array:
                sums = policy_loss(logprob, jnp.zeros(mask.shape), minibatch, settings)
                return sums.loss / loss_divisor(minibatch, settings)

            value, gradient = jax.value_and_grad(loss)(jnp.asarray(batch["logprob"]))
            batch[f"{name}/loss"] = np.asarray(value)
            batch[f"{name}/gradient"] = np.asarray(gradient)
    np.savez_compressed(target, **batch)
    print(f"{len(mask)} steps, {int(mask.sum())} tokens, {len(episodes)} episodes")


def take_functions(folder: Path) -> SimpleNamespace:
    """Takes functions by name from the files of a clone, without importing its packages."""
    import uuid
    from collections import Counter, defaultdict

    import torch

    names: dict[str, Any] = {
        "np": np,
        "torch": torch,
        "uuid": uuid,
        "defaultdict": defaultdict,
        "Counter": Counter,
        "Any": Any,
        "Dict": dict,
        "List": list,
        "DataProto": object,
    }
    for file, wanted in FUNCTIONS.items():
        tree = ast.parse((folder / file).read_text())
        tree.body = [
            node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted
        ]
        exec(compile(tree, file, "exec"), names)
    # The functions of the loss call the other file's functions by the name of its module.
    names["verl_F"] = SimpleNamespace(masked_mean=names["masked_mean"])
    return SimpleNamespace(**names)


def check(source: str, folder: str) -> None:
    """Prints the largest differences from the functions of a clone."""
    import torch

    theirs = take_functions(Path(folder))
    batch = np.load(source)
    mask = torch.tensor(batch["mask"]).float()
    behaviour = torch.tensor(batch["behaviour"])
    reference = torch.tensor(batch["reference"])
    anchor = batch["anchor"].astype(object)
    groups = theirs.build_step_group(anchor, batch["group"])
    print("| preset, normalize | episode part | step part | loss | gradient |")
    print("|---|---|---|---|---|")
    for preset in PRESETS:
        # The paper subtracts penalties from rewards; the authors' code from the row of the step.
        is_paper = preset == "paper"
        reward = batch["reward"] - batch["penalty"] * is_paper
        row_penalty = batch["penalty"] * (not is_paper)
        proto = SimpleNamespace(
            non_tensor_batch={
                "rewards": reward,
                "traj_uid": batch["trajectory"],
                "active_masks": np.ones(len(reward)),
            },
            batch={"input_ids": mask},
        )
        returns = theirs.compute_step_discounted_returns(proto, GAMMA)
        returns = returns - torch.tensor(row_penalty)
        totals = np.bincount(batch["trajectory"], weights=reward)[batch["trajectory"]]
        scores = torch.zeros_like(mask)
        scores[:, 0] = torch.tensor(totals - row_penalty).float()
        for normalize, remove_std in NORMALIZE.items():
            name = f"{preset}/{normalize}"
            episode = theirs.episode_norm_reward(
                scores, mask, batch["group"], batch["trajectory"], 1e-6, remove_std, not is_paper
            )
            step = theirs.step_norm_reward(returns, mask, groups, 1e-6, remove_std)
            logprob = torch.tensor(batch["logprob"], requires_grad=True)
            loss, *_ = theirs.compute_policy_loss(
                behaviour, logprob, episode + step, mask, CLIP, clip_ratio_c=DUAL_CLIP
            )
            divergence = theirs.kl_penalty(logprob, reference, "low_var_kl")
            loss = loss + KL_COEF * theirs.agg_loss(divergence, mask, "token-mean")
            loss.backward()
            # The first token of each response has the advantage of the step.
            pairs = {
                "episode": (batch[f"{name}/episode"], episode[:, 0]),
                "step": (batch[f"{name}/step"], step[:, 0]),
                "loss": (batch[f"{name}/loss"], loss.detach()),
                "gradient": (batch[f"{name}/gradient"], logprob.grad),
            }
            cells = []
            for ours, value in pairs.values():
                value = value.numpy()
                difference = np.abs(ours - value).max()
                cells.append(f"{difference:.1e} of {np.abs(value).max():.2g}")
            print(f"| `{preset}`, {normalize} | {' | '.join(cells)} |")


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
