"""The config of a run as its workdir has it."""

from pathlib import Path

from ml_collections import ConfigDict

from gigpo_jax.config import mix
from gigpo_jax.config.keys import KEYS, find_section
from gigpo_jax.config.removed_keys import with_defaults
from gigpo_jax.config.resolve import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object

FIX = "give a config with --config"


def read_saved_config(path: Path) -> ConfigDict:
    """Reads the config.json of a run; returns it unlocked.

    Raises:
      InputError: The file is missing, broken, or no config.
    """
    config = default_config().unlock()
    sections = tuple(f"{section}." for section in mix.SECTIONS)
    for name, value in with_defaults(read_object(path, FIX), ()).items():
        try:
            section, last = find_section(config, name, make=name.startswith(sections))
            with config.ignore_type():
                section[last] = tuple(value) if isinstance(value, list) else value
        # A key in no section, or below a key that has a value.
        except (KeyError, TypeError, AttributeError, ValueError) as err:
            raise InputError(f"has no place for the key {name:.80}", key=path, fix=FIX) from err
    # A run has one trial; an agent of gigpo eval may have more by default.
    config.eval.trials = None
    return config


def affects_results(name: str) -> bool:
    """Tests whether the value of a dotted key can change a run's results."""
    # Options of environments and settings of algorithms are not in KEYS; all of them count.
    return name not in KEYS or not KEYS[name].may_change
