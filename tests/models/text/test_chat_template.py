"""Templates within limits; their texts equal the texts of transformers."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command
from gigpo_jax.models.text import chat_template
from gigpo_jax.models.text.chat_messages import chat_text
from gigpo_jax.models.text.chat_template import ChatTemplate, TemplateError
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from tests.processes import gone

CHAT = [{"role": "user", "content": "text"}]
DOUBLING = (
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x OPERATOR ns.x %}"
    "{% endfor %}{{ ns.x|length }}"
)
MEMORY = {
    "format operator": "{% set x = '%1500000000d' % 1 %}",
    "short of a gigabyte": "{% set x = '%150000000d' % 1 %}",
    "concatenation": DOUBLING.replace("OPERATOR", "~"),
    "addition": DOUBLING.replace("OPERATOR", "+"),
    "format": "{{ '{:1500000000}'.format(1)|length }}",
    "ljust": "{{ 'a'.ljust(150000000)|length }}",
    "center": "{{ 'a'.center(150000000)|length }}",
    "center filter": "{{ 'a'|center(1500000000)|length }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list|length }}",
    "indent": "{{ ('a\n' * 100000)|indent(100000)|length }}",
    "text product": "{{ ('a' * 1000000000)|length }}",
    "list product": "{{ ([1] * 1000000000)|length }}",
    "replace": "{{ ('a' * 10000).replace('a', 'a' * 100000)|length }}",
    "join": "{{ range(99999)|join('a' * 100000)|length }}",
}
TIME = {
    "loops": "{% for a in range(90000) %}" * 3 + "{% endfor %}" * 3,
    "power": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "lorem ipsum": "{{ lipsum(n=1000000000) }}",
}
OTHER = {
    "range": ("{{ range(99999999)|list }}", "OverflowError: Range too big"),
    "text": ("{% for x in range(99999) %}" + "a" * 999 + "{% endfor %}", "10000000 characters"),
    "calls": (
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(100) }}",
        "RecursionError",
    ),
    "tree": ("{% for x in [[1, 2]] * 90 recursive %}{{ loop([x, x]) }}{% endfor %}", "Recursion"),
}
HOSTILE = {
    **{name: (source, "more than 100 MB of memory") for name, source in MEMORY.items()},
    **{name: (source, "more than 1 s of CPU time") for name, source in TIME.items()},
    **OTHER,
}


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A renderer of this test's own, with less CPU time."""
    monkeypatch.setattr(chat_template, "CPU_S", 1.0)
    monkeypatch.setattr(chat_template, "_RENDERER", chat_template._Renderer())
    yield
    if chat_template._RENDERER._process is not None:
        chat_template._RENDERER._end()


SAME_LIMIT = {"power", "lorem ipsum"}  # as loops: each takes its second


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SAME_LIMIT else name
        for name in HOSTILE
    ],
)
def test_a_hostile_template_is_refused_in_one_line(name: str, tmp_path: pathlib.Path) -> None:
    source, message = HOSTILE[name]
    folder = tmp_path / "model"
    word_tokenizer(["go"]).save(folder)
    (folder / "chat_template.jinja").write_text(source)
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer(folder)
    line = str(caught.value)
    assert line.startswith(f"{folder}: the chat template failed (")
    assert "; use a model with a correct one (chat_template.jinja or" in line
    assert "\n" not in line
    assert ChatTemplate("{{ messages[0].content }}", {}).render(CHAT) == "text"


@pytest.mark.slow
def test_no_template_takes_more_memory_than_the_limit() -> None:
    code = (
        "import json, resource, sys\n"
        "from gigpo_jax.models.text import chat_template as c\n"
        "for source in json.load(sys.stdin):\n"
        "    try: c.ChatTemplate(source, {}).render([])\n"
        "    except c.TemplateError: pass\n"
        "c._RENDERER.request({'template': '', 'values': {}})\n"
        "c._RENDERER._stream.close()\n"
        "c._RENDERER._process.wait()\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(list(MEMORY.values())),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert 15_000 < int(done.stdout) < 150_000  # KB


def test_a_conversation_that_breaks_a_limit_does_not_stop_the_next_one() -> None:
    source = "{% for a in messages[0].content %}" * 3 + "." + "{% endfor %}" * 3
    template = ChatTemplate(source, {})
    for _ in range(2):
        assert template.render([{"content": "a" * 9}]) == "." * 729
        with pytest.raises(TemplateError, match=r"more than 1 s of CPU time|characters"):
            template.render([{"content": "a" * 5000}])


def test_renderings_of_several_threads_are_not_mixed_up() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    wrong = []

    def render(name: str) -> None:
        for number in range(100):
            text = f"{name} {number} \ud800 é 𝄞 \x00\n"
            if template.render([{"content": text}]) != text:
                wrong.append(text)

    threads = [threading.Thread(target=render, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_a_rendering_that_a_signal_interrupts_does_not_answer_the_next_one() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ range(9999)|join|length }}", {})
    template.render(CHAT)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for delay in (0.0001, 0.0005, 0.001, 0.002):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, delay)
                for number in range(1000):
                    template.render([{"content": f"interrupted {number} "}])
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert template.render(CHAT) == "text38886"
    finally:
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_renderer_that_died_is_replaced(number: int) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    template.render(CHAT)
    process = chat_template._RENDERER._process
    assert process is not None
    os.kill(process.pid, number)
    assert template.render(CHAT) == "text"


def test_a_renderer_that_does_not_answer_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_template, "_WAIT_S", 0.5)
    monkeypatch.setattr(chat_template._Renderer, "_start", start_and_stop)
    with pytest.raises(TemplateError, match="renderer ended with status -9"):
        ChatTemplate("text", {}).render(CHAT)


_start = chat_template._Renderer._start


def start_and_stop(renderer: Any) -> None:
    _start(renderer)
    os.kill(renderer._process.pid, signal.SIGSTOP)


def test_a_renderer_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TemplateError, match="the renderer cannot start"):
        ChatTemplate("text", {}).render(CHAT)


def test_without_jinja2_a_template_names_the_installation(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jinja2.py").write_text("raise ModuleNotFoundError(name='jinja2')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(chat_template, "_RENDERER", chat_template._Renderer())
    with pytest.raises(InputError) as caught:
        ChatTemplate("text", {}).render(CHAT)
    assert str(caught.value) == f"chat template: needs the package jinja2; {install_command('')}"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_renderer_ends_with_its_process(number: int) -> None:
    """Also while it renders."""
    code = (
        "from gigpo_jax.models.text import chat_template as c\n"
        "c.ChatTemplate('', {}).render([])\n"
        "print(c._RENDERER._process.pid, flush=True)\n"
        "c.ChatTemplate('{% for a in range(90000) %}' * 3 + '{% endfor %}' * 3, {}).render([])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        renderer = int(parent.stdout.readline())
        parent.send_signal(number)
    assert gone([renderer], within_s=60)


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SOURCES = {
    "trimmed": "  {% if true %}\n  a\n  {% endif %}\n" + PLAIN,
    "tools": "{% if tools is not none %}{{ tools | tojson(indent=2) }}{% endif %}" + PLAIN,
    "no tools": "{% if tools is defined and not tools %}none{% endif %}" + PLAIN,
    "break": "{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}\n  {{ m.content }}{% endgeneration %}{% endfor %}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ sep_token }}" + PLAIN,
    "prompt": PLAIN + "{% if add_generation_prompt %}assistant{% endif %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "strings": "{{ messages[0].content.split('a')[-1].strip() | upper }}",
}


@pytest.mark.parametrize("name", SOURCES)
def test_texts_are_those_of_transformers(name: str, tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    word_tokenizer(["go"]).save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(SOURCES[name])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    chat = [{"role": "user", "content": "a é <b>"}, {"role": "assistant", "content": " {{ 1 }}\n"}]
    tool = {"type": "function", "function": {"name": "go", "parameters": {"é": [1, None]}}}
    for tools in ([], [tool]):
        expected = theirs.apply_chat_template(
            chat, tools=tools or None, add_generation_prompt=True, tokenize=False
        )
        assert chat_text(ours, chat, tools) == expected


def test_a_template_does_not_see_the_clock() -> None:
    """As in Llama 3.2: a prompt that changes every day would change a resumed run."""
    source = "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}26 Jul{% endif %}"
    assert ChatTemplate(source, {}).render(CHAT) == "26 Jul"
