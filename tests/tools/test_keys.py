"""`gigpo keys` finds keys by name and meaning."""

import pytest

from gigpo_jax.config.help_text import MAIN_KEYS
from gigpo_jax.config.keys import KEYS
from gigpo_jax.core.commands import MODES
from gigpo_jax.tools.keys.command import main


def test_every_key_is_listed_and_patterns_choose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert set(names) >= KEYS.keys()
    assert main(["rl.ratio"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("rl.ratio ")
    assert "default: 'token'; one of token, sequence" in line
    assert main(["DRAWERS", "row"]) == 0
    assert capsys.readouterr().out.startswith("env.options.drawers [example]")
    assert main(["hoelder", "exponent"]) == 0


def test_a_pattern_without_keys_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian.groups"]) == 2
    assert "no key has trian.groups; nearest: train.groups" in capsys.readouterr().err


def test_the_keys_that_matter_exist() -> None:
    assert list(MAIN_KEYS) == list(MODES)
    for names in MAIN_KEYS.values():
        assert set(names) <= KEYS.keys()
        assert len(names) <= 10
