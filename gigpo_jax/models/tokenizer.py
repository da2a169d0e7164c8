"""Text <-> token ids: the tokenizer of a Hugging Face folder with its chat template, and one of whole words.

Needs `tokenizers` and `jinja2` only. Special tokens in a user's text are broken up before encoding: no page and no
model can write, for example, the end of a turn.
"""

import json
import pathlib
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from gigpo_jax.errors import InputError
from gigpo_jax.files import read_object
from gigpo_jax.models.chat_template import ChatTemplate

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
TAGS = ("<think>", "</think>", "<action>", "</action>", "<search>", "</search>", "<answer>", "</answer>")
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
PAD, BOS, SEP, EOS, UNK = "<pad>", "<bos>", "<sep>", "<eos>", "<unk>"

_WORD = r"[a-z0-9_]+(?:[/'-][a-z0-9_]+)*"  # "in/on", "don't" and "mid-air" are words
_MARK = r"[^\sa-z0-9_]"
_WHOLE = '</?[a-z]+>|"[a-z]+":'  # a tag, or a key of JSON
_PIECE = f"{_WHOLE}|{_WORD}|{_MARK}"
_WORD_CHAT = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] + '<eos>' }}"
    "{% else %}{{ '<bos>' + message['content'] + '<sep>' }}{% endif %}{% endfor %}"
)


class Tokenizer:
    """A tokenizer with the chat template that its model was trained on.

    Attributes:
      vocab_size: 1 + the highest token id.
      stop_token_ids: ids that end a response; the first is the one that ends a chat turn.
    """

    vocab_size: int
    stop_token_ids: tuple[int, ...]

    def __init__(
        self,
        files: dict[str, bytes],
        *,
        stop_token_ids: Iterable[int] = (),
        source: str = "tokenizer",
        enable_thinking: bool = True,
    ):
        """Builds a tokenizer from file contents.

        Args:
          files: contents by name, as in `FILES`; the first two are required.
          stop_token_ids: more ids that end a response, beside the eos token of tokenizer_config.json.
          source: its name in error messages.
          enable_thinking: the switch of chat templates such as Qwen3's; False closes the reasoning block in the prompt.

        Raises:
          InputError: a file is missing or broken, the chat template fails on a short message, or it has no such switch.
        """
        for name in FILES[:2]:
            if name not in files:
                raise InputError(f"{source}: {name} is missing; copy the model's complete folder")
        self._files = dict(files)
        self._source = source
        try:
            config = json.loads(files["tokenizer_config.json"])
            self._tokenizer = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
            special = {key: text for key in SPECIAL if (text := _content(config.get(key))) is not None}
            template = _template_source(files, config)
            templates = [
                ChatTemplate(template, special | {"enable_thinking": thinks})
                for thinks in ((True,) if enable_thinking else (False, True))
                if template is not None
            ]
            self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        except Exception as err:  # tokenizers raises bare Exception for a file that it cannot read
            raise InputError(f"{source}: tokenizer files cannot be read ({_one_line(err)}); download again") from err
        self._template = templates[0] if templates else None
        # A template that fails or never ends is found here.
        texts = {self._render(template, [{"role": "user", "content": "text"}]) for template in templates}
        if not enable_thinking and len(texts) < 2:
            raise InputError(f"{source}: its chat template has no thinking switch; leave model.enable_thinking out")
        added = self._tokenizer.get_added_tokens_decoder()
        special_texts = {token.content for token in added.values() if token.special} - {""}
        specials = sorted(special_texts, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, specials))) if specials else None
        eos = self._tokenizer.token_to_id(special.get("eos_token", ""))
        ids = ([] if eos is None else [eos]) + list(stop_token_ids)
        self.stop_token_ids = tuple(dict.fromkeys(ids))

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; special tokens in it are recognised, none are added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_chat(self, user_text: str, *, mark: str = "", special: str = "") -> list[int]:
        """The ids of a chat of one user message, generation prompt included.

        Special tokens in the message lose their meaning: "<|im_end|>" becomes "< |im_end|>". Every `mark` in it, if
        there is one, becomes the special tokens `special`.

        Raises:
          InputError: the tokenizer has no chat template, or the template refuses the message.
        """
        parts = user_text.split(mark) if mark else [user_text]
        content = special.join(map(self._broken_up, parts))
        return self.encode(self._render(self._template, [{"role": "user", "content": content}]))

    def chat_text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> str:
        """The text of a chat, generation prompt included; `encode` gives its ids.

        Special tokens in messages and tools lose their meaning, as in `encode_chat`.

        Args:
          messages: each with "role" and "content", and whatever else the template reads.
          tools: definitions of functions, JSON values, for templates that show them.

        Raises:
          InputError: as `encode_chat`.
        """
        return self._render(self._template, self._broken_up(messages), self._broken_up(tools))

    def _broken_up(self, value: Any) -> Any:
        """A JSON value whose texts have no special tokens."""
        if isinstance(value, str):
            found = self._specials
            return value if found is None else found.sub(lambda match: match[0][0] + " " + match[0][1:], value)
        if isinstance(value, Mapping):
            return {self._broken_up(key): self._broken_up(inner) for key, inner in value.items()}
        return [self._broken_up(inner) for inner in value] if isinstance(value, Sequence) else value

    def _render(
        self, template: ChatTemplate | None, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()
    ) -> str:
        if template is None:
            raise InputError(f"{self._source}: no chat template; use an instruction-tuned model (…-Instruct)")
        try:
            return template.render(messages, tools)
        except Exception as err:  # a template can raise anything
            raise InputError(
                f"{self._source}: the chat template failed ({_one_line(err)}); use a model with a correct one"
            ) from err

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def token_id(self, token: str) -> int | None:
        """The id of one token by its exact spelling, None if there is no such token."""
        return self._tokenizer.token_to_id(token)

    def token(self, token_id: int) -> str | None:
        """The exact spelling of one token, None if there is no such id."""
        return self._tokenizer.id_to_token(token_id)

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the tokenizer's files into a folder, which is made if needed."""
        folder = pathlib.Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            (folder / name).write_bytes(content)


def load_tokenizer(path: str | pathlib.Path, *, enable_thinking: bool = True) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face folder; generation_config.json and config.json may name more stop ids.

    Raises:
      InputError: the folder or a file is missing or broken, or as of `Tokenizer`.
    """
    folder = pathlib.Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model folder; give the path of a downloaded Hugging Face model")
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    beside = [folder / name for name in ("generation_config.json", "config.json") if (folder / name).exists()]
    stops = [stop for file in beside for stop in token_ids(read_object(file), "eos_token_id", file)]
    return Tokenizer(files, stop_token_ids=stops, source=str(folder), enable_thinking=enable_thinking)


def token_ids(content: dict[str, Any], key: str, path: pathlib.Path) -> tuple[int, ...]:
    """The token ids under a key of a model's file: one id, a list of ids, null or nothing; else raises InputError."""
    value = content.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(number) is int and 0 <= number < 2**31 for number in ids):
        raise InputError(f"{path}: {key}={value!r:.80} must be a token id, a list of token ids or null")
    return tuple(ids)


def check_fits(tokenizer: Tokenizer, vocab_size: int, path: str | pathlib.Path) -> None:
    """Raises InputError if a tokenizer has ids beyond the embedding of the model in the folder `path`."""
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the embedding {vocab_size} rows (vocab_size); "
            "use the tokenizer that belongs to this model"
        )


def words_of(text: str) -> list[str]:
    """The parts of a text that are one token each for a word tokenizer that knows them."""
    return re.findall(_PIECE, text.lower())


def word_tokenizer(words: Iterable[str], special: Sequence[str] = ()) -> Tokenizer:
    """Makes a tokenizer of whole words, for models with a vocabulary of hundreds; `words` are texts that hold them.

    The tokens `special` come after all others.

    Lower-case words, numbers, punctuation marks, response tags and keys of JSON (`"action":`) are one token each; an
    unknown word is spelled in characters. `decode` returns any text of ASCII letters, digits and punctuation in lower
    case, with one space between words and none before a mark, around "[" (`click[red]`) or around a dot between
    digits. A chat prompt is "<bos>" + text + "<sep>"; responses end with "<eos>".
    """
    known = {piece for text in words for piece in words_of(text)}
    characters = string.ascii_lowercase + string.digits + "_"
    vocabulary = [PAD, BOS, SEP, EOS, UNK, *TAGS, *string.punctuation.replace("_", ""), *characters]
    vocabulary += ["##" + character for character in characters + "/'-"]
    vocabulary += sorted(known - set(vocabulary))
    ids = {token: index for index, token in enumerate(vocabulary)}

    # Unknown tags and keys are spelled.
    piece = "|".join([*filter(re.compile(_WHOLE).fullmatch, vocabulary), _WORD, _MARK])
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=UNK, continuing_subword_prefix="##"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(tokenizers.Regex(piece), "isolated")]
    )
    steps = [decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse()]
    steps += [decoders.Replace(f"{mark} ", mark) for mark in (*TAGS[::2], "(", "[")]
    steps += [decoders.Replace(f" {mark}", mark) for mark in (*TAGS[1::2], *".,:;!?)][")]
    steps.append(decoders.Replace(tokenizers.Regex(r"(?<=[0-9])\. (?=[0-9])"), "."))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(t, special=True, normalized=False) for t in [*vocabulary[:5], *special]]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Beside a config.json of type qwen2, transformers 5 puts its byte-pair class in place of the one named above,
        # unless there is an auto_map; without trust_remote_code it is otherwise ignored.
        "auto_map": {"AutoTokenizer": ["", ""]},
        "pad_token": PAD,
        "bos_token": BOS,
        "sep_token": SEP,
        "eos_token": EOS,
        "unk_token": UNK,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
        "chat_template": _WORD_CHAT,
    }
    files = {"tokenizer.json": tokenizer.to_str(pretty=True), "tokenizer_config.json": json.dumps(config, indent=2)}
    return Tokenizer({name: text.encode() for name, text in files.items()}, source="word tokenizer")


def _template_source(files: dict[str, bytes], config: dict[str, Any]) -> str | None:
    text = config.get("chat_template")
    if "chat_template.jinja" in files:
        text = files["chat_template.jinja"].decode()
    if isinstance(text, list):  # several named templates
        text = next((entry["template"] for entry in text if entry.get("name") == "default"), None)
    if not (text is None or isinstance(text, str)):
        raise TypeError(f"chat_template is a {type(text).__name__}")
    return text


def _content(token: Any) -> str | None:
    """The text of a special token, which configurations give as a string or as a dict."""
    text = token.get("content") if isinstance(token, dict) else token
    if not (text is None or isinstance(text, str)):
        raise TypeError(f"a special token is a {type(text).__name__}")
    return text


def _one_line(err: Exception) -> str:
    return " ".join(f"{type(err).__name__}: {err}".split())[:200]
