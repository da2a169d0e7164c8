"""A host that nobody trusts: `stranger.py engine|endpoint PORTS [OTHER_PORTS]`.

Ports are "HOST:PORT,HOST:PORT". Holds silent connections to all of them, and sends requests without
the key, and nonsense, in rounds. Prints a line a round: the statuses of the answers of PORTS.
"""

import http.client
import json
import socket
import sys
import time
from collections.abc import Sequence

CONNECTIONS = 300  # to each port
PAUSE_S = 1.0
LIMIT_S = 5.0
PATHS = {
    "engine": (
        ("GET", "/version"),
        ("GET", "/describe"),
        ("GET", "/weight_info"),
        ("PUT", "/weights/x.safetensors?offset=0&crc32=0"),
        ("POST", "/load"),
        ("POST", "/inference/v1/generate"),
    ),
    "endpoint": (
        ("GET", "/v1/models"),
        ("POST", "/v1/sessions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/reward"),
    ),
}
KEYS = ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}, {"Authorization": "Bearer "})
NONSENSE = (
    b"\x00" * 4096,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 512,
    b"GET / HTTP/1.1\r\n\r\n",
)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT_S)


def ask(kind: str, address: str) -> list[int]:
    """Requests every path with every wrong key; returns the statuses."""
    statuses = []
    for method, path in PATHS[kind]:
        for headers in KEYS:
            client = http.client.HTTPConnection(address, timeout=LIMIT_S)
            client.request(method, path, body=b"{}", headers=headers)
            statuses.append(client.getresponse().status)
            client.close()
    return statuses


def disturb(kind: str, servers: list[str], others: Sequence[str] = ()) -> None:
    """Holds connections and sends requests until the process is ended."""
    held: list[socket.socket] = []
    limit = 2 * CONNECTIONS * len((*servers, *others))  # of two rounds
    while True:
        statuses: dict[str, list[int]] = {}
        for address in (*servers, *others):
            try:
                # A port that closed them gets new ones.
                held += [connect(address) for _ in range(CONNECTIONS)]
                for data in NONSENSE:
                    with connect(address) as connection:
                        connection.sendall(data)
                if address in servers:
                    statuses[address] = ask(kind, address)
            except OSError as err:
                statuses[f"{address} {type(err).__name__}"] = []
        print(json.dumps(statuses), flush=True)
        time.sleep(PAUSE_S)
        for connection in held[:-limit]:
            connection.close()
        del held[:-limit]


if __name__ == "__main__":
    disturb(sys.argv[1], *(argument.split(",") for argument in sys.argv[2:]))
