"""The configs of the published experiments hold the published settings (GiGPO, arXiv 2505.10978,
section 5).
"""

import runpy
from pathlib import Path

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.config.keys import value_of
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.envs import registry
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.rollout.demonstrations import response_text
from gigpo_jax.rollout.environment import env_options
from gigpo_jax.rollout.prompt_encoding import prompt_encoder

CONFIGS = Path(__file__).parent.parent / "configs"
COMMON = {
    "rl.algorithm": "gigpo",
    "rl.gamma": 0.95,
    "rl.step_weight": 1.0,
    "rl.clip_low": 0.2,
    "rl.clip_high": 0.2,
    "rl.dual_clip": 3.0,
    "rl.old_logprobs": "recompute",
    "rl.importance_correction": "none",
    "optim.lr": 1e-6,
    "optim.schedule": "constant",
    "optim.grad_clip": 1.0,
    "optim.weight_decay": 0.01,
    "sampling.max_response_tokens": 512,
    "sampling.temperature": 1.0,
}
VISION = {
    "env.invalid_penalty": 0.1,
    "eval.temperature": 0.4,
    "rl.entropy_coef": 0.001,
    "rl.kl_coef": 0.01,
    "sampling.max_prompt_tokens": 1024,
    "train.group_size": 8,
}
PUBLISHED = {
    "alfworld": {
        "train.iterations": 150,
        "train.groups": 16,
        "train.group_size": 8,
        "env.max_steps": 50,
        "env.history": 2,
        "sampling.max_prompt_tokens": 2048,
        "optim.warmup_fraction": 0.0,
        "train.minibatch": 256,
        "rl.kl_coef": 0.01,
        "rl.entropy_coef": 0.001,
        "eval.every": 5,
        "env.invalid_penalty": 0.1,
        "eval.temperature": 0.4,
    },
    "webshop": {
        "train.iterations": 150,
        "train.groups": 16,
        "train.group_size": 8,
        "env.max_steps": 15,
        "env.history": 2,
        "sampling.max_prompt_tokens": 4096,
        "optim.warmup_fraction": 0.0,
        "train.minibatch": 64,
        "rl.kl_coef": 0.01,
        "rl.entropy_coef": 0.001,
        "eval.every": 5,
        "env.invalid_penalty": 0.1,
        "eval.temperature": 0.4,
    },
    "search": {
        "train.iterations": 662,
        "train.groups": 256,
        "train.group_size": 5,
        "env.max_steps": 4,
        "env.history": 4,
        "sampling.max_prompt_tokens": 4096,
        "optim.warmup_fraction": 0.1,
        "train.minibatch": 512,
        "rl.kl_coef": 0.001,
        "rl.entropy_coef": 0.0,
        "eval.every": 50,
        "env.invalid_penalty": 0.01,
        "eval.temperature": 0.0,
        "rl.anchor_match": "similar",
        "rl.similarity": 0.9,
    },
    "sokoban": VISION
    | {"env.max_steps": 15, "train.iterations": 150, "train.groups": 32, "train.minibatch": 64},
    "ezpoints": VISION
    | {"env.max_steps": 8, "train.iterations": 100, "train.groups": 16, "train.minibatch": 128},
}
VARIANTS = [
    ("alfworld", "1.5b"),
    ("alfworld", "7b"),
    ("webshop", "1.5b"),
    ("webshop", "7b"),
    ("search", "3b"),
]
VISION_VARIANTS = [("sokoban", "3b"), ("ezpoints", "3b")]
NORMALIZE = {"1.5b": "mean", "7b": "mean", "1.5b_std": "mean_std", "7b_std": "mean_std"}


def _get_config(name, *variant):
    return runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"](*variant)


@pytest.mark.parametrize(("name", "variant"), VARIANTS + VISION_VARIANTS)
def test_published_settings(name, variant):
    config = _get_config(name, variant)
    config = resolve(config)
    expected = COMMON | PUBLISHED[name]
    # "warm-up 10%" of the search runs is then constant, and so is everything else.
    assert {key: value_of(config, key) for key in expected} == expected
    assert config.env.name == name
    known = registry.spec(name)
    assert (known.max_steps, known.history, known.invalid_penalty) == tuple(
        config.env[key] for key in ("max_steps", "history", "invalid_penalty")
    )


@pytest.mark.parametrize("size", ["1.5b", "7b"])
@pytest.mark.parametrize("name", ["alfworld", "webshop"])
def test_the_ppo_baseline_has_the_settings_of_its_script(name, size):
    config, gigpo = (resolve(_get_config(name, variant)) for variant in (f"{size}_ppo", size))
    expected = {
        "rl.algorithm": "ppo",
        "rl.gamma": 1.0,
        "rl.settings.lam": 1.0,
        "rl.ratio": "token",
        "train.groups": 128,
        "train.group_size": 1,
        "critic.kind": "model",
        "critic.path": "",
        "critic.lr": 1e-5,
        "critic.clip": 0.5,
        "critic.warmup_iterations": 0,
    }
    assert {key: value_of(config, key) for key in expected} == expected
    same = (
        "optim.lr",
        "train.minibatch",
        "rl.kl_coef",
        "rl.clip_low",
        "rl.clip_high",
        "env.invalid_penalty",
        "env.history",
    )
    assert [value_of(config, key) for key in same] == [value_of(gigpo, key) for key in same]


def test_webshop_has_both_published_normalisations():
    assert {v: resolve(_get_config("webshop", v)).rl.normalize for v in NORMALIZE} == NORMALIZE
    assert [resolve(_get_config("webshop", v)).mesh.fsdp for v in NORMALIZE] == [1, 8, 1, 8]
    assert {
        resolve(_get_config(name, *v)).rl.normalize for name, *v in VARIANTS if name != "webshop"
    } == {"mean_std"}
    assert {resolve(_get_config(*named)).rl.normalize for named in VISION_VARIANTS} == {"mean"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_unknown_variant_names_those_there_are(name):
    with pytest.raises(ValueError, match="no such variant; choose "):
        _get_config(name, "13b")


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        ("webshop_tiny", 0.97),
        ("alfworld_long", 1.0),
        ("sokoban_text_tiny", 1.0),
        ("sokoban_tiny", 1.0),
        ("ezpoints_tiny", 1.0),
        ("frozenlake_tiny", 1.0),
        ("mcp_files_tiny", 1.0),
    ],
)
def test_a_tiny_policy_can_say_what_the_expert_does(name, smallest, monkeypatch, tmp_path):
    monkeypatch.setenv("GIGPO_JAX_CACHE", str(tmp_path))
    config = _get_config(name).unlock()
    if "splits" in config.env.generate:
        config.env.generate.splits = {"train": 40}
    config = resolve(config)
    folder = CONFIGS.parent / config.model.path
    tokenizer = load_tokenizer(folder)
    encode = prompt_encoder(tokenizer, read_config(folder).vision)
    env = registry.make(config.env.name, **env_options(config))
    template = registry.find_style(config.env.name, config.env.prompt)
    known = registry.spec(config.env.name)
    write = known.write or response_text
    said = []
    for seed, task in enumerate(env.tasks("train")[:40]):
        now = env.reset(task)
        expert = registry.make_expert(config.env.name, seed)
        past = History(config.env.history)
        for _ in range(config.env.max_steps):
            prompt = build_prompt(template, now, past, encode=encode, limit=10_000)
            assert len(prompt.tokens) <= config.sampling.max_prompt_tokens
            action = expert.act(now)
            response = tokenizer.encode(write(action))
            said.append(known.parse(tokenizer.decode(response)) == Response(action, True))
            past.add(now.text, action, images=now.images)
            result = env.step(action)
            now = result.observation
            if result.done:
                break
    assert sum(said) >= smallest * len(
        said
    )  # the tokenizer of the shop knows ASCII only, and a shop has crème brûlée


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("sokoban_text_tiny", "sokoban"),
        ("sokoban_tiny", "sokoban_tiny"),
        ("ezpoints_tiny", "ezpoints_tiny"),
        ("frozenlake_tiny", "frozenlake"),
        ("shell_tiny", "shell"),
    ],
)
def test_the_warm_start_of_a_game_imitates_a_good_and_then_a_worse_demonstrator(name, run):
    first, second = (resolve(_get_config(f"{name}_sft", stage)) for stage in "12")
    assert (first.model.path, second.model.path) == ("", f"runs/{run}_sft1/model")
    assert first.sft.demonstrator.random_fraction < second.sft.demonstrator.random_fraction
    for key in (
        "env.name",
        "env.options",
        "env.max_steps",
        "sampling.max_prompt_tokens",
        "sampling.stop",
    ):
        assert (
            value_of(first, key)
            == value_of(second, key)
            == value_of(resolve(_get_config(name)), key)
        )
    with pytest.raises(ValueError, match="no such stage; choose 1 or 2"):
        _get_config(f"{name}_sft", "3")
