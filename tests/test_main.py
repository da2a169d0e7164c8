"""The command line refuses what it does not understand with one line and exit status 2."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gigpo_jax import __main__ as command
from gigpo_jax import __version__
from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.commands import MODES, TOOLS
from gigpo_jax.main import main
from gigpo_jax.run.resumed import check_run

CONFIG = "--config=configs/quickstart.py"
ROOT = Path(__file__).parent.parent
EXAMPLE = "--config=tests/configs/example.py"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--config: missing"),
        (
            ["--config=configs/quikstart.py"],
            "no such file or packaged config; nearest: configs/quickstart.py",
        ),
        (
            ["--config=quikstart"],
            "--config=quikstart: no such file or packaged config; nearest: quickstart",
        ),
        (
            ["--config=alfwrld:7b"],
            "--config=alfwrld: no such file or packaged config; nearest: alfworld",
        ),
        (["--config=tiny"], "--config=tiny: no get_config in "),
        (["--config=x"], "no such file or packaged config; known are alfworld, alfworld_long, "),
        # smollm.py has no `get_config`.
        (["--config=x"], ", shell_tiny_sft, smollm_alfworld, "),
        (
            [CONFIG, "--mode=eval"],
            "no checkpoint in it; name the workdir of a training run, or add --initial",
        ),
        (
            [CONFIG, "--config.train.group=3"],
            "config.train.group: no such key; nearest: train.groups",
        ),
        (
            ["--config", "configs/quickstart.py", "--config.trian.groups=3"],
            "config.trian.groups: no such key",
        ),
        ([CONFIG, "--config.seed=-1"], "config.seed=-1: must be from 0 to 2147483647"),
        (
            [CONFIG, f"--config.seed={10**20}"],
            "config.seed=100000000000000000000: must be from 0 to",
        ),
        ([CONFIG, "--config.optim.lr=inf"], "config.optim.lr=inf: must be finite"),
        (
            [CONFIG, "--config.env.options.data=/no/such"],
            "config.env.options.data='/no/such': not used, because",
        ),
        ([CONFIG, "--config.env.options.engin=native"], "nearest: env.options.engine"),
        (
            ["--config=tests/configs/example.py", "--mode=sft", "--config.env.options.games=-1"],
            "games=-1: must be a number",
        ),
        (
            [CONFIG, "--config.engine.slots=1000000000"],
            "config.engine.slots=1000000000: a device has",
        ),
        (
            [CONFIG, "--config.rl.algorithm=grpo", "--config.rl.step_weight=1"],
            "grpo always has 0.0",
        ),
        ([CONFIG, "--config.env.prompt=foo"], "config.env.prompt='foo': no such style of"),
        ([CONFIG, "--config.agent=react"], "config.agent='react': only gigpo eval has agents"),
        (
            [CONFIG, "--mode=sft", "--config.eval.trials=2"],
            "config.eval.trials=2: only gigpo eval has trials",
        ),
        (
            [CONFIG, "--mode=eval", "--config.agent=raect"],
            "config.agent='raect': unknown; did you mean 'react'?",
        ),
        (
            [CONFIG, "--mode=eval", "--config.agent=reflexion", "--config.eval.trials=1"],
            "config.eval.trials=1: reflexion",
        ),
        (
            [CONFIG, "--mode=eval", "--initial", "--config.agent=react"],
            "max_prompt_tokens=80: prompts of react with 1 example(s) of",
        ),
        ([CONFIG, "--mode=export"], "no checkpoint in it; name the workdir of a training run"),
        ([CONFIG, "--config.train.groups=many"], "config.train.groups='many': must be of type int"),
        ([CONFIG, "--config.train.groups=-2"], "config.train.groups=-2: must be greater than 0"),
        ([CONFIG, "--mode=tain"], "argument --mode: invalid choice: 'tain' (choose from"),
        ([CONFIG, "--wrokdir=x"], "wrokdir"),
        ([CONFIG, "train"], "'train': no such flag"),
        ([CONFIG, "--config.model.path=/no/such/folder"], "/no/such/folder"),
        ([CONFIG, "--config.env.name=alfwrld"], "alfworld"),
        ([CONFIG, "--config.rl.algorithm=gipgo"], "gigpo"),
        ([CONFIG, "--config.mesh.fsdp=64"], "mesh"),
        ([CONFIG, "--workdir=/proc/nowhere"], "--workdir=/proc/nowhere: cannot be written"),
        (
            [CONFIG, "--mode=sft", "--out=/proc/nowhere/model"],
            "--out=/proc/nowhere: cannot be written",
        ),
        (
            [CONFIG, "--mode=eval", "--initial", "--workdir=/proc/nowhere"],
            "--workdir=/proc/nowhere: cannot be written",
        ),
        (
            [CONFIG, "--mode=export", "--initial", "--out=configs"],
            "configs: exists and is not a model",
        ),
        (
            [CONFIG, "--mode=export", "--initial", "--push=mine"],
            "--push=mine: no name of a model of the Hub",
        ),
        ([CONFIG, "--workdr=runs/x"], "'--workdr=runs/x': no such flag; nearest: --workdir"),
        (
            ["--config=alfworld", "--config.model.path=models/alfworld_tiny"],
            "config.env.options.data='': no folder with games",
        ),
        ([CONFIG, "--config.train.minibatch=100000"], "at most 1152 steps"),
        ([CONFIG, "--push=me/mine"], "--push=me/mine: belongs to --mode=export; leave it out"),
        ([CONFIG, "--config.model.revision=v1"], "leave revision='v1' out"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    status = main([f"--workdir={tmp_path / 'run'}", *flags])
    error = capsys.readouterr().err.rpartition("\r")[2]
    # Games that are generated first have a bar, which is wiped, or a line where that takes long.
    error = "".join(line for line in error.splitlines(True) if not line.startswith("generating "))
    assert (status, error.count("\n"), error.startswith("gigpo_jax: ")) == (2, 1, True), error
    assert message in error
    assert not (tmp_path / "run").exists()


def test_the_process_ends_with_that_line_and_that_status(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "gigpo_jax.main",
        CONFIG,
        f"--workdir={tmp_path / 'run'}",
        "--config.seed=-1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    line = "gigpo_jax: config.seed=-1: must be from 0 to 2147483647\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "config = tiny_config(); config.train.grops = 4",
            "config.train.grops: no such key; nearest: train.groups",
        ),
        ("config = default_config(); config.train.grops = 4", "grops"),
        ("config = tiny_config(); config.lock().train.grops", "grops"),
        ("config = 1 / 0", "division by zero"),
        ("return None\n\ndel get_config\ndef get_confg():\n    config = 0", "nearest: get_confg"),
    ],
)
def test_a_mistake_in_a_config_file_is_one_line_and_status_2(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    imports = "from configs.tiny import tiny_config\nfrom gigpo_jax.config import default_config\n"
    (tmp_path / "mine.py").write_text(
        f"{imports}def get_config():\n    {line}\n    return config\n"
    )
    test_bad_input_is_one_line_and_status_2(
        [f"--config={tmp_path / 'mine.py'}"], message, tmp_path, capsys
    )


@pytest.mark.parametrize("mode", list(MODES))
def test_the_help_of_a_mode_has_its_flags_and_ten_keys(
    mode: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="0"):
        main([f"--mode={mode}", "--help"])
    text = capsys.readouterr().out
    assert ("--push" in text, "--target" in text) == (mode == "export", mode == "preflight")
    assert ("--initial" in text) == (mode in ("eval", "serve", "export"))
    assert "gigpo keys PATTERN" in text
    assert "model.path=" in text
    assert text.count("\n") < 40
    folder = Path(text.rpartition("pages in ")[2].partition(":")[0])
    assert (folder / "guide.md").is_file()


def test_help_and_version_need_no_config(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for flag, words in (("--help", "gigpo COMMAND --help"), ("--version", __version__)):
        monkeypatch.setattr(sys, "argv", ["gigpo", flag])
        assert command.main() == 0
        assert words in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    for name in (*MODES, *TOOLS):
        assert f"\n  {name} " in text
    assert main(["--help=clip_low"]) == 0
    assert capsys.readouterr().out.startswith("rl.clip_low ")


def test_a_mistyped_workdir_is_refused_with_the_nearest_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "quickstart" / "checkpoints" / "3").mkdir(parents=True)
    (tmp_path / "quickstart" / "config.json").write_text("{}")
    for mode in ("eval", "export"):
        assert main([CONFIG, f"--mode={mode}", f"--workdir={tmp_path / 'qickstart'}"]) == 2
        assert f"(nearest: {tmp_path / 'quickstart'})" in capsys.readouterr().err
    assert main([CONFIG, "--mode=eval", "--initial", f"--workdir={tmp_path / 'quickstart'}"]) == 2
    assert "holds checkpoints" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["quickstart"]


def test_a_run_of_another_model_is_refused_before_its_checkpoints_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """They are healthy, so nothing may call them damaged."""
    workdir = tmp_path / "quickstart"
    (workdir / "checkpoints/30").mkdir(parents=True)
    saved = {"model": {"path": "models/alfworld_tiny"}}
    (workdir / "config.json").write_text(json.dumps(saved))
    for mode in ("eval", "export", "serve"):
        assert main(["--config=webshop_tiny", f"--mode={mode}", f"--workdir={workdir}"]) == 2
        error = capsys.readouterr().err
        assert "config.model.path='models/webshop_tiny': " in error
        assert "there: model.path='models/alfworld_tiny'" in error
    moved_model = ROOT / "models/alfworld_tiny"
    config = resolve(load_config("quickstart", [f"--config.model.path={moved_model}"]))
    check_run(workdir, config, initial=False)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "credit"])
def test_a_platform_that_is_not_here_is_one_line(command: str, tmp_path: Path):
    process = subprocess.run(
        [sys.executable, "-m", "gigpo_jax", command, CONFIG, f"--workdir={tmp_path / 'run'}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"JAX_PLATFORMS": "rocm"},
    )
    assert process.returncode == 2
    assert re.match("gigpo_jax( credit)?: JAX_PLATFORMS=rocm: ", process.stderr)
    assert len(process.stderr.splitlines()) == 1


def test_print_config_says_where_each_value_came_from(capsys: pytest.CaptureFixture[str]):
    flags = [
        "--config.rl.algorithm=gspo",
        "--config.env.generate.seed=3",
        "--config.rl.kl_coef=auto",
    ]
    assert main(["--config=quickstart", "--print_config", "--config.train.groups=16", *flags]) == 0
    lines = dict(
        line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "[" not in line
    )
    assert lines["train.groups=16"] == "command line"  # though it is the default too
    assert lines["env.generate.seed=3"] == "command line"
    assert lines["model.path=models/alfworld_tiny"] == "config file"
    assert lines["rl.ratio=sequence"] == lines["rl.old_logprobs=recompute"] == "algorithm gspo"
    assert lines["rl.kl_coef=0.01"] == lines["rl.gamma=0.95"] == "default"


def test_the_command_passes_its_flags_on(tmp_path: Path):
    """From another folder, where modules of the user can be named."""

    def gigpo(*words: str) -> tuple[int, str, str]:
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "bin/gigpo", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
            env=environ,
        )
        return done.returncode, done.stdout, done.stderr

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gigpo").write_text(
        "import sys\nfrom gigpo_jax.__main__ import main\n\nsys.exit(main())\n"
    )
    assert gigpo("tran") == (
        2,
        "",
        "gigpo: 'tran': no such command; nearest: train; see gigpo --help\n",
    )
    refused = "gigpo_jax: config.seed=-1: must be from 0 to 2147483647\n"
    assert gigpo("eval", "--config=alfworld:7b", "--config.seed=-1") == (2, "", refused)
    assert "usage: gigpo inspect" in gigpo("inspect", "--help")[1]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/base.py").write_text("SEED = 5\n")
    (tmp_path / "mine/run.py").write_text(
        "from base import SEED\nfrom configs.quickstart import get_config as quickstart\n\n"
        "def get_config():\n    config = quickstart()\n    config.seed = SEED\n    return config\n"
    )
    (tmp_path / "own.py").write_text(
        "from gigpo_jax.envs.registry import ENVIRONMENTS\nGAME = ENVIRONMENTS['alfworld']\n"
    )
    status, told, _ = gigpo(
        "train", "--config=mine/run.py", "--config.env.name=own:GAME", "--print_config"
    )
    origins = dict(line.split(maxsplit=1) for line in told.splitlines() if "[" not in line)
    assert (status, origins["seed=5"], origins["env.name=own:GAME"]) == (
        0,
        "config file",
        "command line",
    )
