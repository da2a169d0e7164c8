"""What a run says at its end: commands that work when they are typed as they stand."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from ml_collections import ConfigDict

import gigpo_jax
from gigpo_jax.config import default_config, resolve
from gigpo_jax.envs.command_line import main as envs
from gigpo_jax.main import main
from gigpo_jax.run import report


def test_what_others_wrote_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report.say("the server said: \x1b]0;owned\x07 \x9b31m\r\u202e\ud800 grüß 你好\nsecond line")
    output = capsys.readouterr().out
    assert (
        output
        == "the server said: \\x1b]0;owned\\x07 \\x9b31m\\r\\u202e\\ud800 grüß 你好\nsecond line\n"
    )


@pytest.mark.parametrize("active", [True, False])
def test_the_next_commands_run_in_the_environment_that_printed_them(
    active: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program_folder = str(Path(sys.executable).parent)
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != program_folder]
    monkeypatch.setenv("PATH", os.pathsep.join([program_folder, *path] if active else path))
    config = default_config()
    config.eval.panel = "drawers"
    report.print_end(config, tmp_path)
    text = capsys.readouterr()
    lines = [
        line.strip()
        for line in (text.out + text.err).partition("next:")[2].splitlines()
        if line.strip()
    ]
    inspect, board, *again = [
        shlex.split(line.partition("    ")[0].partition("(")[0]) for line in lines
    ]
    assert board[1:] == ["--logdir", f"{tmp_path}/tensorboard"]
    flags = [f"--workdir={tmp_path}"]  # config.json has the rest
    gigpo = (Path(program_folder) / "gigpo").exists()
    assert inspect[-2:] == ["inspect", str(tmp_path)]
    assert [words[1 if gigpo else 3 :] for words in again] == [["export", *flags], ["eval", *flags]]
    program = again[0][:1] if gigpo else again[0][:3]
    help_text = subprocess.check_output([*program, "inspect", "--help"], text=True, timeout=60)
    assert "Shows a run" in help_text
    assert (again[0][0] in ("gigpo", "python")) == active


def test_only_what_the_run_has_is_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = default_config()
    config.log.to = ()
    report.print_end(config, tmp_path)
    output = capsys.readouterr().out
    assert " export --workdir=" in output
    assert " eval --workdir=" not in output
    assert "tensorboard" not in output.lower()


@pytest.mark.parametrize(
    ("aborted", "dependent", "output"),
    [(0.0, 0.0, ""), (3.0, 2.0, "aborted 3 (2 policy-dependent)")],
)
def test_aborted_episodes_stand_in_the_line_of_an_iteration(
    aborted: float, dependent: float, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"episode/aborted": aborted, "episode/aborted_policy_dependent": dependent}
    config = default_config()
    config.train.iterations = 9
    report.print_iteration(resolve(config), 3, metrics, None)
    assert capsys.readouterr().out.strip() == f"iteration 3/9  {output}".strip()


def test_control_characters_of_tasks_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Names of data sets, departments and tasks come from users' files."""
    report.say("| \x1b[31mnq\x07 | 50.0 |\n| caf\u00e9 | 1.0 |")
    assert capsys.readouterr().out == "| \\x1b[31mnq\\x07 | 50.0 |\n| caf\u00e9 | 1.0 |\n"


def test_nor_do_those_of_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config=\x1b[31mconfigs/none.py"]) == 2
    output = capsys.readouterr().err
    assert "\\x1b[31mconfigs/none.py" in output
    assert "\x1b" not in output
    assert envs(["search", "index", "--corpus", "\x1b[31mnone", "--out", "x"]) == 2
    output = capsys.readouterr().err
    assert "\\x1b[31mnone" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({}, "entropy 1.500  kl 0.0200"),
        ({"kl_coef": 0.0}, "entropy 1.500"),
        ({"kl_in": "reward"}, "entropy 1.500  kl penalty 0.0300"),
    ],
)
def test_the_line_has_no_column_for_a_term_that_is_off(
    changes: dict[str, object], columns: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = default_config()
    config.rl.update(changes)
    metrics = {"policy/kl": 0.02, "policy/entropy": 1.5, "time/compile": 0.01}
    report.print_iteration(
        resolve(config),
        3,
        metrics | ({"credit/kl_penalty": 0.03} if "kl_in" in changes else {}),
        None,
    )
    assert capsys.readouterr().out == f"iteration 3/150  {columns}\n"


def test_the_line_of_a_mix_has_each_environment_behind_the_total(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = default_config().unlock()
    config.env.mix = ConfigDict({"house": {"name": "alfworld"}, "shop": {"name": "webshop"}})
    metrics = {
        "episode/success_rate": 0.5,
        "episode/success_rate/house": 0.75,
        "episode/success_rate/shop": 0.0,
        "episode/length": 4.25,
        "action/valid_rate": 0.96,
        "policy/grad_norm": 1.5,
        "time/rollout": 20.0,
        "time/update": 31.5,
        "rollout/refilled_groups": 3.0,
        "val/sampled/success_rate": 0.125,
        "val/sampled/success_rate/house": 0.25,
    }
    report.print_iteration(config, 3, metrics, 59.0)
    assert capsys.readouterr().out == (
        "iteration 3/150  success 50%  house 75%  shop 0%  length 4.2  valid 96%  grad 1.50  "
        "rollout 20.0 s  update 31.5 s  refilled 3 groups  panel (sampled) 12.5%  house 25.0%  "
        "left 59 s\n"
    )


def test_the_remaining_time_leaves_compilation_out(capsys: pytest.CaptureFixture[str]) -> None:
    config = default_config()
    remaining = report.Remaining()
    remaining.add({"time/eval": 500.0, "time/compile": 3.0})  # before training
    assert remaining.seconds(config, 0) is None
    first = {"time/iteration": 130.0, "time/compile": 90.0}
    remaining.add(first)
    assert remaining.seconds(config, 1) is None  # the first iteration is not like the others
    remaining.add({"time/iteration": 50.0, "time/eval": 30.0})
    assert remaining.seconds(config, 30) == 120 * 60.0
    assert remaining.seconds(config, 150) is None
    report.print_iteration(resolve(config), 30, first, remaining.seconds(config, 30))
    assert capsys.readouterr().out == "iteration 30/150  compilation 90.0 s  left 2 h 00 min\n"
    assert [report.format_duration(seconds) for seconds in (59.4, 60, 3599, 86400)] == [
        "59 s",
        "1 min",
        "1 h 00 min",
        "24 h 00 min",
    ]


def test_the_remaining_time_is_never_negative() -> None:
    """Programs that compile at the same time take longer than the iteration."""
    config = default_config()
    remaining = report.Remaining()
    for _ in range(2):
        remaining.add({"time/iteration": 5.0, "time/compile": 9.0})
    assert remaining.seconds(config, 2) == 0.0


@pytest.mark.parametrize(
    ("kind", "peak"),
    [("NVIDIA H100 80GB HBM3", 989e12), ("TPU v5 lite", 197e12), ("TPU v5p", 459e12), ("new", 0)],
)
def test_throughput_is_work_a_second_and_mfu_is_of_the_peak_of_all_devices(
    kind: str, peak: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "an accelerator")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    metrics = {
        "rollout/steps": 30.0,
        "rollout/generated_tokens": 600.0,
        "time/rollout": 4.0,
        "batch/tokens": 9000.0,
        "time/update": 5.0,
    }
    rates = report.throughput_metrics(metrics, 6 * 10**9, 8)
    assert rates.pop("throughput/mfu", 0.0) == pytest.approx(
        6e9 * 1800 / (8 * peak) if peak else 0.0
    )
    assert rates == {
        "throughput/generated_tokens_per_s": 150.0,
        "throughput/env_steps_per_s": 7.5,
        "throughput/trained_tokens_per_s": 1800.0,
    }
    # The first record is of an evaluation alone.
    assert report.throughput_metrics({"time/eval": 3.0}, 6 * 10**9, 8) == {}


def test_all_bars_are_made_in_one_place() -> None:
    """So that each of them moves while nothing is counted, and is a line in a log."""
    calls = {
        path.name: [ast.unparse(word) for word in node.keywords]
        for path in Path(gigpo_jax.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tqdm"
    }
    # The tools of environments work without tqdm.
    assert calls.keys() == {"progress.py", "commands.py"}
    assert all("disable=None" in words for words in calls.values())
