"""Models of the Hub, over HTTP against a stand-in: pushed, replaced, downloaded once, and refused
in one line.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.files import hub
from tests.models.files import hub_server

CODE = """
import json, pathlib, sys
from gigpo_jax.core.errors import InputError, StorageError
from gigpo_jax.models.files import hub
for name, *arguments in json.loads(sys.argv[1]):
    try:
        keys = {"key": "config.model.path"} if name == "download" else {}
        print(getattr(hub, name)(*arguments, **keys))
    except (InputError, StorageError) as err:
        print(f"{type(err).__name__}: {err}")
assert "jax" not in sys.modules
"""


def calls(steps: list[list[str]], home: pathlib.Path, **variables: str) -> list[str]:
    """What functions of `hub` return or raise, in a process of their own: huggingface_hub reads
    variables on import.
    """
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "0"} | variables
    command = [sys.executable, "-c", CODE, json.dumps(steps)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_pushed_folder_replaces_another_and_is_downloaded_once(tmp_path: pathlib.Path) -> None:
    old = tmp_path / "old"
    new = tmp_path / "new"
    for folder, files in (
        (old, ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors")),
        (
            new,
            ("config.json", "tokenizer.json", "model.safetensors", "adapter/adapter_config.json"),
        ),
    ):
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(f"{folder.name} {file}")
    with hub_server.serving() as server:
        online = {"HF_ENDPOINT": server.url, "HF_TOKEN": "secret"}
        steps = [
            ["check_push", "me/tiny"],
            ["push", str(old), "me/tiny"],
            ["push", str(new), "me/tiny"],
        ]
        answers = calls([*steps, ["download", "me/tiny", ""]], tmp_path / "home", **online)
        assert answers[1] == f"{server.url}/me/tiny"
        assert contents(pathlib.Path(answers[3])) == contents(new) == server.models["me/tiny"]
        (
            pathlib.Path(answers[3]) / "tokenizer.json"
        ).unlink()  # as if another program had needed less
        assert calls([["download", "me/tiny", ""]], tmp_path / "home", **online) == answers[3:]
        assert contents(pathlib.Path(answers[3])) == contents(new)
        (refused,) = calls(
            [["push", str(new), "me/tiny"]], tmp_path, **online | {"HF_TOKEN": "guessed"}
        )
        assert refused.startswith("StorageError: --push=me/tiny: failed (HfHubHTTPError: ")
        assert refused.endswith(f"the folder is complete, push it with: hf upload me/tiny {new}")
        assert server.refused == []
    # Nobody listens there any more: what was downloaded is enough, and nothing else can be had.
    again, missing = calls(
        [["download", "me/tiny", ""], ["download", "me/other", "v1"]], tmp_path / "home", **online
    )
    assert again == answers[3]
    assert missing.startswith(
        "InputError: config.model.path='me/other': no such folder, and no such model from the Hub"
    )
    patterns = "--include '*.json' --include '*.jinja' --include '*.txt' --include '*.safetensors'"
    assert missing.endswith(
        f"where there is a network: hf download me/other --revision v1 {patterns}"
    )


def test_what_cannot_be_pushed_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        InputError, match=r"--push=tiny: no name of a model of the Hub; write ORG/NAME"
    ):
        hub.check_push("tiny")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(InputError, match=r"--push=me/tiny: no token for the Hub; set HF_TOKEN"):
        hub.check_push("me/tiny")
