"""Calls of Linux that Python lacks: namespaces, mounts, a filter of system calls."""

import ctypes
import os
import platform
import struct
from collections.abc import Mapping

# linux/sched.h
NEW_MOUNTS = 0x00020000
NEW_GROUPS = 0x02000000
NEW_HOST = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PIDS = 0x20000000
NEW_NET = 0x40000000
# linux/mount.h
READ_ONLY = 1
NO_SUID = 2
NO_DEV = 4
NO_EXEC = 8
REMOUNT = 32
BIND = 0x1000
RECURSIVE = 0x4000
PRIVATE = 0x40000
DETACH = 2
# linux/prctl.h
_SET_PARENT_SIGNAL = 1
_SET_DUMPABLE = 4
_SET_SECCOMP = 22
_NO_NEW_PRIVILEGES = 38
_MOUNT_SETATTR = 442  # the same number on all machines
_FROM_CWD = -100
_RECURSIVE_PATH = 0x8000

# Refused system calls by their number on x86_64 and aarch64, with the reason of each group.
_REFUSED = {
    # Sockets: the network, and buffers that no limit counts.
    "socket": (41, 198),
    "socketpair": (53, 199),
    # Memory that belongs to no process.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "io_uring_setup": (425, 425),
    # Other processes: the test script must not be changed by a script that it runs.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    # Keys, which outlive a process.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Parts of the kernel that a shell does not need.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}
_PRLIMIT = (302, 261)  # refused for other processes
# Shared mappings are refused: their pages stay while one of them is mapped, and are then memory of
# no process. Also of /dev/zero, which a filter cannot tell from a file.
_MMAP = (9, 222)
_SHARED = 1  # bit of the flags, of MAP_SHARED and MAP_SHARED_VALIDATE
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
# linux/bpf_common.h and linux/seccomp.h
_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER_EQUAL = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_REFUSE = 0x00050001  # EPERM
# offsets in seccomp_data
_NUMBER = 0
_ARCHITECTURE = 4
_FIRST_ARGUMENT = 16
_FOURTH_ARGUMENT = 40
_X32 = 0x40000000  # first number of the second table of x86_64

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, label: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{label}: {os.strerror(code)}")


def unshare(flags: int, label: str) -> None:
    """Leaves namespaces; `label` names them in an error."""
    _check(_libc.unshare(flags), label)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mounts a file system."""
    texts = [text.encode() or None for text in (source, target, kind)]
    result = _libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None)
    _check(result, f"mount {target}")


def unmount(target: str) -> None:
    """Detaches a mount."""
    _check(_libc.umount2(target.encode(), DETACH), f"umount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Shows a file or folder at a second place, read-only, with the mounts below it.

    Set-user-id bits and devices have no effect there.
    """
    mount(source, target, "", BIND | RECURSIVE)
    # MOUNT_ATTR_RDONLY, _NOSUID and _NODEV have the values of the flags of mount.
    attributes = struct.pack("QQQQ", READ_ONLY | NO_SUID | NO_DEV, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_FROM_CWD),
        target.encode(),
        ctypes.c_uint(_RECURSIVE_PATH),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(result, f"mount_setattr {target}")


def change_root(folder: str) -> None:
    """Makes a mounted folder the root, without the old one."""
    os.chdir(folder)
    # The old root is put over the new one, and then taken off.
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def end_with_parent() -> None:
    """Kills this process when its parent ends."""
    _check(_libc.prctl(_SET_PARENT_SIGNAL, 9, 0, 0, 0), "prctl")


def set_dumpable(flag: bool) -> None:
    """Sets whether processes of this user may inspect it."""
    _check(_libc.prctl(_SET_DUMPABLE, int(flag), 0, 0, 0), "prctl")


def refuse_system_calls() -> None:
    """Filters the system calls of this process, for ever."""
    _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    code = b"".join(struct.pack("HBBI", *line) for line in _write_filter(_MACHINES))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(_SET_SECCOMP, 2, program, 0, 0), "seccomp")


def _write_filter(machines: Mapping[str, tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """Writes the filter in the kernel's language.

    A line has an operation, the lines to skip if a comparison holds and if not, and a number.
    """
    machine = platform.machine()
    if machine not in machines:
        raise OSError(f"the sandbox knows {' and '.join(machines)}, not {machine}")
    column, architecture = machines[machine]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # System calls of another architecture have other numbers.
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for numbers in _REFUSED.values():
        lines += [(_JUMP_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _REFUSE)]
    lines += [
        (_JUMP_EQUAL, 0, 4, _MMAP[column]),
        (_LOAD, 0, 0, _FOURTH_ARGUMENT),
        (_JUMP_ANY_BIT, 0, 1, _SHARED),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 0, 3, _PRLIMIT[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return lines
