"""From a folder to text: the texts of transformers, repeatable from a seed."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import gigpo_jax
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.text_model import TextModel
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.models.text.tokenizer_files import read_stop_strings

TINY = "models/alfworld_tiny"
PROMPTS = (
    "you are in the middle of a room. you see a desk 1.",
    "you see a fridge 1. your task is to: heat some mug",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as `gigpo export` writes it."""
    path = tmp_path_factory.mktemp("text") / "model"
    config, params = load_hf(TINY)
    save_hf(path, config, params, tokenizer=load_tokenizer(TINY), stop_strings=("</action>",))
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[TextModel]:
    with gigpo_jax.load(str(folder), dtype="float32", max_length=128, slots=4) as loaded:
        yield loaded


@pytest.mark.slow
def test_greedy_texts_and_their_ends_are_those_of_transformers(
    model: TextModel, folder: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    texts = model.generate(*PROMPTS, max_tokens=40)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        chat = [{"role": "user", "content": prompt}]
        asked = words.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = theirs.generate(**asked, do_sample=False, max_new_tokens=40)
        assert text == words.decode(out[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        assert text.endswith("</action>")
    longer = model.generate(PROMPTS[0], max_tokens=40, stop=())
    assert longer[0].startswith(texts[0])
    assert len(longer[0]) > len(texts[0])


@pytest.mark.slow
def test_pipelines_of_transformers_take_the_folder(model: TextModel, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("text-generation", model=str(folder), device="cpu")
    chat = [{"role": "user", "content": PROMPTS[0]}]
    (answer,) = pipeline(chat, do_sample=False, max_new_tokens=40)
    (text,) = model.generate(PROMPTS[0], max_tokens=40)
    assert answer["generated_text"][-1]["content"].strip() == text.strip()


def test_exports_keep_the_settings_of_the_model(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(TINY, base)
    settings = {"temperature": 0.7, "top_k": 20, "pad_token_id": 1, "eos_token_id": [3, 7]}
    (base / "generation_config.json").write_text(json.dumps(settings))
    config, params = load_hf(base)
    tokenizer = load_tokenizer(base)
    stops = ("</action>", "the end")
    save_hf(tmp_path / "one", config, params, tokenizer=tokenizer, stop_strings=stops)
    written = json.loads((tmp_path / "one/generation_config.json").read_text())
    token = tokenizer.token_id("</action>")
    assert written == settings | {
        "bos_token_id": None,
        "do_sample": True,
        "eos_token_id": [3, 7, token],
    }
    assert json.loads((tmp_path / "one/config.json").read_text())["pad_token_id"] == 1
    assert read_stop_strings(tmp_path / "one") == stops
    # The next run has stop strings of its own.
    again = load_tokenizer(tmp_path / "one")
    assert again.stop_token_ids == tokenizer.stop_token_ids == (3, 7)
    save_hf(tmp_path / "two", config, params, tokenizer=again)
    assert read_stop_strings(tmp_path / "two") == ()
    written["eos_token_id"].remove(token)
    assert json.loads((tmp_path / "two/generation_config.json").read_text()) == written


def test_stop_strings_of_other_programs_are_read(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    for value, stops in (("a", ("a",)), (["a", "b"], ("a", "b")), (None, ()), ([""], ())):
        file.write_text(json.dumps({"stop_strings": value}))
        assert read_stop_strings(tmp_path) == stops
    file.write_text(json.dumps({"stop_strings": [1]}))
    with pytest.raises(InputError, match=r"stop_strings=\[1\] must be a list of texts"):
        read_stop_strings(tmp_path)


def test_samples_repeat_from_a_seed_whatever_runs_beside_them(model: TextModel) -> None:
    settings = {"temperature": 2.0, "max_tokens": 12, "stop": ()}
    one, two = model.generate(*PROMPTS, seed=1, **settings)

    async def in_a_notebook() -> list[str]:
        return model.generate(PROMPTS[0], seed=1, **settings)

    assert asyncio.run(in_a_notebook()) == [one]
    assert model.generate(PROMPTS[0], seed=2, **settings) != [one]
    assert model.generate(PROMPTS[1], PROMPTS[1], seed=1, **settings)[1] == two
    assert model.generate("desk", chat=False, seed=1, **settings) != model.generate(
        "desk", seed=1, **settings
    )


def test_what_cannot_work_is_refused(model: TextModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"seed=None: sampling with temperature=1\.0 needs a seed"):
        model.generate("a", temperature=1.0)
    with pytest.raises(
        InputError, match=r"prompt: 3 tokens; with max_tokens=128 .* the engine takes 1 to 0"
    ):
        model.generate("desk", max_tokens=128)
    with pytest.raises(
        InputError,
        match=r"path='no such': no such folder; give a Hugging Face model folder, or ORG/NAME",
    ):
        gigpo_jax.load("no such")
    with pytest.raises(
        InputError, match=r"path='models/alfworld_tiny': a folder, .* leave revision='v1' out"
    ):
        gigpo_jax.load(TINY, revision="v1")
    config, params = load_hf(TINY, value_head=True)
    save_hf(tmp_path / "critic", config, params, tokenizer=load_tokenizer(TINY))
    with pytest.raises(InputError, match="a critic, which scores no tokens"):
        gigpo_jax.load(str(tmp_path / "critic"))
    assert not hasattr(gigpo_jax, "lod")
