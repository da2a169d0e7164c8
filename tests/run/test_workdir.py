"""A workdir belongs to one config."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError, StorageError
from gigpo_jax.core.files import check_writable
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.run import workdir as folders
from gigpo_jax.run.machine_types import read_types
from gigpo_jax.run.resumed import check_adapter
from gigpo_jax.run.workdir import claim_workdir, open_workdir


def opened(workdir: Path, config: ConfigDict) -> None:
    with open_workdir(workdir, config):
        pass


def test_the_same_config_opens_it_again(tmp_path: Path):
    opened(tmp_path / "a" / "b", default_config())
    assert not (tmp_path / "a").exists()
    claim_workdir(tmp_path / "a" / "b", default_config())
    opened(tmp_path / "a" / "b", default_config())
    assert {path.name for path in (tmp_path / "a/b").iterdir()} == {"config.json", ".lock"}


def test_how_it_runs_may_differ_but_not_what_it_computes(tmp_path: Path):
    opened(tmp_path, default_config())
    claim_workdir(tmp_path, default_config())
    config = default_config()
    config.env.workers, config.checkpoint.every = 7, 3
    opened(tmp_path, config)
    config.sampling.stop = ("</answer>",)
    with pytest.raises(
        InputError, match=r"sampling.stop=\['</answer>'\] \(there: \['</action>'\]\)"
    ):
        opened(tmp_path, config)


def test_a_config_of_before_a_key_was_there_means_its_default(tmp_path: Path):
    config = default_config().unlock()
    del config.model["lora"]
    opened(tmp_path, default_config())
    claim_workdir(tmp_path, config)
    opened(tmp_path, default_config())
    config = default_config()
    config.model.lora.rank = 8
    with pytest.raises(InputError, match=r"model.lora.rank=8 \(there: 0\)"):
        opened(tmp_path, config)


def test_the_shape_of_random_weights_may_differ_beside_a_path(tmp_path: Path):
    config = default_config().unlock()
    config.model.path = "models/alfworld_tiny"
    config.model.shape.rope_theta = 1e4
    claim_workdir(tmp_path, config)
    config.model.shape.rope_theta = 1e6
    opened(tmp_path, config)


def test_until_a_run_has_started_any_config_may_open_it(tmp_path: Path):
    config = default_config()
    config.optim.lr = 0.5
    opened(tmp_path, config)
    opened(tmp_path, default_config())
    claim_workdir(tmp_path, default_config())
    claim_workdir(tmp_path, config)  # the first one stays
    with pytest.raises(InputError, match=r"optim.lr=0.5 \(there: 1e-06\)"):
        opened(tmp_path, config)


@pytest.mark.skipif(
    os.geteuid() != 0 and not os.path.exists("/proc"), reason="needs a folder that nobody can write"
)
def test_a_folder_that_cannot_be_written():
    with pytest.raises(InputError, match="--workdir=/proc/run: cannot be written"):
        opened(Path("/proc/run"), default_config())
    with pytest.raises(InputError, match="--out=/proc/run: cannot be written"):
        check_writable(Path("/proc/run"), "--out")


def test_a_file_in_the_way(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="choose another folder"):
        opened(tmp_path / "file", default_config())


HOLDS = """
import sys, time
from pathlib import Path
from gigpo_jax.config import default_config
from gigpo_jax.run.workdir import open_workdir
with open_workdir(Path(sys.argv[1]), default_config()):
    print("open", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_in_use_until_its_run_ends_however_that_ends(tmp_path: Path):
    run = subprocess.Popen(
        [sys.executable, "-c", HOLDS, tmp_path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "open\n"
        with pytest.raises(
            InputError, match=rf"--workdir={tmp_path}: in use by process {run.pid} on \S+; wait for"
        ):
            opened(tmp_path, default_config())
    finally:
        run.kill()
        run.communicate()
    opened(tmp_path, default_config())
    with open_workdir(tmp_path / "other", default_config()):
        opened(tmp_path, default_config())


def test_checkpoints_of_an_adapter_are_read_with_its_scale_and_on_its_model_alone(tmp_path: Path):
    config = default_config()
    config.model.lora.rank, config.model.path = 8, "a/model"
    check_adapter(tmp_path, config, "b0")
    opened(tmp_path, config)
    claim_workdir(tmp_path, config, "b0")
    check_adapter(tmp_path, default_config(), "")  # no checkpoint yet: nothing to take for another
    (tmp_path / "checkpoints/1").mkdir(parents=True)
    config.model.lora.targets = tuple(reversed(config.model.lora.targets))
    config.model.path, config.optim.lr, config.eval.tasks = "moved/model", 1.0, 3
    check_adapter(tmp_path, config, "b0")
    with pytest.raises(
        InputError, match=r"'moved/model': not the weights .* \(there: model.path='a/model'\)"
    ):
        check_adapter(tmp_path, config, "b1")
    config.model.lora.alpha = 4.0
    with pytest.raises(
        InputError,
        match=r"trained with config.model.lora .*'alpha': 32.0.*, given is .*'alpha': 4.0",
    ):
        check_adapter(tmp_path, config, "b0")
    with pytest.raises(InputError, match=r"given is \{'rank': 0\}"):
        check_adapter(tmp_path, default_config(), "")


def test_checkpoints_of_all_parameters_are_read_with_any_model_path(tmp_path: Path):
    config = default_config().unlock()
    del config.model["lora"]  # and configs from before there were adapters
    opened(tmp_path, default_config())
    claim_workdir(tmp_path, config)
    (tmp_path / "checkpoints/1").mkdir(parents=True)
    config = default_config()
    config.model.path = "another"
    check_adapter(tmp_path, config, "")
    config.model.lora.rank = 8
    with pytest.raises(
        InputError, match=r"trained with config.model.lora \{'rank': 0\}, given is \{'rank': 8,"
    ):
        check_adapter(tmp_path, config, "b0")


@pytest.mark.parametrize(
    "content", ['{"seed": 0, "mod', "", "[]", "\ud800".encode("utf-8", "surrogatepass")]
)
def test_a_torn_config_is_named_in_one_line(tmp_path: Path, content: str | bytes):
    opened(tmp_path, default_config())
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    (tmp_path / "config.json").write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    for use in (
        lambda: opened(tmp_path, default_config()),
        lambda: check_adapter(tmp_path, default_config(), ""),
    ):
        with pytest.raises(
            InputError, match=r"config\.json: (not valid JSON|holds a list).*; restore the file"
        ) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert (tmp_path / "checkpoints" / "1").is_dir()


def test_iterations_may_grow_and_the_schedules_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = default_config()
    config.train.iterations, config.optim.schedule, config.rl.ratio = 30, "linear", "token"
    claim_workdir(tmp_path, config)
    config.train.iterations = 60
    with open_workdir(tmp_path, config):
        claim_workdir(tmp_path, config)
    message = "train.iterations grows from 30 to 60, optim.schedule=linear is now over all 60\n"
    assert capsys.readouterr().out == message
    opened(tmp_path, config)
    assert capsys.readouterr().out == ""
    config.train.iterations = 59
    with pytest.raises(InputError, match=r"train.iterations=59 \(there: 60\)"):
        opened(tmp_path, config)


def test_a_start_that_fails_leaves_what_was_there(tmp_path: Path):
    for workdir in (tmp_path / "new" / "run", tmp_path / "old"):
        (tmp_path / "old" / "tensorboard").mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(EnvError), open_workdir(workdir, default_config()):
            (workdir / "checkpoints").mkdir()
            (workdir / "metrics.jsonl").touch()
            raise EnvError("the environment does not start")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "old",
        "old/tensorboard",
    ]


def test_a_run_records_its_machine_once_for_each_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.record_machine(tmp_path, 0)
    folders.record_machine(tmp_path, 5)
    [kept] = read_types(tmp_path)
    assert f"1 x {jax.devices()[0].device_kind}, jax {jax.__version__}" in kept
    monkeypatch.setattr(folders, "describe_machine", lambda: {"cpu": "another"})
    folders.record_machine(tmp_path, 7)
    starts = json.loads((tmp_path / "machine.json").read_text())["starts"]
    assert [start["done"] for start in starts] == [0, 7]
    (tmp_path / "machine.json").write_text("torn")
    folders.record_machine(tmp_path, 9)
    assert len(read_types(tmp_path)) == 1


def test_a_folder_that_is_removed_meanwhile_hides_no_error(tmp_path: Path):
    workdir = tmp_path / "run"

    def run() -> None:
        with open_workdir(workdir, default_config()):
            shutil.rmtree(workdir)
            raise StorageError("the disk is gone")

    with pytest.raises(StorageError, match="the disk is gone"):
        run()
