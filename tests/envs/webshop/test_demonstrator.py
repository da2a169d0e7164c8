"""The demonstrator: the expert, made worse on purpose."""

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs import registry
from gigpo_jax.envs.webshop.data.generate import ensure_catalogue
from gigpo_jax.envs.webshop.expert.demonstrator import Demonstrator
from gigpo_jax.envs.webshop.expert.expert import ShopExpert


@pytest.fixture(scope="module")
def env():
    return registry.make("webshop", data=ensure_catalogue(), max_steps=8)


def _play(env, task, expert):
    observation = env.reset(task)
    actions = []
    while True:
        actions.append(expert.act(observation))
        result = env.step(actions[-1])
        observation = result.observation
        if result.done:
            return actions, result.info["score"]


def _scores(env, **fractions):
    tasks = env.tasks("train")[:60]
    return [
        _play(env, task, Demonstrator(n, max_steps=8, **fractions))[1]
        for n, task in enumerate(tasks)
    ]


def test_without_lapses_it_is_the_expert(env):
    for task in env.tasks("train")[:20]:
        assert _play(env, task, Demonstrator(5)) == _play(env, task, ShopExpert())


def test_each_lapse_costs_some_of_the_score(env):
    best = _scores(env)
    assert sum(score == 1.0 for score in best) >= 50
    for lapse in ({"forget_fraction": 0.5}, {"vague_fraction": 1.0}, {"random_fraction": 0.3}):
        assert 0.3 < sum(_scores(env, **lapse)) / 60 < sum(best) / 60 - 0.05, lapse


def test_an_action_that_was_not_carried_out_is_chosen_again(env):
    kinds = set()
    for task in env.tasks("train")[:30]:
        expert = ShopExpert(max_steps=100)
        observation = env.reset(task)
        done = False
        while not done:
            action = expert.act(observation)
            expert.retract()
            assert expert.act(observation) == action
            kinds.add("option" if action in expert.choices else action.partition("[b0")[0])
            result = env.step(action)
            observation, done = result.observation, result.done
    assert {"option", "click", "click[description]", "click[buy now]"} <= kinds


def test_one_who_forgets_everything_chooses_nothing(env):
    for task in env.tasks("train")[:20]:
        choices = {
            f"click[{value}]" for value in env.catalogue.goal(int(task.data)).options.values()
        }
        actions, _ = _play(env, task, Demonstrator(max_steps=8, forget_fraction=1.0))
        assert not choices & set(actions)
        assert actions[-1] == "click[buy now]"


def test_the_seed_decides_the_lapses(env):
    task = env.tasks("train")[0]
    fractions = {"random_fraction": 0.3, "vague_fraction": 0.3, "forget_fraction": 0.3}
    runs = [
        _play(env, task, Demonstrator(seed, max_steps=8, **fractions)) for seed in (*range(6), 0)
    ]
    assert runs[0] == runs[-1]
    assert len({tuple(actions) for actions, _ in runs}) > 2


def test_a_share_that_is_none_is_refused():
    with pytest.raises(
        InputError, match=r"forget_fraction=1\.5: must be a probability between 0 and 1"
    ):
        Demonstrator(0, forget_fraction=1.5)
