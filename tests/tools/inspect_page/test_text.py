"""Saved episodes as text."""

from gigpo_jax.tools.inspect.command import main
from gigpo_jax.tools.inspect.data import list_rollouts
from tests.tools.inspect_page.runs import write_run


def test_episodes_of_a_run_and_of_a_file_are_printed(tmp_path, capsys):
    run = write_run(tmp_path / "run", text="a key\x1b[31m")
    for path in (run, list_rollouts(run)[0]):
        assert main([str(path), "--text=2"]) == 0
        text = capsys.readouterr().out
        assert "2 of 4 episodes" in text
        assert text.count("== ") == 2
        assert "writes" in text
        assert "advantage" in text
        assert "\x1b" not in text


def test_a_run_without_saved_rollouts_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path), "--text=1"]) == 2
    assert "no saved rollouts" in capsys.readouterr().err
