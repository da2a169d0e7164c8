"""What a command line says about its config file, and what is wrong with that."""

import runpy
from collections.abc import Sequence

from gigpo_jax.config import unknown_keys


def joined(argv: Sequence[str]) -> list[str]:
    """The words of a command line, `--flag value` as one: `--flag=value`."""
    flags: list[str] = []
    for word in argv:
        if flags and flags[-1].startswith("-") and "=" not in flags[-1] and not word.startswith("-"):
            flags[-1] += f"={word}"
        else:
            flags.append(word)
    return flags


def misspelt(argv: Sequence[str]) -> Exception | None:
    """Loads the config file that a command line names, and looks up the keys that it changes.

    Args:
      argv: the whole command line.

    Returns:
      What the file raised, an error that names the nearest keys for the first that is not there, or None.
    """
    words = [word.lstrip("-") for word in joined(argv)]
    path, _, variant = next(word for word in words if word.startswith("config="))[len("config=") :].partition(":")
    try:
        config = runpy.run_path(path)["get_config"](*[variant][: bool(variant)])
    except Exception as error:  # whatever the user's file does
        return error
    keys = [word.partition("=")[0][len("config.") :] for word in words if word.startswith("config.")]
    return next(unknown_keys(config, keys), None)
