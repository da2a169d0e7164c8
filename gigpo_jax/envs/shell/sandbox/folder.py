"""A folder as plain data, and what is sent between a worker and its sandbox.

The folder lives in the worker between commands. Each command gets a copy in a fresh sandbox, and a
copy of the result comes back.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

ROOT = "/task"  # path of the folder in the sandbox


class FolderEntry(NamedTuple):
    """A file, a folder or a symbolic link.

    Attributes:
      kind: "file", "folder" or "link".
      mode: Permission bits, without set-user-id and set-group-id.
      data: Content of a file, target of a link; bytes as Latin-1 text.
    """

    kind: str
    mode: int = 0o644
    data: str = ""


# Path below the folder -> entry, in the order of paths, so that parents precede their entries.
Folder = Mapping[str, FolderEntry]


@dataclass(frozen=True)
class CommandLimits:
    """The limits of one command.

    Attributes:
      seconds: Wall time, s.
      cpu_seconds: CPU time of all processes, s; a whole number.
      memory: Memory of all processes together, and address space of each, bytes.
      processes: Number of processes at a time.
      folder: Size of the folder, bytes.
      entries: Number of files, folders and links in it.
      output: Output that is read, bytes; a command that writes more is stopped.
    """

    seconds: float = 5.0
    cpu_seconds: int = 2
    memory: int = 256 << 20
    processes: int = 32
    folder: int = 4 << 20
    entries: int = 1000
    output: int = 1 << 20


@dataclass(frozen=True)
class CommandRequest:
    """A command with its folder and limits."""

    command: str
    folder: Folder
    cwd: str = ROOT
    limits: CommandLimits = field(default_factory=CommandLimits)


@dataclass(frozen=True)
class CommandOutcome:
    """The result of a command.

    Attributes:
      status: Exit status; 128 + N after signal N.
      output: Standard output and error in the order of writing; bytes as Latin-1 text.
      folder: Folder after the command.
      cwd: Working directory after the command.
      stop: Limit that stopped it: "" none, "time", "memory", "output", "folder" or "sandbox". A
        stopped command has no output, and folder and cwd are those before it.
    """

    status: int
    output: str
    folder: Folder
    cwd: str
    stop: str = ""


def make_stopped_outcome(request: CommandRequest, stop: str) -> CommandOutcome:
    """Makes the outcome of a stopped command."""
    return CommandOutcome(-1, "", request.folder, request.cwd, stop)


def pack_command(request: CommandRequest) -> bytes:
    """Writes a request as bytes."""
    return _pack({**vars(request), "limits": asdict(request.limits)})


def unpack_command(data: bytes) -> CommandRequest:
    """Reads what `pack_command` wrote."""
    fields = json.loads(data)
    limits = CommandLimits(**fields.pop("limits"))
    return CommandRequest(**{**fields, "folder": _unpack_folder(fields["folder"])}, limits=limits)


def pack_outcome(outcome: CommandOutcome) -> bytes:
    """Writes an outcome as bytes."""
    return _pack(vars(outcome))


def unpack_outcome(data: bytes) -> CommandOutcome:
    """Reads what `pack_outcome` wrote."""
    outcome = CommandOutcome(**json.loads(data))
    return replace(outcome, folder=_unpack_folder(outcome.folder))


def _pack(fields: Mapping[str, object]) -> bytes:
    # ASCII: names of files may be no valid UTF-8 and then have lone surrogates.
    return json.dumps(fields).encode()


def _unpack_folder(fields: Mapping[str, object]) -> dict[str, FolderEntry]:
    return {path: FolderEntry(*entry) for path, entry in fields.items()}  # type: ignore[misc]


def write_folder(root: str, folder: Folder) -> None:
    """Writes a folder's entries; all times are the epoch."""
    for path, entry in folder.items():
        target = os.path.join(root, path)
        data = entry.data.encode("latin-1")
        if entry.kind == "folder":
            os.mkdir(target)
        elif entry.kind == "link":
            os.symlink(data, os.fsencode(target))
        else:
            with open(target, "xb") as file:
                file.write(data)
    # Deepest first: a new entry changes the time of its folder.
    for path, entry in reversed(folder.items()):  # type: ignore[call-overload]
        target = os.path.join(root, path)
        if entry.kind != "link":
            os.chmod(target, entry.mode)
        # Listings show no clock.
        os.utime(target, (0, 0), follow_symlinks=False)
    os.utime(root, (0, 0))


def read_folder(root: str, limits: CommandLimits) -> dict[str, FolderEntry] | None:
    """Reads a folder; None if it is too large.

    Pipes, sockets and devices are left out. A file with several names becomes several files.
    """
    # Sizes as the sandbox will need them: whole pages, without holes.
    page = os.sysconf("SC_PAGESIZE")
    pages = limits.folder // page
    folder: dict[str, FolderEntry] = {}
    for path, status in _walk(root):
        kind = _find_kind(status.st_mode)
        if not kind:
            continue
        if kind != "folder":
            pages -= -(-status.st_size // page)
        if pages < 0 or len(folder) >= limits.entries:
            return None
        target = os.path.join(root, path)
        data = b""
        if kind == "link":
            data = os.readlink(os.fsencode(target))
        elif kind == "file":
            with open(target, "rb") as file:
                data = file.read()
        folder[path] = FolderEntry(
            kind, stat.S_IMODE(status.st_mode) & 0o777, data.decode("latin-1")
        )
    return folder


def _walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yields paths below a folder in order, with their status; links are not followed."""
    paths = [""]
    while paths:
        path = paths.pop()
        status = os.lstat(os.path.join(root, path))
        if path:
            yield path, status
        if stat.S_ISDIR(status.st_mode):
            names = sorted(os.listdir(os.path.join(root, path)), reverse=True)
            paths += [os.path.join(path, name) for name in names]


def _find_kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else ""
