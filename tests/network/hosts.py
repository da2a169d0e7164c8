"""Hosts on a network of their own: a network namespace each, joined by a switch.

A host has one address, 10.77.0.N, a host name and an own /etc/hosts. The switch is a bridge in
another namespace, so no packet leaves the test, and none comes in.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[2]
PREFIX = "gigpo"  # of all namespaces; then the process that made them
SWITCH = "switch"
# Commands of a host see its name, and the names of all hosts.
ENTER = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


class Network:
    """The hosts, their processes and the faults of their cables.

    Attributes:
      addresses: Address by name of a host.
    """

    def __init__(self, folder: pathlib.Path, names: Sequence[str]) -> None:
        """Makes nothing yet; `folder` takes the file of names and the logs of processes."""
        self.addresses = {name: f"10.77.0.{number + 1}" for number, name in enumerate(names)}
        self._folder = folder
        self._hosts_file = folder / "hosts"
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Network":
        remove_leftovers()
        lines = [f"{address} {name}" for name, address in self.addresses.items()]
        self._hosts_file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        try:
            self._add_namespace(SWITCH)
            self._set(SWITCH, "link", "add", "bridge", "type", "bridge")
            self._set(SWITCH, "link", "set", "bridge", "up")
            for name in self.addresses:
                self._add_host(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for name in (*self.addresses, SWITCH):
            # Children of those processes.
            listed = subprocess.run(
                ["ip", "netns", "pids", self._namespace(name)],
                capture_output=True,
                text=True,
                check=False,
            )
            for pid in map(int, listed.stdout.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # Not there if the set-up failed before it.
            subprocess.run(
                ["ip", "netns", "delete", self._namespace(name)], capture_output=True, check=False
            )

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a process on a host, which ends with the network; its pipes are text."""
        enter = ["ip", "netns", "exec", self._namespace(name), "unshare", "--mount", "--uts"]
        enter += ["sh", "-c", ENTER, "sh", str(self._hosts_file), name]
        # Each of these programs becomes the next, so the process is that of the command.
        process = subprocess.Popen(
            [*enter, *command],
            env=os.environ | (env or {}),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )
        self._processes.append(process)
        return process

    def cut(self, name: str) -> None:
        """Lets all packets from and to a host disappear, without a sign at the host."""
        self._set(SWITCH, "link", "set", f"to-{name}", "nomaster")

    def join(self, name: str) -> None:
        """Ends `cut`."""
        self._set(SWITCH, "link", "set", f"to-{name}", "master", "bridge")

    def limit_rate(self, name: str, rate: str) -> None:
        """Limits what a host sends, such as to "100mbit"."""
        words = ["root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
        tc = ["tc", "-netns", self._namespace(name), "qdisc", "add", "dev", "eth0", *words]
        subprocess.run(tc, check=True)

    def worsen(self, name: str, *, delay_ms: float, loss: float) -> None:
        """Replaces the cable of a host by one that delays and loses packets, each way."""
        ends = (f"to-{name}", f"at-{name}")
        self._set(SWITCH, "link", "delete", ends[0])
        relay = [sys.executable, str(ROOT / "tests/network/relay.py"), ",".join(ends)]
        process = self.start(SWITCH, [*relay, str(delay_ms), str(loss), "0"])
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self._connect(name, *ends)

    def _add_host(self, name: str) -> None:
        self._add_namespace(name)
        ends = (f"to-{name}", f"at-{name}")
        self._set(SWITCH, "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        self._connect(name, *ends)

    def _connect(self, name: str, switch_end: str, host_end: str) -> None:
        """Joins a host by a cable whose two ends are devices of the switch's namespace."""
        self._set(SWITCH, "link", "set", host_end, "netns", self._namespace(name))
        # The same for every cable: the others remember it.
        hardware_address = f"02:00:00:00:00:{self.addresses[name].rpartition('.')[2]:0>2}"
        self._set(name, "link", "set", host_end, "name", "eth0", "address", hardware_address)
        self._set(name, "address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        self._set(name, "link", "set", "eth0", "up")
        self._set(SWITCH, "link", "set", switch_end, "master", "bridge", "up")

    def _add_namespace(self, name: str) -> None:
        subprocess.run(["ip", "netns", "add", self._namespace(name)], check=True)
        self._set(name, "link", "set", "lo", "up")

    def _namespace(self, name: str) -> str:
        return f"{PREFIX}-{os.getpid()}-{name}"

    def _set(self, name: str, *words: str) -> None:
        subprocess.run(["ip", "-netns", self._namespace(name), *words], check=True)


def remove_leftovers() -> None:
    """Deletes the namespaces of tests that were killed; their processes ended or keep them alive."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        namespace = line.split()[0]
        prefix, _, rest = namespace.partition("-")
        pid = rest.partition("-")[0]
        if prefix == PREFIX and pid.isdigit() and not pathlib.Path(f"/proc/{pid}").exists():
            subprocess.run(["ip", "netns", "delete", namespace], check=True)
