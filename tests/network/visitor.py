"""A program that plays with an endpoint: `visitor.py URL KEY EPISODES FILE`.

Writes its requests and their answers to FILE. With EPISODES=0 it sends those of FILE once more, with
another KEY or without one if KEY is "", and prints the statuses.
"""

import http.client
import json
import sys
from typing import Any

LIMIT_S = 120.0
CHAT = {"model": "policy", "messages": [{"role": "user", "content": "go to drawer 1"}]}


class Visitor:
    """Sends requests with a key, and keeps them with their answers."""

    def __init__(self, address: str, key: str) -> None:
        self._address = address
        self._key = key
        self.requests: list[dict[str, Any]] = []

    def post(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        """Sends one request; returns its answer."""
        if self._key:
            headers = headers | {"Authorization": f"Bearer {self._key}"}
        connection = http.client.HTTPConnection(self._address, timeout=LIMIT_S)
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        sent = {"path": path, "body": body, "headers": headers}
        self.requests.append(sent | {"status": response.status, "answer": answer})
        return answer

    def play(self) -> None:
        """Plays an episode of two calls."""
        content = {"Content-Type": "application/json"}
        opened = self.post("/v1/sessions", {"task": "a task"}, content)
        path = "/" + opened["base_url"].split("/", 3)[3]
        for call in range(2):
            names = content | {"Idempotency-Key": str(call)}
            self.post(f"{path}/chat/completions", CHAT, names)
        self.post(f"{path}/reward", {"reward": 1.0}, content)


if __name__ == "__main__":
    address, key, episodes, file = sys.argv[1:]
    visitor = Visitor(address, key)
    if episodes != "0":
        for _ in range(int(episodes)):
            visitor.play()
        with open(file, "w") as stream:
            json.dump(visitor.requests, stream)
    else:
        with open(file) as stream:
            for sent in json.load(stream):
                del sent["headers"]["Authorization"]
                visitor.post(sent["path"], sent["body"], sent["headers"])
        print(json.dumps([sent["status"] for sent in visitor.requests]))
