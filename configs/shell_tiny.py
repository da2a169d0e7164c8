"""GiGPO on shell commands in a sandbox, on a laptop: 15 iterations of 16 tasks x 8 episodes.

    gigpo train --config=configs/shell_tiny.py --workdir=runs/shell

Tasks of four kinds: find, count, edit, fix (docs/shell.md). The prompt has the last output and the
task. The policy of 0.2 M parameters writes the whole command: the menu is not shown, it only lets a
command of the menu count in any spacing. The warm start imitated the expert with random commands
(shell_tiny_sft.py). Needs the sandbox: Linux with user namespaces.

Hardware: one thread on 2 cores that other programs kept busy, 6 to 9 minutes (70 to 90 s of CPU
time without the commands). Result, seeds 0, 1 and 2: the panel of 128 tasks 15.6, 6.2 and 10.2%
before and 65.6, 70.3 and 50.8% after at temperature 0.4; greedy 25.0% before and 68.8, 70.3 and
52.3% after. docs/shell.md has more.
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config, train_config


def shell_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    config = tiny_config()
    config.env.name = "shell"
    config.env.generate = ConfigDict()
    config.env.options = ConfigDict({"menu": True})
    config.env.max_steps = 5
    config.env.history = 0
    config.env.prompt = "gigpo_jax.envs.shell.prompt:show_task_last"
    config.env.show_admissible = False
    config.sampling.max_prompt_tokens = 80
    config.sampling.max_response_tokens = 24
    config.model.shape.update(hidden_size=64, intermediate_size=192)
    config.engine.slots = 64
    config.engine.decode_steps = 8
    config.engine.prefill_buckets = (48, 80)
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(shell_config())
    config.model.path = "models/shell_tiny"
    config.train.iterations = 15
    config.optim.lr = 6e-4
    config.eval.panel = "test"
    return config.lock()
