"""A model folder with a hostile chat template ends every mode with one line."""

import shutil
from pathlib import Path

import pytest

from gigpo_jax.main import main

TINY = Path(__file__).parents[2] / "models" / "sokoban_text_tiny"


@pytest.mark.parametrize(
    "mode",
    ["train", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("eval", "serve"))],
)
def test_a_hostile_template_ends_a_run_with_one_line(
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    (folder / "chat_template.jinja").write_text("{% set x = '%1500000000d' % 1 %}")
    words = [f"--mode={mode}", "--config=sokoban_text_tiny"]
    words += [f"--workdir={tmp_path / 'run'}", f"--config.model.path={folder}"]
    words += [] if mode == "train" else ["--initial"]
    monkeypatch.setenv("GIGPO_API_KEY", "open sesame")
    assert main(words) == 2
    assert capfd.readouterr().err == (
        f"gigpo_jax: {folder}: the chat template failed (more than 100 MB of memory); "
        "use a model with a correct one (chat_template.jinja or tokenizer_config.json)\n"
    )
    assert not list(tmp_path.glob("run/checkpoints/*"))
