"""`env.mix`: two environments in one run."""

import json
import re
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.config.mix import member_configs
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.freeze import write_panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import panels
from gigpo_jax.envs.alfworld.data.one_split import generate_games
from gigpo_jax.learner.signals.action_tags import action_tags
from gigpo_jax.modes import sft, train
from gigpo_jax.rollout.curriculum import Curriculum
from gigpo_jax.rollout.draws import draw_tasks
from gigpo_jax.rollout.group_ends import spare_groups
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import SavedEpisode
from gigpo_jax.tools.credit.command import main as credit
from gigpo_jax.tools.inspect.data import collect_run
from tests.configs.example import get_config
from tests.metrics import records
from tests.run.loggers.test_loggers import layout, values

SHARES = {"a": 0.75, "b": 0.25}
TASKS = [
    Task(f"{name}{i}", kind, "train", environment=name)
    for name, kinds in (("a", "xxy"), ("b", ("",) * 7))
    for i, kind in enumerate(kinds)
]


def mixed(**keys: dict) -> ConfigDict:
    config = default_config().unlock()
    config.env.mix = ConfigDict(
        {"alfworld": {"weight": 3.0}, "shop": {"name": "webshop", "max_steps": 8}}
    )
    for label, own in keys.items():
        config.env.mix[label].update(own)
    return config


def test_each_environment_has_its_share_its_orders_and_spare_groups_of_its_own() -> None:
    drawn = [draw_tasks(TASKS, iteration, 8, seed=3, shares=SHARES) for iteration in range(7)]
    assert all(Counter(task.environment for task in tasks) == {"a": 6, "b": 2} for tasks in drawn)
    assert len({tuple(task.environment for task in tasks) for tasks in drawn}) > 1, (
        "hosts would play one each"
    )
    flat = [task for tasks in drawn for task in tasks]
    for label, count in (("a", 14), ("b", 2)):
        own = [task.id for task in flat if task.environment == label]
        assert set(Counter(own).values()) == {count}
        size = len(set(own))
        assert all(len(set(own[i : i + size])) == size for i in range(0, len(own), size)), (
            "once before any comes twice"
        )
    uneven = [draw_tasks(TASKS, n, 3, seed=3, shares=SHARES) for n in range(200)]
    counts = [sum(task.environment == "a" for task in tasks) for tasks in uneven]
    assert set(counts) == {2, 3}
    assert np.mean(counts) == pytest.approx(2.25, abs=0.1)
    spares = spare_groups(TASKS, 4, 8, 2, seed=3, shares=SHARES)
    assert [[task.environment for _, task in own] for own in spares] == [
        [t.environment] * 2 for t in drawn[4]
    ]
    assert sorted(number for own in spares for number, _ in own) == list(range(8, 24))
    assert spares == spare_groups(TASKS, 4, 8, 2, seed=3, shares=SHARES)


def test_a_curriculum_leaves_the_shares_of_the_environments() -> None:
    curriculum = Curriculum(default_config(), TASKS)
    for _ in range(40):
        curriculum.add(
            [],
            0,
            {
                "episode/success_rate/a/x": 1.0,
                "episode/success_rate/a/y": 0.5,
                "episode/success_rate/b": 0,
            },
        )
    assert set(curriculum.rates) == {"a/x", "a/y", "b"}
    drawn = [draw_tasks(TASKS, n, 4, 0, curriculum.weights(), SHARES) for n in range(100)]
    assert Counter(task.environment for tasks in drawn for task in tasks) == {"a": 300, "b": 100}
    one = [
        draw_tasks(TASKS[:3], n, 1, 0, curriculum.weights()[:3], {"a": 1.0})[0].type
        for n in range(200)
    ]
    assert one.count("y") / 200 == pytest.approx(6 / 7, abs=0.1)  # 0.3 of 0.05 + 0.3
    with pytest.raises(InputError, match="have the types"):
        Curriculum(default_config(), TASKS[3:])


def test_an_environment_has_its_own_values_and_those_of_the_run() -> None:
    config = resolve(
        mixed(shop={"prompt": "compact", "options": {"draw_seed": 0}, "panel": "test"})
    )
    assert resolve(config) == config
    assert config.env.name == "alfworld+shop"
    house, shop = member_configs(config).values()
    assert (house.env.name, house.env.max_steps, house.env.prompt, house.eval.panel) == (
        "alfworld",
        50,
        "full",
        "",
    )
    assert (shop.env.name, shop.env.max_steps, shop.env.prompt, shop.eval.panel) == (
        "webshop",
        8,
        "compact",
        "test",
    )
    assert shop.env.options.to_dict() == {"draw_seed": 0}
    assert house.env.options.to_dict() == {}
    search = mixed()
    search.env.mix.search = {"max_steps": 4}
    assert action_tags(resolve(search)) == ("action", "search", "answer")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"weight": 0.0}, "config.env.mix.shop.weight=0.0: must be greater than 0"),
        (
            {"max_steps": 60},
            "config.env.mix.shop.max_steps=60: longer than the run allows; at most env.max_steps=50",
        ),
        ({"prompt": "long"}, "config.env.mix.shop.prompt='long': no such style of"),
        ({"name": "webshp"}, "config.env.mix.shop.name='webshp': unknown; did you mean 'webshop'"),
        ({"step": 3}, "config.env.mix.shop.step: no such key; nearest: env.mix.shop.max_steps"),
        (
            {"options": {"goal": 3}},
            "config.env.mix.shop.options.goal: no such key; nearest: env.mix.shop.options.goals",
        ),
    ],
)
def test_a_mistake_names_the_key_of_the_environment(own: dict, said: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(mixed(shop=own))
    assert str(error.value).startswith(said)


def test_no_environment_has_the_name_of_the_total() -> None:
    config = mixed()
    config.env.mix.all = ConfigDict({"name": "search"})
    with pytest.raises(InputError, match=r"^config\.env\.mix\.all: that is the name of the total"):
        resolve(config)


def test_keys_that_no_environment_would_read_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for section, key, value in (("env", "name", "webshop"), ("eval", "panel", "test")):
        config = mixed()
        config[section][key] = value
        with pytest.raises(
            InputError, match=f"config.{section}.{key}='{value}': not read with env.mix"
        ):
            resolve(config)
    file = tmp_path / "config.py"
    file.write_text("from tests.config.test_mix import mixed as get_config")
    assert credit([f"--config={file}"]) == 2
    assert (
        "--environment: credit measures one environment of env.mix; name one: alfworld, shop"
        in capsys.readouterr().err
    )


def household(folder: Path) -> ConfigDict:
    """ALFWorld and Sokoban as text: 3 of 4 groups are of the first."""
    config = get_config().unlock()
    for split, games in (("train", 12), ("valid_unseen", 3)):
        generate_games(
            folder / "games",
            split=split,
            games=games,
            seed=0,
            size="small",
            receptacles=4,
            objects=3,
        )
    options = {"rooms": {"data": str(folder / "games")}, "boxes": {"observation": "text"}}
    for label, name, split in (("rooms", "alfworld", "valid_unseen"), ("boxes", "sokoban", "test")):
        panel = panels.freeze_tasks(name, f"{label}_panel", split, options=options[label])
        write_panel(folder / f"{label}.json", panel)
    config.env.name, config.env.options = "alfworld", ConfigDict()
    config.env.max_steps, config.env.history = 4, 0
    config.env.mix = ConfigDict(
        {
            "rooms": {
                "name": "alfworld",
                "weight": 3.0,
                "options": options["rooms"],
                "panel": f"{folder}/rooms.json",
            },
            "boxes": {
                "name": "sokoban",
                "options": options["boxes"],
                "panel": f"{folder}/boxes.json",
            },
        }
    )
    config.env.mix.boxes.update(max_steps=2, show_admissible=False, max_response_tokens=6)
    config.sampling.max_prompt_tokens, config.batch.row_length = 80, 128
    config.engine.prefill_buckets = (80,)
    config.train.curriculum, config.train.refill_groups, config.train.minibatch = "success", 1, 32
    config.train.save_rollouts = config.checkpoint.every = 1
    config.eval.every = 1
    config.train.group_size = 2
    config.eval.tasks = 3
    config.sft.episodes, config.sft.epochs = 24, 1
    return config


def train_iterations(config: ConfigDict, workdir: Path, iterations: int) -> None:
    config.train.iterations = iterations
    assert train.run(resolve(config), workdir, "") == 0


def read_episodes(workdir: Path) -> list[list[SavedEpisode]]:
    """The saved episodes of each iteration."""
    return [list(read_rollouts(file).episodes) for file in sorted((workdir / "rollouts").iterdir())]


def check_episodes(episodes: list[SavedEpisode]) -> None:
    """Groups are of one environment, in their shares, and keep its own limits."""
    groups = {
        n: {e.environment for e in own}
        for n, own in groupby(episodes, key=lambda episode: episode.group)
    }
    assert all(len(labels) == 1 for labels in groups.values())
    final = {e.group: e.environment for e in episodes if not e.replaced}
    assert Counter(final.values()) == {"rooms": 3, "boxes": 1}
    most = {
        label: max(len(e.steps) for e in episodes if e.environment == label)
        for label in ("rooms", "boxes")
    }
    assert most == {"rooms": 4, "boxes": 2}
    boxes = [e for e in episodes if e.environment == "boxes"]
    assert max(len(s.tokens) for e in boxes for s in e.steps) <= 6


def check_metrics(metrics: dict[str, float]) -> None:
    """Metrics have each environment beside the total."""
    episodes = [metrics[f"rollout/episodes{ending}"] for ending in ("", "/rooms", "/boxes")]
    assert episodes[0] == episodes[1] + episodes[2]
    assert {
        "action/valid_rate/boxes",
        "val/sampled/success_low/rooms",
        "val/sampled/success_rate/boxes",
    } <= set(metrics)
    assert any(name.startswith("episode/success_rate/rooms/") for name in metrics)


def check_console(output: str, metrics: dict[str, float]) -> None:
    assert "boxes 0%" in output
    rates = [metrics[f"val/sampled/success_rate{ending}"] for ending in ("", "/boxes", "/rooms")]
    assert "panel (sampled) {:.1%}  boxes {:.1%}  rooms {:.1%}".format(*rates) in output


def check_credit(metrics: dict[str, float], episodes: list[SavedEpisode]) -> None:
    """Metrics of credit are those of the environment's own saved steps."""
    for label in ("rooms", "boxes"):
        own = [
            s
            for e in episodes
            if e.environment == label
            for s in e.steps
            if s.advantage is not None
        ]
        assert metrics[f"credit/zero_advantage_share/{label}"] == pytest.approx(
            np.mean([s.advantage == 0 for s in own])
        )
        assert metrics[f"credit/step_norm/{label}"] == pytest.approx(
            np.mean([s.step_advantage**2 for s in own]) ** 0.5
        )
        groups = {s.anchor_group for s in own}
        assert metrics[f"credit/anchor_group_size_mean/{label}"] == len(own) / len(groups)


def check_charts(workdir: Path, metrics: dict[str, float]) -> None:
    """TensorBoard has charts of environments, without the types of their tasks."""
    tags = [
        tag
        for category in layout(values(workdir)).category
        for chart in category.chart
        for tag in chart.multiline.tag
    ]
    shown = {name for name in metrics for tag in tags if re.match(tag, name)}
    assert {"episode/success_rate", "episode/success_rate/rooms", "credit/step_norm/boxes"} <= shown
    assert not any(name.startswith("episode/success_rate/rooms/") for name in shown)


@pytest.mark.slow
def test_two_environments_are_learnt_together_and_resumed_exactly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = household(tmp_path)
    assert sft.run(resolve(config), tmp_path / "sft", "") == 0
    config.model.path = str(tmp_path / "sft" / "model")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for workdir, iterations in ((whole, 2), (stopped, 1), (stopped, 2)):
        train_iterations(config, workdir, iterations)
    assert records(stopped) == records(whole)
    played = read_episodes(whole)
    assert read_episodes(stopped) == played
    for episodes in played:
        check_episodes(episodes)
    metrics = records(whole)[-1]
    check_metrics(metrics)
    check_console(capsys.readouterr().out, metrics)
    check_credit(metrics, played[-1])
    check_charts(whole, metrics)
    evaluation = json.loads((whole / "evaluations" / "iteration_000002.json").read_text())
    assert [task.partition("/")[0] for task in evaluation["tasks"]] == ["boxes"] * 3 + ["rooms"] * 3
    page, _ = collect_run(whole, "a", {})
    assert {group["type"].partition("/")[0] for group in page["groups"]} == {"rooms", "boxes"}
