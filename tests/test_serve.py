"""`gigpo serve` as users start it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from gigpo_jax.main import main

KEY = "open sesame"


def test_it_serves_sessions_until_sigterm(tmp_path: Path):
    words = [sys.executable, "-m", "gigpo_jax", "serve", "--config=sokoban_text_tiny", "--initial"]
    words += [f"--workdir={tmp_path / 'run'}", "--config.engine.slots=4", "--config.engine.prefill_rows=(4,)"]
    environ = os.environ | {"GIGPO_API_KEY": KEY}
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            assert lines[0].startswith("models/sokoban_text_tiny is served"), lines
            url = lines[1].split()[0].removeprefix("OPENAI_BASE_URL=")
            with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
                room = {"model": "policy", "messages": [{"role": "user", "content": "# # #"}]}
                opened = client.post("/sessions", body={"task": "a room"}, cast_to=object)
                with client.with_options(base_url=opened["base_url"]) as session:
                    told = session.chat.completions.create(**room).choices[0].message.content
                    session.post("/reward", body={"reward": 1}, cast_to=object)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, (out, err)
        finally:
            process.kill()
    (record,) = map(json.loads, (tmp_path / "run/sessions.jsonl").read_text().splitlines())
    assert (record["task"], record["won"], record["score"]) == ("a room", True, 1.0)
    assert record["steps"][0]["response"] == told
    assert (record["steps"][0]["reward"], record["steps"][0]["version"]) == (1.0, 0)


def test_without_a_key_nothing_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GIGPO_API_KEY", raising=False)
    assert main(["--mode=serve", "--config=quickstart", "--initial", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "GIGPO_API_KEY: not set" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
