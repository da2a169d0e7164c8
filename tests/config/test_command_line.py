"""Words of a command line become values of their key's type."""

from pathlib import Path

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import join_flags, load_config
from gigpo_jax.config.keys import value_of
from gigpo_jax.core.errors import InputError
from gigpo_jax.main import main
from gigpo_jax.run.saved_runs import find_saved_config
from gigpo_jax.run.workdir import claim_workdir


def loaded(*words: str, file: str = "configs/quickstart.py") -> ConfigDict:
    return load_config(file, [f"--config.{word}" for word in words])


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("train.groups=8", 8),
        ("optim.lr=1", 1.0),
        ("optim.lr=3e-4", 3e-4),
        ("env.show_admissible=false", False),
        ("model.path=7", "7"),
        ("model.path=", ""),
        ("sampling.stop=('</a>', '</b>')", ("</a>", "</b>")),
        ("log.to=wandb", ("wandb",)),
        ("engine.prefill_rows=[4, 8]", (4, 8)),
        ("engine.prefill_rows=4", (4,)),
        ("rl.kl_coef=auto", None),
        ("env.anchor=feedback+inventory+sticky", "feedback+inventory+sticky"),
        ("env.generate.receptacles=(4, 5)", (4, 5)),
        ("env.generate.splits.test=3", 3),
        ("sft.demonstrator.idle_fraction=1", 1.0),
    ],
)
def test_a_value_has_the_type_of_its_key(word: str, value: object) -> None:
    found = value_of(loaded(word), word.partition("=")[0])
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.groups=many", "config.train.groups='many': must be of type int"),
        ("train.groups=1.5", "config.train.groups='1.5': must be of type int"),
        ("eval.greedy=maybe", "config.eval.greedy='maybe': must be of type bool"),
        ("engine.prefill_rows=a", "config.engine.prefill_rows='a': must be of type tuple"),
        ("env.generate=3", "config.env.generate='3': must be of type dict"),
        (
            "env.options.drawers=3",
            "config.env.options.drawers: no such key of the environment alfworld",
        ),
        ("train=3", "config.train: no such key"),
        ("train.groups", "'--config.train.groups': no such flag"),
    ],
)
def test_what_cannot_be_a_value_is_refused(word: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        loaded(word)
    assert str(error.value).startswith(message)


def test_a_flag_of_another_command_is_named_as_such() -> None:
    with pytest.raises(InputError, match="'--push': no flag of this command; leave it out"):
        load_config("configs/quickstart.py", ["--push=me/mine"])
    with pytest.raises(InputError, match="'--psh=me/mine': no such flag; nearest: --push"):
        load_config("configs/quickstart.py", ["--psh=me/mine"])


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("--groups=8", "--config.train.groups"),
        ("--targets=v5e-8", "--target, --config.model.lora.targets"),
        ("--lr=1e-5", "--config.optim.lr, --config.critic.lr"),
        ("--loggers=wandb", "--config.log.to"),
        ("--config.loggers=wandb", "log.to"),
        ("--config.trian.groups=8", "train.groups"),
    ],
)
def test_a_flag_without_its_section_or_with_the_word_of_a_meaning(word: str, near: str) -> None:
    with pytest.raises(InputError, match=f"; nearest: {near}"):
        load_config("quickstart", [word])


def test_options_of_the_files_environment_are_named_with_the_environment_that_has_none() -> None:
    name = "tests.env_bridge.failing:FAILING"
    message = (
        rf"^config.env.name={name}: the config file has options of another environment "
        r"\(env.generate.objects, .*\); add --config.env.generate=\{\} to leave them out$"
    )
    with pytest.raises(InputError, match=message):
        load_config("quickstart", [f"--config.env.name={name}"])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("alfworld:9b", "no such variant; choose 1.5b, 7b, 1.5b_ppo or 7b_ppo"),
        ("quickstart_sft:9", "no such stage; choose 1 or 2"),
        ("quickstart:foo", "has no variants; use quickstart"),
    ],
)
def test_an_unknown_variant_is_named_without_a_python_type(file: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        load_config(file, [])
    assert str(error.value) == f"--config={file}: {message}"


def test_the_environment_of_the_command_line_decides_which_options_there_are() -> None:
    name = "tests.env_bridge.failing:FAILING"
    config = loaded(
        "env.options={'drawers': 2}", "env.generate={}", "env.options.games=5", f"env.name={name}"
    )
    config.env.prompt = "compact"
    assert resolve(config).env.options.to_dict() == {"drawers": 2, "games": 5}


def test_data_of_ones_own_in_place_of_generated_games() -> None:
    with pytest.raises(
        InputError, match=r"env\.generate makes the data; add --config\.env\.generate=\{\}"
    ):
        resolve(loaded("env.options.data=/no/such/folder"))
    assert resolve(loaded("env.options.data=games", "env.generate={}")).env.generate.to_dict() == {}


def test_the_last_word_of_a_key_wins_and_variants_reach_the_file(tmp_path: Path) -> None:
    assert loaded("train.groups=8", "train.groups=4").train.groups == 4
    assert loaded(file="configs/alfworld.py:7b").mesh.fsdp == 8
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(InputError, match=r"mine.py: no get_config in "):
        loaded(file=str(tmp_path / "mine.py"))


def test_separate_words_are_joined() -> None:
    assert join_flags(["--a", "1", "--b", "--c=2", "d"]) == ["--a=1", "--b", "--c=2", "d"]


@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("quickstart", "--config.rl.algorithm=graph_values"),
        ("alfworld:7b_ppo", "--config.seed=3"),
        ("webshop", "--config.sampling.stop=('</a>',)"),
        ("mix_tiny", "--config.env.mix.alfworld.weight=2"),
    ],
)
def test_the_config_of_a_run_is_read_from_its_folder(file: str, word: str, tmp_path: Path) -> None:
    config = resolve(load_config(file, [word]))
    claim_workdir(tmp_path, config)
    saved = find_saved_config(str(tmp_path))
    assert resolve(load_config(saved, [])).to_dict() == config.to_dict()
    again = resolve(load_config(saved, ["--config.agent=reflexion"]), trains=False)
    assert again.eval.trials == 3


def test_without_a_config_the_workdir_must_have_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--mode=eval"]) == 2
    assert "--config: missing; name the run with --workdir=DIR" in capsys.readouterr().err
    assert main(["--mode=export", f"--workdir={tmp_path}"]) == 2
    assert f"--workdir={tmp_path}: holds no config.json" in capsys.readouterr().err
    claim_workdir(tmp_path, resolve(loaded("train.iterations=7")))
    assert main(["--mode=eval", f"--workdir={tmp_path}", "--print_config"]) == 0
    assert "train.iterations=7 " in capsys.readouterr().out
