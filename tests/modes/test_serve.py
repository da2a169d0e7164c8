"""`gigpo serve` as users start it."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import openai
import pytest

from gigpo_jax.core.installation import install_command
from gigpo_jax.engines.base import Completion, EngineLost
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.main import main
from gigpo_jax.modes.serve import _append_line

KEY = "open sesame"


def test_it_serves_sessions_until_sigterm(tmp_path: Path):
    words = [sys.executable, "-m", "gigpo_jax", "serve", "--config=sokoban_text_tiny", "--initial"]
    words += [
        f"--workdir={tmp_path / 'run'}",
        "--config.engine.slots=4",
        "--config.engine.prefill_rows=(4,)",
    ]
    environ = os.environ | {"GIGPO_API_KEY": KEY}
    with subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            assert lines[0].startswith("models/sokoban_text_tiny is served"), lines
            url = lines[1].split()[0].removeprefix("OPENAI_BASE_URL=")
            with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
                room = {"model": "policy", "messages": [{"role": "user", "content": "# # #"}]}
                opened = client.post("/sessions", body={"task": "a room"}, cast_to=object)
                with client.with_options(base_url=opened["base_url"]) as session:
                    reply = session.chat.completions.create(**room).choices[0].message.content
                    session.post("/reward", body={"reward": 1}, cast_to=object)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, (out, err)
        finally:
            process.kill()
    (record,) = map(json.loads, (tmp_path / "run/sessions.jsonl").read_text().splitlines())
    assert (record["task"], record["won"], record["score"]) == ("a room", True, 1.0)
    assert record["steps"][0]["response"] == reply
    assert (record["steps"][0]["reward"], record["steps"][0]["version"]) == (1.0, 0)


def test_it_ends_when_the_engine_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    async def generate(*_: object, **__: object) -> Completion:
        raise EngineLost("no server is left")

    monkeypatch.setenv("GIGPO_API_KEY", KEY)
    monkeypatch.setattr(JaxEngine, "generate", generate)
    monkeypatch.setattr(JaxEngine, "warmup", lambda engine: None)
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]

    def ask() -> None:
        client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=100, timeout=5
        )
        with (
            client,
            contextlib.suppress(openai.APIError),
        ):  # until the endpoint is up, and after it is gone
            client.completions.create(model="policy", prompt="#")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    flags = [
        "--config=sokoban_text_tiny",
        "--initial",
        f"--config.serve.port={port}",
        f"--workdir={tmp_path / 'run'}",
    ]
    assert main(["--mode=serve", *flags]) == 1
    assert "stopped: no server is left" in capsys.readouterr().out


def test_a_record_is_written_whole_or_not_at_all(tmp_path: Path):
    """The limit on the size of a file is like a full disk: the first bytes fit."""
    path = tmp_path / "sessions.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
        _append_line(path, b"one line\n")
        with pytest.raises(OSError, match="No space left"):
            _append_line(path, b"another line\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous_handler)
    assert path.read_bytes() == b"one line\n"


def test_without_a_key_nothing_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GIGPO_API_KEY", raising=False)
    assert (
        main(["--mode=serve", "--config=quickstart", "--initial", f"--workdir={tmp_path / 'run'}"])
        == 2
    )
    assert "GIGPO_API_KEY: not set" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_and_a_missing_package_are_found_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GIGPO_API_KEY", KEY)
    monkeypatch.delattr("gigpo_jax.run.open_policy.load_policy")
    example = Path(__file__).parents[2] / "examples/harness"
    monkeypatch.syspath_prepend(example)
    commands = [
        ["--mode=serve", "--config=sokoban_text_tiny", "--initial"],
        [f"--config={example / 'config.py'}"],
    ]
    with socket.create_server(("127.0.0.1", 0)) as used:
        flags = [f"--workdir={tmp_path / 'run'}", f"--config.serve.port={used.getsockname()[1]}"]
        for command in commands:
            assert main([*command, *flags]) == 2
            assert "address already in use); choose another port" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for command in commands:
        assert main([*command, *flags]) == 2
        assert f"needs the package aiohttp; {install_command('serve')}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
