"""Chat templates (jinja2), which come with a model and are not trusted.

One process renders the templates of all tokenizers, within limits of time, memory and text
(`renderer`). It starts with the first rendering and ends with this process; after a breach it is
replaced. A prompt takes 0.5 ms more than with transformers, which renders in this process
(benchmarks/tokenizer.py).
"""

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

CPU_S = 2.0  # of one rendering
MEMORY = 100 << 20  # bytes
MAX_CHARACTERS = 10_000_000  # of one text
_WAIT_S = 60.0  # for the renderer, which may share the machine with a compiler
_MAX_REPLY = 6 * MAX_CHARACTERS + 1000  # bytes; JSON writes a character in up to six
_FILE = pathlib.Path(__file__).with_name("renderer.py")


class TemplateError(Exception):
    """A template that cannot be rendered, or breaks a limit."""


class ChatTemplate:
    """A template with the values it reads beside a chat."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        """Keeps a template's text, and its variables beside the arguments of `render`."""
        self._source = source
        self._values = dict(values)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] = (),
        *,
        generation_prompt: bool = True,
    ) -> str:
        """Renders a chat, messages with "role" and "content", by default with a response's begin.

        Raises:
          TemplateError: the template fails, or breaks a limit.
          InputError: jinja2 is not installed.
        """
        values = self._values | {
            "messages": list(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": generation_prompt,
        }
        reply = _RENDERER.request({"template": self._source, "values": values})
        if "error" in reply:
            raise TemplateError(reply["error"])
        return reply["text"]


class _Renderer:
    """The process of renderer.py, for one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: Any = None

    def request(self, content: Mapping[str, Any]) -> dict[str, str]:
        """Sends a request and returns the reply; a renderer that died before is replaced once."""
        text = json.dumps(content, ensure_ascii=False)
        # JSON from a client may have half of a surrogate pair, which plain UTF-8 refuses. A newline
        # inside a text is escaped by JSON, so that a request is one line.
        line = text.encode("utf-8", "surrogatepass") + b"\n"
        # Tokenizers of several threads share the process: a reply belongs to the last request.
        with self._lock:
            for _ in range(2):
                if self._process is None:
                    try:
                        self._start()
                    except OSError as err:
                        return {"error": f"the renderer cannot start: {err}"}
                reply = self._exchange(line)
                # A whole line is a whole reply. Anything else comes from a renderer that died, that
                # did not answer in time, or whose reply is too long.
                if reply.endswith(b"\n"):
                    return json.loads(reply.decode("utf-8", "surrogatepass"))
                status = self._end()
                if status == -signal.SIGPROF:
                    return {"error": f"more than {CPU_S:g} s of CPU time"}
        from gigpo_jax.core.optional import optional_imports

        with optional_imports("", key="chat template"):
            import jinja2  # noqa: F401 (without it no renderer starts)
        return {"error": f"the renderer ended with status {status}"}

    def _exchange(self, line: bytes) -> bytes:
        """Sends a line and returns the reply, which is incomplete if the process ends."""
        try:
            self._stream.write(line)
            self._stream.flush()
            return self._stream.readline(_MAX_REPLY)
        except OSError:
            return b""
        except BaseException:
            # After a signal in between, the next request would read this reply.
            self._end()
            raise

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # An interpreter of its own: a fork of this process could deadlock in threads of jax. The
        # socket closes when this process dies, and the renderer ends.
        command = [sys.executable, "-P", str(_FILE), str(CPU_S), str(MEMORY), str(MAX_CHARACTERS)]
        # Both names are closed here: the child has its own end, and the stream keeps ours open.
        with ours, theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # a terminal's Ctrl-C does not reach it
            )
            # A timeout is an OSError; `_exchange` returns, and the renderer is replaced.
            ours.settimeout(_WAIT_S)
            self._stream = ours.makefile("rwb")

    def _end(self) -> int:
        """Ends the process; returns its status, negative after a signal."""
        process = self._process
        assert process is not None
        self._process = None
        with contextlib.suppress(OSError):  # bytes that were not sent
            self._stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # It ends by itself after its socket closed, unless it is still rendering.
            return process.wait(1.0)
        process.kill()
        return process.wait()


_RENDERER = _Renderer()
