"""The process that renders chat templates; `chat_template` starts this file and talks to it.

Requests come through the socket on file descriptor 0, one JSON object a line: {"template": source,
"values": variables}. A reply is {"text": ...} or {"error": ...}. The process ends with its socket.

jinja2's sandbox keeps a template away from Python's objects, but one expression can fill the
memory: '%1500000000d' % 1, a string doubled with ~, |center. So the kernel bounds the memory and
the CPU time of this process.

transformers' apply_chat_template is not used: it reads the clock, so that prompts of Llama 3 change
every day and a run cannot be repeated. Here `strftime_now` is undefined, and such templates take
their fixed date. Importing it takes 0.7 CPU seconds and 42 MB more; texts are equal (tests).
"""

import functools
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


class _Generation(jinja2.ext.Extension):
    """The tag {% generation %}, which marks responses for other trainers; its body is unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def serve(cpu_s: float, memory: int, max_characters: int) -> None:
    """Renders until the socket is closed.

    Args:
      cpu_s: CPU seconds of one rendering; the process is killed by SIGPROF after that.
      memory: Bytes that all renderings together may hold at one time.
      max_characters: Characters of one text.
    """
    stream = socket.socket(fileno=0).makefile("rwb")
    _limit_memory(memory)
    while True:
        try:
            line = stream.readline()
            if not line:
                return
            # CPU time, because on a busy machine a harmless template may take long by the clock.
            # The signal ends the process: no exception could interrupt C code.
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            request = json.loads(line)
            text = _render(request["template"], request["values"], max_characters)
            reply = json.dumps({"text": text}, ensure_ascii=False).encode("utf-8", "surrogatepass")
        except MemoryError:
            # The process ends: what the template has left in memory goes with it.
            message = f"more than {memory >> 20} MB of memory"
            stream.write(json.dumps({"error": message}).encode() + b"\n")
            stream.flush()
            return
        except Exception as err:  # a template can raise anything
            message = f"{type(err).__name__}: {err}"[:200]
            reply = json.dumps({"error": message}).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        stream.write(reply + b"\n")
        stream.flush()


def _limit_memory(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux; time and text are bounded
        return
    # Relative to the size of the interpreter and its imports, which differs between machines.
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))


def _render(source: str, values: Mapping[str, Any], max_characters: int) -> str:
    chunks = []
    size = 0
    # Counted during the rendering: an endless loop never has a whole text.
    for chunk in _compile_template(source).generate(values):
        chunks.append(chunk)
        size += len(chunk)
        if size > max_characters:
            raise jinja2.TemplateRuntimeError(f"more than {max_characters} characters")
    return "".join(chunks)


@functools.lru_cache(maxsize=8)
def _compile_template(source: str) -> jinja2.Template:
    # Block settings and extensions are those of transformers, for which templates are written.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    # jinja2's own filter escapes characters for HTML, which would stand in prompts.
    environment.filters["tojson"] = _dump_json
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(source)


def _dump_json(value: Any, ensure_ascii: bool = False, **settings: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **settings)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
