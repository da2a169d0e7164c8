"""Subgoals in the learner: parts of responses, three values, and their targets."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.methods.hiper.plan_parts import plan_columns
from gigpo_jax.methods.hiper.response_parts import part_reader
from gigpo_jax.models import decoder
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.models.value_head import predict_values
from gigpo_jax.policy import Policy
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.learner.test_action_span import Characters
from tests.learner.test_learner_updates import SHAPE, find_signal, learn_steps, make_config
from tests.models.shapes import random_params
from tests.turns import make_turn

TOKENIZER = word_tokenizer(["KEEP SWITCH ring coin open", "<switch></switch><subgoal></subgoal>"])

PLAN_SHAPE = dataclasses.replace(SHAPE, vocab_size=TOKENIZER.vocab_size)


def respond(decision: str, subgoal: str, action: str = "open") -> str:
    return f"<switch>{decision}</switch><subgoal>{subgoal}</subgoal><action>{action}</action>"


# Two episodes: KEEP at a first turn begins a segment too, and the wording of a subgoal changes.
RESPONSES = (
    (respond("KEEP", "ring"), respond("KEEP", "coin"), respond("SWITCH", "ring")),
    (respond("SWITCH", "ring"), respond("KEEP", "ring"), "open"),
)


def make_steps():
    trajectories = []
    rng = np.random.default_rng(0)
    for member, responses in enumerate(RESPONSES):
        turns = []
        for step, response in enumerate(responses):
            tokens = np.array(TOKENIZER.encode(response), np.int32)
            turn = make_turn(
                prompt_tokens=rng.integers(0, 20, 4).astype(np.int32),
                response_tokens=tokens,
                logprobs=np.full(len(tokens), -2.0, np.float32),
                response=response,
                anchor=f"state {step}",
                reward=float(member and step == 2),
            )
            turns.append(turn)
        trajectories.append(
            Trajectory(Task("task", "train", ""), 0, member, turns, truncated=not member)
        )
    return finished_steps(trajectories)


@pytest.mark.parametrize("tokenizer", [Characters(), TOKENIZER])
def test_the_parts_of_a_response(tokenizer) -> None:
    pieces = ["<switch>", "KEEP", "</switch><subgoal>", "ring", "</subgoal>", "<action>", "open",
              "</action>"]  # fmt: skip
    numbers = [-1, 2, -1, 1, -1, -1, 0, -1]
    groups = [tokenizer.encode(piece) for piece in pieces]
    tokens = np.concatenate(groups).astype(np.int32)
    found = part_reader(tokenizer, ("action",))(tokens)
    want = [number for number, group in zip(numbers, groups, strict=True) for _ in group]
    assert found.parts.tolist() == want
    assert found.after_subgoal == sum(map(len, groups[:5]))
    plain = part_reader(tokenizer, ("action",))(np.array(tokenizer.encode("ring"), np.int32))
    assert (plain.parts.max(), plain.after_subgoal) == (-1, 0)
    unclosed = tokens[: sum(map(len, groups[:3]))]
    # Behind the decision, and never behind the last token.
    found = part_reader(tokenizer, ("action",))(unclosed)
    assert found.after_subgoal < len(unclosed)


def test_segments_begin_where_an_episode_does_and_at_switches() -> None:
    columns = plan_columns(make_steps())
    assert columns["plan_start"].tolist() == [True, False, True, True, False, False]
    assert columns["plan_changed"].tolist() == [False, True, False, False, False, True]


def make_learner(tmp_path: Path, kind: str) -> Learner:
    save_hf(tmp_path / "model", PLAN_SHAPE, random_params(PLAN_SHAPE, 1))
    config = make_config()
    config.rl.algorithm = "hiper"
    config.env.plan = "subgoal"
    config.model.path = str(tmp_path / "model")
    config.sampling.max_response_tokens = 12
    config.rl.kl_coef = 0.0
    config.train.epochs = 1
    config.train.iterations = 8
    config.train.group_size = 2
    config.critic.update({"kind": kind, "lr": 3e-2, "clip": 0.0})
    policy = Policy(*load_hf(config.model.path), TOKENIZER)
    return Learner(resolve(config), policy, make_mesh(data=1, fsdp=1, tensor=1))


@pytest.mark.parametrize("kind", ["model", pytest.param("head", marks=pytest.mark.slow)])
def test_each_value_is_read_at_its_place(tmp_path: Path, kind: str) -> None:
    learner = make_learner(tmp_path, kind)
    critic = find_signal(learner, Critic)
    shape = dataclasses.replace(PLAN_SHAPE, value_head=3)
    params = random_params(shape, 3)
    own = params if kind == "model" else {"value_head": params["value_head"]}
    critic.state = dataclasses.replace(critic.state, params=own)
    trunk = params if kind == "model" else random_params(PLAN_SHAPE, 1)
    steps = make_steps()
    scored = learner.score_steps(steps)
    found = critic.compute_columns(scored)["plan_value"]
    for row, sample in zip(found, scored.samples, strict=True):
        tokens = np.concatenate([sample.prompt_tokens, sample.response_tokens])[None, :-1]
        hidden = decoder.hidden_states(shape, trunk, jnp.asarray(tokens))[0]
        values = predict_values(params, hidden)[len(sample.prompt_tokens) - 1 :]
        # `<switch>KEEP</switch><subgoal>ring</subgoal>` and what is behind it; "open" alone.
        text = TOKENIZER.decode(sample.response_tokens.tolist())
        behind = len(TOKENIZER.encode(text.partition("<action>")[0])) if "<" in text else 0
        np.testing.assert_allclose(row, [values[behind, 0], *values[0, 1:]], atol=1e-5)


@pytest.mark.slow
def test_the_critic_learns_its_targets_and_an_export_has_three_labels(tmp_path: Path) -> None:
    learner = make_learner(tmp_path, "model")
    learner._config.unlock().optim.lr = 1e-12
    steps = make_steps()
    records = []
    for iteration in range(8):
        record, credit = learn_steps(learner, steps, iteration)
        records.append(record)
    assert records[0]["critic/explained_variance"] == 0.0
    assert records[-1]["critic/explained_variance"] > 0.5
    assert records[-1]["critic/loss"] < 0.5 * records[0]["critic/loss"]
    # Zero where the response has no part, on the tags too.
    assert credit.tokens.shape == (6, 12)
    assert not credit.tokens[5].any()
    assert np.count_nonzero(credit.tokens[0]) == 3
    # A turn that keeps its subgoal teaches its decision and its action.
    assert np.count_nonzero(credit.tokens[1]) == 2
    shape = dataclasses.replace(PLAN_SHAPE, value_head=3)
    save_hf(tmp_path / "critic", shape, find_signal(learner, Critic).params)
    assert load_hf(tmp_path / "critic")[0] == shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl.algorithm": "hiper"}, r"env\.plan='none': hiper learns from subgoals; use subgoal"),
        ({"env.plan": "subgoal", "env.prompt": "tagged"}, "env.prompt=tagged has no place"),
        ({"env.plan": "subgoal", "env.prompt": "chat"}, "env.prompt=chat has no place"),
        ({"env.plan": "subgoal", "env.name": "search"}, "env.prompt=full has no place"),
        (
            {"env.plan": "subgoal", "train.forks": 2},
            r"train\.forks=2: episodes would begin without",
        ),
        ({"env.plan": "goal"}, "must be one of none, subgoal, strategy"),
        (
            {"rl.algorithm": "rebel"},
            r"env\.plan='none': rebel compares stated beliefs; use belief",
        ),
        (
            {"env.plan": "belief", "env.name": "webshop"},
            r"env\.plan='belief': webshop has no grader of beliefs; use alfworld, or leave it out",
        ),
        (
            {"env.plan": "belief", "rl.algorithm": "rebel", "rl.normalize": "mean_std"},
            r"rl\.normalize='mean_std': rebel always has 'mean'",
        ),
        (
            {"rl.algorithm": "strata", "env.plan": "strategy"},
            r"strategy_episodes=1: episodes of one strategy are compared",
        ),
        (
            {"rl.algorithm": "strata", "train.strategy_episodes": 4},
            r"env\.plan='none': strata compares strategies; use strategy",
        ),
        (
            {"rl.algorithm": "strata", "env.plan": "strategy", "train.strategy_episodes": 3},
            "a divisor of train.group_size=8",
        ),
        (
            {"env.plan": "strategy", "train.strategy_episodes": 4},
            r"strategy_episodes=4: not read by rl\.algorithm=gigpo",
        ),
        (
            {"env.plan": "strategy", "sampling.max_summary_tokens": 600},
            "no room for more tokens",
        ),
        ({"env.plan": "subgoal", "sampling.max_summary_tokens": 6}, "not read by env.context"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    config = default_config()
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        config[section][name] = value
    with pytest.raises(InputError, match=message):
        resolve(config)
    config = default_config()
    config.env.plan, config.agent = "subgoal", "react"
    with pytest.raises(InputError, match="agent=react has prompts of its own"):
        resolve(config, trains=False)
