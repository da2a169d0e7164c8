"""Raw results of campaigns: one archive each in benchmarks/results, unpacked beside it on demand.

    python -m benchmarks.results unpack NAME [NAME ...]
    python -m benchmarks.results unpack --all
    python -m benchmarks.results pack NAME [NAME ...]

New runs of a campaign are added by `unpack`, a copy into benchmarks/results/NAME, and `pack`, which
also writes the index benchmarks/results/README.md. `pack` refuses to lose or change a file of the
archive; with --replace it takes changed ones. To drop files, remove the archive first. A new
campaign is added to `CAMPAIGNS`.
"""

import argparse
import contextlib
import functools
import hashlib
import io
import lzma
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import filelock

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import replace_file

RESULTS = Path(__file__).parent / "results"
# The time of all files of an archive, 2020-01-01. In an unpacked folder it tells files that come
# from an archive, which may be replaced, from those that were copied there or changed.
ARCHIVE_TIME = 1577836800


class Campaign(NamedTuple):
    """What the index says of a campaign.

    Attributes:
      title: What was run.
      page: Page, seen from the index: its protocol, or where its results are.
    """

    title: str
    page: str


CAMPAIGNS = {
    "alfworld_long": Campaign(
        "ALFWorld, 20 iterations: eleven arms", "../protocols/repeat_discount.md"
    ),
    "alfworld_pooled": Campaign(
        "ALFWorld, 100 iterations: four arms, and the choice of rates",
        "../protocols/alfworld_pooled.md",
    ),
    "babyai_rates": Campaign(
        "BabyAI at equal rates, 6 iterations: eight arms, and their panels",
        "../protocols/babyai_rates.md",
    ),
    "babyai_tiny": Campaign("BabyAI, 6 iterations: four arms", "../protocols/babyai.md"),
    "corridor_plans": Campaign("Corridor: subgoals and strategies", "../protocols/plans.md"),
    "corridor_tiny": Campaign("Corridor: summaries of the history", "../protocols/summaries.md"),
    "credit": Campaign("Grades of estimators by executed continuations", "../../docs/credit.md"),
    "equal_tokens": Campaign("Methods again, at equal tokens", "../protocols/equal_tokens.md"),
    "frozenlake_pooled": Campaign(
        "FrozenLake with and without slips: three arms, and the choice of rates",
        "../protocols/frozenlake_pooled.md",
    ),
    "lake_forks": Campaign("FrozenLake with forks", "../protocols/lake_forks.md"),
    "learned_rewards": Campaign(
        "FrozenLake: learned step rewards, starts of an expert", "../protocols/learned_rewards.md"
    ),
    "mcp_tiny": Campaign("Tools of an MCP server", "../protocols/mcp_tiny.md"),
    "methods": Campaign("Ten methods of others, once each", "../protocols/methods.md"),
    "muon": Campaign("Muon and AdamW on FrozenLake and BabyAI", "../protocols/muon.md"),
    "pooled_combined": Campaign(
        "The combination on WebShop and Sokoban", "../protocols/pooled_combined.md"
    ),
    "shell_tiny": Campaign("Commands of a shell", "../protocols/shell_tiny.md"),
    "smollm_drawers": Campaign(
        "SmolLM2-135M-Instruct and a row of drawers", "../protocols/smollm_drawers.md"
    ),
    "smollm_alfworld": Campaign(
        "SmolLM2-135M-Instruct on ALFWorld: nine minutes of an H200, two iterations of a CPU",
        "../protocols/smollm_alfworld_gpu.md",
    ),
    "sokoban_pooled": Campaign(
        "Sokoban, 60 iterations: three arms", "../protocols/sokoban_pooled.md"
    ),
    "sokoban_text_tiny": Campaign(
        "Sokoban, 30 iterations: five arms", "../../docs/evidence/sokoban.md"
    ),
    "tabular": Campaign("Grid worlds: tables of logits that learn", "../protocols/tabular.md"),
    "webshop_100": Campaign("WebShop, 100 iterations: three arms", "../protocols/webshop_100.md"),
    "webshop_decomposed": Campaign(
        "WebShop, 100 iterations: anchor, discount and estimator apart, and the panel",
        "../protocols/webshop_decomposed.md",
    ),
    "webshop_long": Campaign("WebShop, 16 iterations: five arms", "../../docs/evidence/webshop.md"),
    "webshop_pooled": Campaign(
        "WebShop, 60 iterations: three arms, and the choice of rates",
        "../protocols/webshop_pooled.md",
    ),
}


@functools.cache
def find_campaign(name: str) -> Path:
    """Finds the folder of a campaign, which is unpacked where it lacks what its archive has.

    Raises:
      InputError: There is no such campaign; or files of the folder were changed.
    """
    return unpack_campaign(name)


def unpack_campaign(name: str) -> Path:
    """Writes the files of an archive that its folder lacks or has from an older archive.

    Files from an older archive that this one does not have are removed; other files stay.

    Raises:
      InputError: There is no such campaign; or files of the folder were changed, which stay.
    """
    folder = RESULTS / name
    with filelock.FileLock(RESULTS / ".lock"):
        archived = read_archive(name)
        if archived is None:
            if not folder.is_dir():
                raise InputError(
                    "no such campaign", key=name, fix=f"there are {', '.join(list_archives())}"
                )
            return folder
        missing, outdated, changed = _compare(folder, archived)
        for path in outdated - archived.keys():
            (folder / path).unlink()
            # A run without files would be read as a broken one.
            with contextlib.suppress(OSError):
                os.removedirs((folder / path).parent)
        for path in archived.keys() & (missing | outdated):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with replace_file(folder / path) as temporary:
                temporary.write_bytes(archived[path])
                os.utime(temporary, (ARCHIVE_TIME, ARCHIVE_TIME))
        if changed:
            fix = "delete these files, or pack them with --replace"
            raise _describe_conflict(folder, changed, fix)
    return folder


def pack_campaign(name: str, *, replace: bool = False) -> int:
    """Writes the archive of a folder and returns how many files it has more than before.

    Equal files give equal bytes.

    Args:
      name: Campaign.
      replace: Permission to change files that the archive has.

    Raises:
      InputError: The archive has files that the folder lacks or has otherwise; or the campaign is
        unknown.
    """
    folder = RESULTS / name
    if name not in CAMPAIGNS or not folder.is_dir():
        raise InputError(
            "no campaign with a folder", key=name, fix=f"add it to CAMPAIGNS, and runs to {folder}"
        )
    with filelock.FileLock(RESULTS / ".lock"):
        archived = read_archive(name)
        if archived is not None:
            missing, outdated, changed = _compare(folder, archived)
            if missing or outdated:
                fix = f"first: python -m benchmarks.results unpack {name}"
                raise _describe_conflict(folder, missing | outdated, fix)
            if changed and not replace:
                fix = "delete these files and unpack, or pack with --replace"
                raise _describe_conflict(folder, changed, fix)
        contents = {path: file.read_bytes() for path, file in list_results(folder).items()}
        with replace_file(_archive_path(name)) as temporary:
            temporary.write_bytes(_make_archive(name, contents))
    return len(contents) - len(archived or {})


class _Differences(NamedTuple):
    """Files of an archive and of its folder that are not equal, by their path.

    Attributes:
      missing: Files of the archive that the folder lacks.
      outdated: Files of the folder that come from another archive.
      changed: Files of both that were copied to the folder or changed there.
    """

    missing: set[str]
    outdated: set[str]
    changed: set[str]


def _compare(folder: Path, archived: Mapping[str, bytes]) -> _Differences:
    files = list_results(folder)
    unequal = {path for path, file in files.items() if file.read_bytes() != archived.get(path)}
    outdated = {path for path in unequal if int(files[path].stat().st_mtime) == ARCHIVE_TIME}
    return _Differences(
        missing=archived.keys() - files.keys(),
        outdated=outdated,
        changed=(unequal - outdated) & archived.keys(),
    )


def _describe_conflict(folder: Path, paths: set[str], fix: str) -> InputError:
    first = ", ".join(sorted(paths)[:3])
    reason = f"{len(paths)} files are not as in the archive ({first}{', ...' * (len(paths) > 3)})"
    return InputError(reason, key=folder, fix=fix)


def read_archive(name: str) -> dict[str, bytes] | None:
    """Reads the files of an archive by their path below the folder; None without an archive."""
    try:
        data = lzma.decompress(_archive_path(name).read_bytes())
    except FileNotFoundError:
        return None
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
        return {
            path.removeprefix(f"{name}/"): file.read() for path, file in members.items() if file
        }


def list_results(folder: Path) -> dict[str, Path]:
    """Lists the files of a folder by their path below it."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def list_archives() -> list[str]:
    """Lists the names of all archived campaigns."""
    return sorted(path.name.removesuffix(".tar.xz") for path in RESULTS.glob("*.tar.xz"))


def make_index() -> str:
    """Makes the page benchmarks/results/README.md."""
    lines = [
        "# Raw results",
        "",
        "One archive a campaign, and single files of benchmarks. The tools of the project unpack what they read; a",
        "command on a folder needs, once after a change of the archive:",
        "",
        "    python -m benchmarks.results unpack NAME     # or --all",
        "",
        "New runs are added by `unpack`, a copy into the folder, and `pack NAME`, which also writes this page.",
        "",
        "| campaign | what was run | page | runs | files | bytes | SHA-256 of the archive |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in list_archives():
        title, page = CAMPAIGNS[name]
        data = _archive_path(name).read_bytes()
        paths = list(read_archive(name) or ())
        runs = sum(path.endswith("metrics.jsonl") for path in paths)
        cells = [
            f"`{name}`",
            title,
            f"[{Path(page).name}]({page})",
            f"{runs}",
            f"{len(paths)}",
            f"{len(data):,}",
            f"`{hashlib.sha256(data).hexdigest()}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _make_archive(name: str, contents: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(contents):
            # A new header: no owner, one mode, one time.
            header = tarfile.TarInfo(f"{name}/{path}")
            header.size = len(contents[path])
            header.mtime = ARCHIVE_TIME
            archive.addfile(header, io.BytesIO(contents[path]))
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def _archive_path(name: str) -> Path:
    return RESULTS / f"{name}.tar.xz"


def main(words: Sequence[str]) -> int:
    """Packs or unpacks campaigns; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    unpack = commands.add_parser("unpack", help="write the folders of archives")
    unpack.add_argument("names", nargs="*", metavar="NAME")
    unpack.add_argument("--all", action="store_true", help="all archives")
    pack = commands.add_parser("pack", help="write the archives of folders, and the index")
    pack.add_argument("names", nargs="+", metavar="NAME")
    pack.add_argument("--replace", action="store_true", help="take changed files too")
    arguments = parser.parse_args(words)
    if arguments.command == "unpack" and bool(arguments.names) == arguments.all:
        unpack.error("give names of campaigns, or --all")
    try:
        if arguments.command == "unpack":
            for name in list_archives() if arguments.all else arguments.names:
                print(unpack_campaign(name))
            return 0
        for name in arguments.names:
            added = pack_campaign(name, replace=arguments.replace)
            print(f"{_archive_path(name)}: {added:+d} files")
        with replace_file(RESULTS / "README.md") as temporary:
            temporary.write_text(make_index(), encoding="utf-8")
    except InputError as error:
        print(error, file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
