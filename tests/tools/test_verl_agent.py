"""Overrides of verl-agent become flags that a config takes."""

import shlex
from pathlib import Path

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.tools.keys.command import main
from gigpo_jax.tools.keys.verl_agent import format_counterparts

SCRIPT = r"""
set -x
ENGINE=${1:-vllm}
num_tasks=16
group_size=8  # episodes

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gigpo \
    algorithm.gigpo.mode=mean_std_norm \
    algorithm.use_kl_in_reward=False \
    data.train_batch_size=$num_tasks \
    data.max_prompt_length=2048 \
    data.truncation='error' \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.kl_loss_coef=0.01 \
    actor_rollout_ref.actor.invalid_action_penalty_coef=0.1 \
    actor_rollout_ref.rollout.name=$ENGINE \
    env.env_name=alfworld/AlfredTWEnv \
    env.rollout.n=$group_size \
    env.seed=$SEED \
    trainer.logger=['console','wandb'] \
    trainer.n_gpus_per_node=4 \
    trainer.nnodes=2 $@
"""


def test_a_script_becomes_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    assert main(["--from", "verl-agent", str(tmp_path / "run.sh")]) == 0
    command, _, rest = capsys.readouterr().out.partition("\n\nnot translated:\n")
    gigpo, train, file, *words = shlex.split(command.replace("\\\n", ""))
    assert (gigpo, train, file) == ("gigpo", "train", "--config=alfworld:7b")
    assert [word.removeprefix("--config.") for word in words] == [
        "rl.algorithm=gigpo",
        "rl.normalize=mean_std",
        "train.group_size=8",
        "train.groups=16",
        "sampling.max_prompt_tokens=2048",
        "model.path=Qwen/Qwen2.5-7B-Instruct",
        "rl.kl_coef=0",
        "env.invalid_penalty=0.1",
        "mesh.fsdp=8",
        "distributed=True",
        "log.to=wandb",
    ]
    assert resolve(load_config("alfworld:7b", words)).train.group_size == 8
    assert rest.splitlines() == [
        "  env.seed=$SEED: a variable without a value",
        "  actor_rollout_ref.rollout.name=vllm: see engine.name=vllm (servers), or leave it out",
        "  data.truncation=error: no counterpart",
    ]


def test_overrides_may_be_given_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["algorithm.adv_estimator=gae", "env.env_name=Webshop", "env.max_steps=-1"]
    assert main(["--from", "verl-agent", *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("gigpo train --config=webshop \\\n    --config.rl.algorithm=ppo")
    assert "  config.env.max_steps=-1: must be greater than 0" in out
    assert main(["--from", "verl-agent", "none.sh"]) == 2
    assert "--from verl-agent=none.sh: no such file" in capsys.readouterr().err


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[2] / "docs/from_verl_agent.md"
    assert format_counterparts() in page.read_text(encoding="utf-8")
