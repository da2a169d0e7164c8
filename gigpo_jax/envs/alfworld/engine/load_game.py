"""Loads a game from its folder."""

import os
from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.alfworld.engine.game_file import GameFile, hash_files, parse_tables

TABLES_FILE = "tables.json"  # beside a generated game: what its PDDL says
MAX_BYTES = 64 << 20  # genuine games have under 1 MB


def load_game(path: str | os.PathLike[str]) -> GameFile:
    """Reads one game: from its tables file, or checked from its PDDL.

    Args:
      path: A `game.tw-pddl`, or the folder that holds it.

    Raises:
      InputError: the file is broken, has another domain, grammar or kind of goal, or a goal that
        cannot be reached.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        name = os.path.join(name, "game.tw-pddl")
    try:
        with open(name, "rb") as file:
            # One byte more than allowed: a size from `stat` could change until the file is read.
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"cannot read the game ({error.strerror})",
            key=name,
            fix="give the path of a game.tw-pddl",
        ) from None
    if len(content) > MAX_BYTES:
        raise InputError(f"no ALFWorld game is larger than {MAX_BYTES >> 20} MB", key=name)
    try:
        digest, _, tables = Path(name).with_name(TABLES_FILE).read_bytes().partition(b"\n")
    except OSError:
        digest = tables = b""
    # The digest is of both files: tables of an edited game, and edited tables, are not used.
    if digest == hash_files(content, tables):
        return parse_tables(tables)
    # Genuine games have no tables.
    from gigpo_jax.envs.alfworld.engine.pddl_game import read_game

    return read_game(content, name)
