"""Text <-> token ids: the tokenizer and chat template of a model folder.

Special tokens in a user's text are broken up before encoding: no page and no model can write, for
example, the end of a turn.
"""

import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from gigpo_jax.core.errors import InputError, first_line
from gigpo_jax.core.files import read_object
from gigpo_jax.models.files.json_values import check_folder, read_token_ids
from gigpo_jax.models.text.chat_template import ChatTemplate, TemplateError
from gigpo_jax.models.text.tokenizer_files import FILES, read_stop_strings, read_tokenizer_files

# Stands for a response while the text after it is rendered. A private character: no tokenizer's
# template looks for it.
RESPONSE_PLACE = "\ue001"


class Tokenizer:
    """A tokenizer with the chat template that its model was trained on.

    Attributes:
      backend: tokenizer of the `tokenizers` library.
      vocab_size: 1 + the highest token id.
      num_rows: rows that an embedding must have; special tokens that are never used need none.
      stop_token_ids: ids that end a response: first the one that the chat template writes after a
        response, then the eos token and the model's other ids.
      source: name of the tokenizer in error messages.
      opened_text: text that the generation prompt begins every response with, such as "<think>\n";
        "" for most models.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        template: str | None,
        *,
        files: Mapping[str, bytes] | None = None,
        stop_token_ids: Iterable[int] = (),
        generation: Mapping[str, Any] | None = None,
        source: str = "tokenizer",
        enable_thinking: bool = True,
    ):
        """Wraps a tokenizer.

        Args:
          backend: tokenizer of the `tokenizers` library.
          special_tokens: texts of special tokens by key, such as "eos_token".
          template: text of the chat template, if there is one.
          files: contents by name, as in `tokenizer_files.FILES`, that `save` writes.
          stop_token_ids: more ids that end a response, beside the eos token.
          generation: settings of generation_config.json, for files that are written beside it.
          source: name of the tokenizer in error messages.
          enable_thinking: switch of chat templates such as Qwen3's; False closes the reasoning
            block in the prompt.

        Raises:
          InputError: the chat template fails on a short message, or has no such switch.
        """
        self.backend = backend
        self._files = dict(files or {})
        self.source = source
        pad = backend.token_to_id(special_tokens.get("pad_token", ""))
        self.generation = ({} if pad is None else {"pad_token_id": pad}) | dict(generation or {})
        # A saved limit of length would cut or fill up prompts.
        backend.no_truncation()
        backend.no_padding()
        # Not the number of tokens: ids may have gaps.
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        # Without thinking, both settings are rendered: equal texts mean that there is no switch.
        settings = (True,) if enable_thinking else (False, True)
        templates = []
        if template is not None:
            for thinking in settings:
                values = {**special_tokens, "enable_thinking": thinking}
                templates.append(ChatTemplate(template, values))
        self._template = templates[0] if templates else None
        # A template that fails or breaks a limit is found here.
        message = {"role": "user", "content": "text"}
        texts = {self._render(template, [message]) for template in templates}
        if not enable_thinking and len(texts) < 2:
            raise InputError(
                "its chat template has no thinking switch",
                key=source,
                fix="leave model.enable_thinking out",
            )
        self._special_pattern = _special_pattern(backend)
        # Base models have a template whose turns end with another token than their texts.
        ends = [
            backend.token_to_id(name)
            for name in (self._turn_end(), special_tokens.get("eos_token", ""))
        ]
        ids = [end for end in ends if end is not None]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*ids, *stop_token_ids]))
        self.opened_text = self._opened_text()
        # Texts cannot write special tokens: one that neither the template nor an end has is unused,
        # such as Gemma 3's image token, whose id is behind the embedding of its text models.
        added = backend.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        special -= {*self.stop_token_ids, *self.encode_plain("")}
        special -= {number for text in texts for number in self.encode(text)}
        self.num_rows = 1 + max({*backend.get_vocab(with_added_tokens=True).values()} - special)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`; special tokens in it are recognised, and none are added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_plain(self, text: str) -> list[int]:
        """Returns the ids of a text that is no chat, to be continued.

        They begin with the BOS token if the tokenizer adds one, such as Llama 3's; chats have it
        from their template.
        """
        return self.backend.encode(text).ids

    def encode_chat(
        self, user_text: str, *, system: str = "", mark: str = "", special: str = ""
    ) -> list[int]:
        """Returns the ids of a chat of one user message, with the generation prompt.

        Special tokens in the message lose their meaning: "<|im_end|>" becomes "< |im_end|>". Every
        `mark` in it, if there is one, becomes the special tokens `special`. A `system` message,
        with the same marks, stands before it unless it is "".

        Raises:
          InputError: the tokenizer has no chat template, or the template refuses the message.
        """
        messages = [{"role": "user", "content": self.break_text(user_text, mark, special)}]
        if system:
            content = self.break_text(system, mark, special)
            messages.insert(0, {"role": "system", "content": content})
        return self.encode(self.render(messages))

    def _turn_end(self) -> str:
        """Returns the token that the chat template writes after a response; "" if there is none."""
        messages = [
            {"role": "user", "content": "text"},
            {"role": "assistant", "content": RESPONSE_PLACE},
        ]
        try:
            text = self.render(messages, generation_prompt=False)
        except InputError:  # no template, or one for a single message
            return ""
        rest = text.partition(RESPONSE_PLACE)[2].lstrip()
        tokens = self.backend.get_added_tokens_decoder().values()
        # The longest: one token may begin another.
        return max(
            (token.content for token in tokens if rest.startswith(token.content)),
            key=len,
            default="",
        )

    def _opened_text(self) -> str:
        """Returns what the generation prompt writes and a response of the history does not have."""
        user = {"role": "user", "content": "text"}
        response = {"role": "assistant", "content": RESPONSE_PLACE}
        try:
            prompt = self.render([user])
            # With a message behind it: templates may write an empty thought into the last response.
            history = self.render([user, response, user])
        except InputError:  # no template, or one for a single message
            return ""
        before, place, _ = history.partition(RESPONSE_PLACE)
        return prompt[len(before) :] if place and prompt.startswith(before) else ""

    def break_text(self, text: str, mark: str, special: str) -> str:
        """Breaks up special tokens of a message; marks become `special`, as in `encode_chat`."""
        # Split before special tokens are broken up, so that only `special` stays whole.
        pieces = text.split(mark) if mark else [text]
        return special.join(self.break_special(piece) for piece in pieces)

    def break_special(self, text: str) -> str:
        """Breaks up special tokens in a text."""
        if self._special_pattern is None:
            return text
        return self._special_pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] = (),
        *,
        generation_prompt: bool = True,
    ) -> str:
        """Returns the text of a chat whose messages have no special tokens that they should not."""
        return self._render(self._template, messages, tools, generation_prompt=generation_prompt)

    def _render(
        self,
        template: ChatTemplate | None,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] = (),
        *,
        generation_prompt: bool = True,
    ) -> str:
        if template is None:
            raise InputError(
                "no chat template",
                key=self.source,
                fix="use an instruction-tuned model (…-Instruct)",
            )
        try:
            return template.render(messages, tools, generation_prompt=generation_prompt)
        except (TemplateError, TypeError, RecursionError) as err:
            reason = " ".join(str(err).split())
            raise InputError(
                f"the chat template failed ({reason})",
                key=self.source,
                fix="use a model with a correct one (chat_template.jinja or tokenizer_config.json)",
            ) from err

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Returns the text of token ids, without special tokens unless they are kept."""
        return self.backend.decode(list(ids), skip_special_tokens=not keep_special)

    def token_id(self, token: str) -> int | None:
        """Returns a token's id by exact spelling, or None."""
        return self.backend.token_to_id(token)

    def token(self, token_id: int) -> str | None:
        """Returns the exact spelling of a token, or None."""
        return self.backend.id_to_token(token_id)

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the tokenizer's files into a folder, which is made if needed."""
        folder = pathlib.Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            (folder / name).write_bytes(content)


def load_tokenizer(path: str | pathlib.Path, *, enable_thinking: bool = True) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face folder.

    generation_config.json and config.json may name more stop ids.

    Raises:
      InputError: the folder or a file is missing or broken, or as for `Tokenizer`.
    """
    folder = check_folder(path)
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    # The two that every folder has; the others depend on the kind of tokenizer.
    for name in FILES[:2]:
        if name not in files:
            raise InputError(
                f"{name} is missing", key=folder, fix="copy the model's complete folder"
            )
    backend, special_tokens, template = read_tokenizer_files(folder)
    stops: list[int] = []
    generation: dict[str, Any] = {}
    pads: tuple[int, ...] = ()
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if not file.exists():
            continue
        content = read_object(file)
        ids = read_token_ids(content, "eos_token_id", file)
        pads = pads or read_token_ids(content, "pad_token_id", file)
        if name == "generation_config.json":
            generation = {key: value for key, value in content.items() if value is not None}
            # These tokens ended the responses of a run; the model's own end with others.
            run_stops = [backend.token_to_id(text) for text in read_stop_strings(folder)]
            ids = tuple(number for number in ids if number not in run_stops)
        stops += ids
    if pads:
        generation["pad_token_id"] = pads[0]
    try:
        return Tokenizer(
            backend,
            special_tokens,
            template,
            files=files,
            stop_token_ids=stops,
            generation=generation,
            source=str(folder),
            enable_thinking=enable_thinking,
        )
    except InputError:
        raise
    # The first texts are encoded here, and tokenizers raises bare Exception: without a token for
    # unknown words, for one.
    except Exception as err:
        raise InputError(
            f"its tokenizer cannot encode a chat ({first_line(err)})",
            key=folder,
            fix="use the tokenizer that belongs to this model",
        ) from err


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int, path: str | pathlib.Path) -> int:
    """Checks that every used token id has one of the `vocab_size` rows of the model's embedding.

    Returns:
      `DecoderConfig.num_tokens` of the model: 0 if the embedding has no more rows.

    Raises:
      InputError: there are token ids beyond the embedding; `path` is the model's.
    """
    if tokenizer.num_rows > vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.num_rows} ids, the embedding {vocab_size} rows "
            "(vocab_size)",
            key=path,
            fix="use the tokenizer that belongs to this model",
        )
    return 0 if tokenizer.vocab_size >= vocab_size else tokenizer.vocab_size


def _special_pattern(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Pattern of all special tokens; None if there are none."""
    tokens = tokenizer.get_added_tokens_decoder().values()
    texts = {token.content for token in tokens if token.special} - {""}
    if not texts:
        return None
    # The longest first: one special token may begin another.
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)))
