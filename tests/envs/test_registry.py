"""The registry: what it finds, and what it says when it does not."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.references import load_reference
from gigpo_jax.envs import registry
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.entry_types import Option
from gigpo_jax.envs.example.env import TreasureEnv
from tests.env_bridge import failing


def test_an_environment_of_the_table_and_one_of_a_module_are_found() -> None:
    assert isinstance(registry.make("example", drawers=2), TreasureEnv)
    assert registry.spec("tests.env_bridge.failing:FAILING") is failing.FAILING
    assert isinstance(registry.make("tests.env_bridge.failing:FAILING"), failing.FailingEnv)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "alfwrld",
            "config.env.name='alfwrld': unknown; did you mean 'alfworld'? "
            "known are alfworld, blackjack",
        ),
        ("", "config.env.name='': unknown; known are"),
        ("no.such.module:ENV", "cannot load no.such.module:ENV (No module named 'no')"),
        ("tests.env_bridge.failing:FailingEnv", "not gigpo_jax.envs.entry_types.Environment"),
        (":", "cannot load"),
    ],
)
def test_an_unknown_name_is_the_users_mistake(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        registry.spec(name)
    assert message in str(caught.value)


def test_unknown_styles_and_missing_experts_are_told() -> None:
    with pytest.raises(
        InputError,
        match="prompt='fancy': no such style of alfworld; choose one of chat, compact, full",
    ):
        registry.find_style("alfworld", "fancy")
    with pytest.raises(InputError, match="no expert"):
        registry.make_expert("tests.env_bridge.failing:FAILING_WITHOUT_EXPERT", 0)
    with pytest.raises(InputError, match="unexpected keyword argument"):
        registry.make_expert("example", 0, patience=3)
    with pytest.raises(
        InputError, match=r"^config\.sft\.demonstrator\.random_fraction='a': must be of type float"
    ):
        registry.make_expert("sokoban", 0, random_fraction="a")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("alfworld", {"dta": "X"}, r"config\.env\.options: .*argument 'dta'\); nearest: data"),
        (
            "example",
            {"windows": 2},
            r"config\.env\.options: .*argument 'windows'\); it takes drawers, games",
        ),
        (
            "alfworld",
            {"data": "/no/where"},
            r"config\.env\.options\.data=/no/where: no such folder",
        ),
        (
            "alfworld",
            {"data": "/tmp", "anchor": "x"},
            r"config\.env\.anchor='x': must be feedback, feedback\+X with X in inventory, spaces",
        ),
        (
            "webshop",
            {"data": "/tmp", "observation": "x"},
            r"config\.env\.options\.observation='x': must be one of",
        ),
        ("example", {"games": -1}, r"config\.env\.options\.games=-1: must be a number"),
        ("example", {"games": "4"}, r"config\.env\.options\.games='4': must be of type int"),
        ("example", {"games": None}, r"config\.env\.options\.games=None: must be of type int"),
    ],
)
def test_a_bad_option_is_told_with_its_key_and_the_fix(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=rf"^{message}"):
        registry.make(name, **options)


def test_an_option_takes_the_values_of_its_type() -> None:
    values = {"text": "a", "path": Path("a"), "yes": True, "real": 0.5, "list": [1], "none": None}
    values |= {"whole": 3, "of numpy": np.int64(3)}
    accepted = {
        kind: {name for name, value in values.items() if Option(kind, default, "").accepts(value)}
        for kind, default in (
            (str, "a"),
            (bool, False),
            (int, 1),
            (float, 1.0),
            (tuple, ()),
            (dict, {}),
            (object, None),
        )
    }
    assert accepted == {
        str: {"text", "path"},
        bool: {"yes"},
        int: {"whole", "of numpy"},
        float: {"whole", "of numpy", "real"},
        tuple: {"list"},
        dict: set(),
        object: set(values),
    }


def test_a_prompt_style_of_ones_own_is_a_function() -> None:
    assert registry.find_style(
        "example", "gigpo_jax.envs.search.prompt:write_full_prompt"
    ) is registry.find_style("search", "full")
    for style, message in (
        (
            "gigpo_jax.core.errors:__name__",
            "a str, not a function; name one from PromptInput to text",
        ),
        (
            "gigpo_jax.core.errors:style",
            r"config\.env\.prompt: cannot load gigpo_jax\.core\.errors:style",
        ),
        (
            "fll",
            "config.env.prompt='fll': no such style of example; choose one of chat, compact, full, tagged",
        ),
    ):
        with pytest.raises(InputError, match=message):
            registry.find_style("example", style)


@pytest.mark.parametrize("name", registry.ENVIRONMENTS)
def test_declared_options_are_those_of_the_functions(name: str) -> None:
    entry = registry.spec(name)
    functions = {
        entry.build: (entry.options, {*entry.run_arguments}),
        entry.generate: (entry.generate_options, {"cache_root", "progress"}),
        entry.expert: (entry.expert_options, {"seed"}),
    }
    for reference, (declared, ours) in functions.items():
        parameters = (
            inspect.signature(load_reference(reference, key="")).parameters if reference else {}
        )
        assert set(declared) == set(parameters) - ours, reference
        for option, parameter in parameters.items():
            if option in declared and declared[option].default is not None:
                assert declared[option].default == parameter.default, option
                assert type(parameter.default) is declared[option].kind, option
            if option == "anchor":
                anchors = entry.anchor.requirement.removeprefix("one of ")
                assert anchors.startswith(f"{parameter.default}, "), name


@pytest.mark.parametrize("drawers", [1, 4, 9])
def test_the_expert_of_the_example_solves_it_and_its_states_recur(drawers: int) -> None:
    environment = registry.make("example", drawers=drawers)
    anchors: dict[str, set[str]] = {}
    for seed in range(3):
        for task in environment.tasks("train"):
            expert = registry.make_expert("example", seed)
            observation = environment.reset(task)
            for _ in range(2 * drawers):
                anchors.setdefault(task.id, set()).add(observation.anchor)
                result = environment.step(expert.act(observation))
                observation = result.observation
                if result.done:
                    break
            assert result.done
            assert result.info == {"won": True, "score": 1.0}
            assert result.reward == 10
    assert all(len(states) <= 2 * drawers + 1 for states in anchors.values())


def test_the_command_lists_every_environment_with_its_panels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name in registry.ENVIRONMENTS:
        assert f"{name} " in text
    assert "panels: long_seen, long_tuning, long_unseen, small_unseen" in text
    assert max(map(len, text.splitlines())) < 250
