"""Saved episodes as text."""

from dataclasses import replace

from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import write_rollouts
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


def test_a_step_has_what_it_saw_its_reward_and_its_advantage(tmp_path, capsys):
    run = write_run(tmp_path / "run", steps=2)
    (path,) = list_rollouts(run)
    saved = read_rollouts(path)
    first, second = saved.episodes[0].steps
    first = replace(first, reward=1.0, penalty=0.25, advantage=0.0)
    second = replace(second, valid=False, advantage=None)
    lost = replace(saved.episodes[0], steps=(first, second), won=False)
    aborted = replace(saved.episodes[1], aborted=True, steps=())
    write_rollouts(path, replace(saved, episodes=(lost, aborted)))
    assert main([str(run), "--text=5"]) == 0
    heading, *episodes = capsys.readouterr().out.rstrip().split("\n\n")
    assert heading.endswith("2 of 2 episodes")
    response = "    <think></think><action>a key</action>"
    assert episodes == [
        "\n".join(
            [
                "== task 0 a key: lost after 2 steps ==",
                "  sees:",
                "    prompt 0: a key",
                "  writes:",
                response,
                "    reward +0.75, advantage +0.00",
                "  sees:",
                "    you see a key",
                "  writes (invalid):",
                response,
                "    reward +0.00",
            ]
        ),
        "== task 0 a key: aborted after 0 steps ==",
    ]
