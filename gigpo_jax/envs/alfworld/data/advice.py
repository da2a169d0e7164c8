"""Advice in errors about folders of games."""

from pathlib import Path

from gigpo_jax.envs.alfworld.tasks import MANIFEST, SPLITS

_MAX_LISTED_FOLDERS = 8
_ADVICE = (
    "generate games with: gigpo envs alfworld generate --out {data} --split {split}"
    " --games 1000; or get the genuine ones with alfworld-download and use"
    " data=$ALFWORLD_DATA/json_2.1.1"
)


def advise_on_games(data: Path, split: str) -> str:
    """How to get games of a split."""
    if data.name in SPLITS and (data / MANIFEST).is_file():
        return f"this is the folder of one split: use data={data.parent}"
    return _ADVICE.format(data=data, split=split if split in SPLITS else "train")


def advise_on_damage(path: Path) -> str:
    """What to do with a damaged game file."""
    split = path.parents[2]
    if (split / MANIFEST).is_file():
        return f"delete {split} and generate it again"
    return "delete its folder, or get it again with alfworld-download"


def list_folders(data: Path) -> str:
    """The names of a folder's folders, for a message."""
    names = []
    for entry in data.iterdir():
        if entry.is_dir() and not entry.name.startswith("."):
            names.append(entry.name)
    if not names:
        return "none"
    names.sort()
    text = ", ".join(names[:_MAX_LISTED_FOLDERS])
    if len(names) > _MAX_LISTED_FOLDERS:
        text += f" and {len(names) - _MAX_LISTED_FOLDERS} more"
    return text
