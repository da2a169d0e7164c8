"""Folders round-trip bit by bit, load in shards, and broken ones are refused in one line."""

import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.safetensors_file import INDEX, SINGLE
from gigpo_jax.models.files.save_weights import save_hf, write_tensors
from gigpo_jax.models.files.single_file import map_file
from gigpo_jax.models.files.weights import is_finite, load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from tests.models.shapes import SMALL, VL, on_cpus, random_params

ROPE = {
    "rope_type": "llama3",
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 16,
}
TIED = SMALL["gqa4_tied"]
UNTIED = SMALL["gqa2_untied"]


def assert_same(one: Params, two: Params) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("max_shard_bytes", [10**9, 20_000])
@pytest.mark.parametrize("name", ["gqa4_tied", "gqa2_untied"])
def test_saved_is_loaded_bit_by_bit(
    name: str, max_shard_bytes: int, dtype: jnp.dtype, tmp_path: pathlib.Path
) -> None:
    config = SMALL[name]
    params = random_params(SMALL[name], dtype=dtype)
    folder = tmp_path / "deep" / "model"
    save_hf(folder, config, params, max_shard_bytes=max_shard_bytes)
    files = sorted(folder.glob("*.safetensors"))
    assert (len(files) > 1) == (max_shard_bytes == 20_000) == (folder / INDEX).is_file()
    if len(files) > 1:
        assert max(file.stat().st_size for file in files) < 20_000 + 4_000  # and the header
    loaded_config, loaded = load_hf(folder, dtype=dtype)
    assert loaded_config == config
    assert_same(loaded, params)
    assert list((tmp_path / "deep").iterdir()) == [folder]


@pytest.mark.parametrize("config", [TIED, UNTIED, SMALL["qwen3_tied"], VL])
def test_a_mapped_file_has_the_parameters_of_engines_on_cpus_without_a_copy(
    config: DecoderConfig, tmp_path: pathlib.Path
) -> None:
    params = random_params(config, dtype=jnp.bfloat16)
    file = tmp_path / "file"
    write_tensors(file, config, params, dtype="bfloat16")
    mapped = map_file(file, config)
    _, expected = on_cpus(config, params)
    expected.pop("vision", None)
    assert_same(mapped, expected)
    # What changes in the file changes in the arrays: they are its bytes.
    names = safetensors.numpy.load_file(file)
    start = file.stat().st_size - sum(tensor.nbytes for tensor in names.values())
    with file.open("r+b") as stream:
        stream.seek(start)
        stream.write(b"\x80\x3f")  # 1.0
    assert mapped["embed"][0, 0] == 1.0 != expected["embed"][0, 0]


@pytest.mark.parametrize("language_model", [TIED, UNTIED])
def test_a_language_model_becomes_a_critic_whose_values_are_0(
    language_model: DecoderConfig, tmp_path: pathlib.Path
) -> None:
    params = random_params(language_model)
    save_hf(tmp_path / "model", language_model, params)
    config, critic = load_hf(tmp_path / "model", value_head=True)
    assert config == replace(language_model, value_head=True)
    head = critic.pop("value_head")
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(head))
    assert_same(critic, {name: params[name] for name in ("embed", "final_norm", "layers")})

    trained = random_params(config, 1)
    save_hf(tmp_path / "critic", config, trained)
    for asked in (True, False):
        assert_same(load_hf(tmp_path / "critic", value_head=asked)[1], trained)


def test_dtypes_are_converted_on_the_way(tmp_path: pathlib.Path) -> None:
    params = random_params(TIED)
    save_hf(tmp_path / "m", TIED, params, dtype=jnp.bfloat16)
    assert json.loads((tmp_path / "m/config.json").read_text())["torch_dtype"] == "bfloat16"
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert_same(load_hf(tmp_path / "m", dtype=jnp.bfloat16)[1], rounded)
    assert_same(
        load_hf(tmp_path / "m", dtype=jnp.float32)[1],
        jax.tree.map(lambda x: x.astype(jnp.float32), rounded),
    )


def test_files_are_proper_safetensors(tmp_path: pathlib.Path) -> None:
    params = random_params(UNTIED)
    save_hf(tmp_path / "m", UNTIED, params)
    with safetensors.safe_open(tmp_path / "m" / SINGLE, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
        up = file.get_tensor("model.layers.2.mlp.up_proj.weight")
    np.testing.assert_array_equal(up, params["layers"]["up"]["kernel"][2].T)


@pytest.mark.parametrize("name", ["moe", "moe_mixed"])
def test_experts_have_tensors_of_their_own(name: str, tmp_path: pathlib.Path) -> None:
    """transformers reads the folder, and what it writes is read back."""
    transformers = pytest.importorskip("transformers")
    config = SMALL[name]
    params = random_params(config)
    save_hf(tmp_path / "m", config, params, max_shard_bytes=20_000)
    assert load_hf(tmp_path / "m")[0] == config
    assert_same(load_hf(tmp_path / "m")[1], params)
    files = (tmp_path / "m").glob("*.safetensors")
    stored = {k: v for file in files for k, v in safetensors.numpy.load_file(file).items()}
    # The last layer with experts is the last one of its stack.
    prefix = f"model.layers.{config.layer_numbers('layers')[-1]}.mlp"
    down = params["layers"]["expert_down"]["kernel"]
    np.testing.assert_array_equal(stored[f"{prefix}.experts.4.down_proj.weight"], down[-1, 4].T)
    router = params["layers"]["router"]["kernel"]
    np.testing.assert_array_equal(stored[f"{prefix}.gate.weight"], router[-1].T)
    if name == "moe_mixed":
        up = params["dense_layers"]["up"]["kernel"]
        np.testing.assert_array_equal(stored["model.layers.4.mlp.up_proj.weight"], up[3].T)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    theirs.save_pretrained(tmp_path / "theirs")
    config, again = load_hf(tmp_path / "theirs")
    assert config == SMALL[name]
    assert_same(again, params)


def test_saving_replaces_a_model_and_nothing_else(tmp_path: pathlib.Path) -> None:
    one = random_params(TIED, 0)
    two = random_params(TIED, 1)
    folder = tmp_path / "m"
    save_hf(folder, TIED, one, max_shard_bytes=20_000)
    save_hf(folder, TIED, two)
    assert not (folder / INDEX).exists()
    assert_same(load_hf(folder)[1], two)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "sealed").mkdir(mode=0o500)
    for name, message in [
        ("notes", "not a model"),
        ("file", "is a file"),
        ("file/m", "cannot be written"),
    ]:
        with pytest.raises(InputError, match=message):
            save_hf(tmp_path / name, TIED, two)
    assert (tmp_path / "notes" / "todo.txt").read_text() == "keep"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "m", "notes", "sealed"]


def test_tokenizer_and_stop_tokens_travel_with_the_weights(tmp_path: pathlib.Path) -> None:
    words = word_tokenizer([])
    with pytest.raises(InputError, match="embedding"):
        save_hf(tmp_path / "m", TIED, random_params(TIED), tokenizer=words)
    config = type(TIED)(**{**TIED.__dict__, "vocab_size": words.vocab_size})
    save_hf(tmp_path / "m", config, random_params(config), tokenizer=words)
    assert load_tokenizer(tmp_path / "m").stop_token_ids == (3, 5)
    assert json.loads((tmp_path / "m/generation_config.json").read_text())["eos_token_id"] == [3, 5]


SHARDED = """
import sys, jax, numpy as np
jax.config.update("jax_num_cpu_devices", 8)
from jax.sharding import NamedSharding, PartitionSpec
from gigpo_jax.models import decoder, qwen2_5_vl
from gigpo_jax.models.files import save_weights, weights
config, params = weights.load_hf(sys.argv[1])
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
rules = {"embed": "fsdp", "heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "expert": "tensor"}
named = lambda axes: NamedSharding(mesh, PartitionSpec(*(rules.get(axis) for axis in axes)))
def load(folder, config, params):
    shardings = jax.tree.map(named, decoder.logical_axes(config), is_leaf=lambda axes: isinstance(axes, tuple))
    _, sharded = weights.load_hf(folder, shardings=shardings)
    for one, two, sharding in zip(*map(jax.tree.leaves, (params, sharded, shardings)), strict=True):
        assert two.sharding == sharding and len(two.devices()) == 8
        np.testing.assert_array_equal(one, two)
    return sharded
experts = load(sys.argv[3], *weights.load_hf(sys.argv[3]))["layers"]["expert_up"]["kernel"]
assert experts.addressable_shards[0].data.shape == (3, 3, 16, 24)
sharded = load(sys.argv[1], config, params)
kernel = sharded["layers"]["gate"]["kernel"]
assert kernel.addressable_shards[0].data.size * 4 == kernel.size
tokens = np.array([[1, 2, 3, 55, 55, 55, 55, 4], [5, 6, 55, 55, 55, 55, 7, 8]])
images = [np.full((56, 56, 3), shade, np.uint8) for shade in (50, 200)]
run = lambda params: qwen2_5_vl.logits(config, params, tokens, images)
np.testing.assert_allclose(run(params), run(sharded), atol=1e-5)
_, sharded = weights.load_hf(sys.argv[1], shardings=jax.tree.map(lambda leaf: leaf.sharding, sharded))
save_weights.save_hf(sys.argv[2], config, sharded)
# Host copies of all parameters together may not fit.
assert all(leaf._npy_value is None for leaf in jax.tree.leaves(sharded))
print("equal")
"""


@pytest.mark.slow
def test_loading_into_a_mesh_of_8_devices_equals_loading_whole(tmp_path: pathlib.Path) -> None:
    save_hf(tmp_path / "m", VL, random_params(VL), max_shard_bytes=100_000)
    save_hf(tmp_path / "experts", SMALL["moe"], random_params(SMALL["moe"]))
    folders = [str(tmp_path / name) for name in ("m", "again", "experts")]
    command = [sys.executable, "-c", SHARDED, *folders]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert out.stdout.strip() == "equal", out.stderr
    assert_same(load_hf(tmp_path / "again")[1], load_hf(tmp_path / "m")[1])


def test_reading_a_shard_touches_only_its_part(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Host memory: nothing larger than the largest stacked array is ever built."""
    save_hf(tmp_path / "m", UNTIED, random_params(UNTIED))
    sizes: list[int] = []
    empty = np.empty

    def counting(*args: object, **kw: object) -> np.ndarray:
        sizes.append((array := empty(*args, **kw)).size)
        return array

    monkeypatch.setattr(np, "empty", counting)
    _, params = load_hf(tmp_path / "m")
    leaves = [leaf.size for leaf in jax.tree.leaves(params)]
    assert max(sizes) == max(leaves)
    assert sum(sizes) == sum(leaves)


def edit(file: str, **changes: object) -> Callable[[pathlib.Path], None]:
    def change(folder: pathlib.Path) -> None:
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | changes))

    return change


def cut(folder: pathlib.Path) -> None:
    file = folder / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def make_moe(**changes: object) -> Callable[[pathlib.Path], None]:
    """Makes the folder one of a model with experts, as far as config.json says."""
    keys = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    return edit("config.json", model_type="qwen3_moe", **keys | changes)


BROKEN: dict[str, tuple[Callable[[pathlib.Path], None], str]] = {
    "folder": (shutil.rmtree, "no such model folder"),
    "config": (lambda folder: (folder / "config.json").unlink(), "config.json: missing"),
    "config cut": (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
    "config deep": (
        lambda folder: (folder / "config.json").write_text("[" * 100_000),
        "not valid JSON",
    ),
    "config binary": (
        lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe{}"),
        "not valid JSON",
    ),
    "config list": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "holds a list, not a JSON object",
    ),
    "layers enormous": (
        edit("config.json", num_hidden_layers=10**9),
        "num_hidden_layers=1000000000 must be a whole",
    ),
    "layers many": (
        edit("config.json", num_hidden_layers=1000),
        "tensor model.layers.3.* is missing",
    ),
    "width enormous": (
        edit("config.json", intermediate_size=2**18),
        "config.json asks for .32, 262144.",
    ),
    "text for a number": (
        edit("config.json", vocab_size="61"),
        "vocab_size='61' must be a whole number",
    ),
    "true for a number": (
        edit("config.json", num_key_value_heads=True),
        "num_key_value_heads=True must be",
    ),
    "eps": (
        edit("config.json", rms_norm_eps="1e-6"),
        "rms_norm_eps='1e-6' must be a finite number",
    ),
    "eps nan": (
        edit("config.json", rms_norm_eps=float("nan")),
        "rms_norm_eps=nan must be a finite number",
    ),
    "theta": (edit("config.json", rope_theta=10**400), "rope_theta=10* must be a finite number"),
    "rope list": (edit("config.json", rope_scaling=[1]), "rope_parameters=.1. must be an object"),
    "tie": (
        edit("config.json", tie_word_embeddings="false"),
        "tie_word_embeddings='false' must be true or false",
    ),
    "eos": (edit("config.json", eos_token_id="3"), "eos_token_id='3' must be a token id"),
    "eos list": (
        edit("config.json", eos_token_id=[3, None]),
        "eos_token_id=.3, None. must be a token id",
    ),
    "heads without width": (
        edit("config.json", num_attention_heads=64),
        "head_dim=0 must be a whole number",
    ),
    "experts chosen": (
        make_moe(num_experts_per_tok=5),
        "num_experts_per_tok=5 must be at most num_experts=4",
    ),
    "experts nowhere": (
        make_moe(decoder_sparse_step=7),
        r"decoder_sparse_step=7 and mlp_only_layers=\[\] leave none of 3 layers with experts",
    ),
    "experts of layers": (make_moe(mlp_only_layers=3), "mlp_only_layers=3 must be a list"),
    "experts unknown": (make_moe(num_experts=None), "num_experts=None must be a whole number"),
    "experts absent": (make_moe(), "tensor model.layers.0.mlp.experts.0.* is missing"),
    "other model": (edit("config.json", model_type="gemma"), "model_type='gemma'"),
    "other type": (
        edit("config.json", model_type="qwen3"),
        "tensor model.layers.0.self_attn.k_norm.weight is missing",
    ),
    "biases": (
        edit("config.json", model_type="qwen3", attention_bias=True),
        "attention_bias=True is not supported",
    ),
    "scaled for more": (
        edit("config.json", rope_scaling={"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}),
        "rotary scaling 'yarn' with .*mscale",
    ),
    "scaled by nothing": (
        edit("config.json", model_type="llama", rope_scaling={"rope_type": "llama3"}),
        "factor=0.0 must be a finite number above 0",
    ),
    "scaled the wrong way": (
        edit("config.json", model_type="llama", rope_scaling=ROPE | {"low_freq_factor": 4}),
        "high_freq_factor=4.0 must be above 4.0",
    ),
    "dynamic": (
        edit("config.json", rope_scaling={"type": "dynamic", "factor": 4.0}),
        "rotary scaling 'dynamic'",
    ),
    "longrope": (
        edit("config.json", rope_parameters={"rope_type": "longrope"}),
        "rotary scaling 'longrope'",
    ),
    "window": (edit("config.json", use_sliding_window=True), "use_sliding_window"),
    "window of mistral": (
        edit("config.json", model_type="mistral", sliding_window=9),
        "sliding_window=null",
    ),
    "gelu": (edit("config.json", hidden_act="gelu"), "hidden_act='gelu'"),
    "heads": (edit("config.json", num_key_value_heads=3), "num_kv_heads=3 must divide"),
    "no width": (edit("config.json", hidden_size=None), "hidden_size=None"),
    "no weights": (lambda folder: (folder / INDEX).unlink(), "neither model.safetensors nor"),
    "half": (
        lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
        "1 of 3 weight files are missing",
    ),
    "cut": (cut, "broken or cut short"),
    "index": (lambda folder: (folder / INDEX).write_text("[]"), "holds a list, not a JSON object"),
    "index of nothing": (
        lambda folder: (folder / INDEX).write_text("{}"),
        "weight_map=None must be an object",
    ),
    "index of lists": (edit(INDEX, weight_map={"a": []}), "not a .safetensors file"),
    "index leaves": (
        edit(INDEX, weight_map={"a": "../m/model-00001-of-00003.safetensors"}),
        "not a .safetensors file",
    ),
    "index absolute": (
        edit(INDEX, weight_map={"a": "/etc/x.safetensors"}),
        "not a .safetensors file",
    ),
    "index of pickles": (edit(INDEX, weight_map={"a": "model.bin"}), "not a .safetensors file"),
    "layers": (edit("config.json", num_hidden_layers=4), "tensor model.layers.3.* is missing"),
    "fewer": (
        edit("config.json", num_hidden_layers=2),
        "tensors do not belong to config.json's model .model.layers.2",
    ),
    "shape": (
        edit("config.json", vocab_size=64),
        "has shape .61, 32., config.json asks for .64, 32.",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_refused_in_one_line(case: str, tmp_path: pathlib.Path) -> None:
    spoil, message = BROKEN[case]
    folder = tmp_path / "m"
    save_hf(folder, UNTIED, random_params(UNTIED), max_shard_bytes=44_000)
    assert len(list(folder.glob("*.safetensors"))) == 3
    spoil(folder)
    with pytest.raises(InputError, match=message) as caught:
        load_hf(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_second_copy_of_the_tied_head_is_ignored(tmp_path: pathlib.Path) -> None:
    params = random_params(TIED)
    untied = type(TIED)(**{**TIED.__dict__, "tie_word_embeddings": False})
    save_hf(tmp_path / "m", untied, params | {"head": params["embed"]})
    edit("config.json", tie_word_embeddings=True)(tmp_path / "m")
    assert_same(load_hf(tmp_path / "m")[1], params)


def test_the_door_of_the_package(tmp_path: pathlib.Path) -> None:
    """In a fresh process: what `gigpo_jax.models` offers works, and until it is used there is no
    jax.
    """
    save_hf(tmp_path / "m", TIED, random_params(TIED))
    code = (
        "import sys, gigpo_jax.models as models, gigpo_jax.models.text.tokenizer; assert 'jax' not in sys.modules; "
        "config, params = models.load_hf(sys.argv[1], dtype='bfloat16'); models.save_hf(sys.argv[2], config, params); "
        "print(models.logits(config, params, __import__('numpy').ones((2, 3), int)).shape, hasattr(models, 'other'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m"), str(tmp_path / "copy")]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert out.stdout.strip() == "(2, 3, 61) False", out.stderr
    assert read_config(tmp_path / "copy") == TIED


def one_of(value: float, dtype: type = np.float32) -> np.ndarray:
    """[61, 32]: zeros, and one value in the last place."""
    return np.where(np.arange(61 * 32) == 61 * 32 - 1, value, 0).astype(dtype).reshape(61, 32)


SPOILED = {
    "nan": (one_of(np.nan), "lm_head.weight has NaN or infinite values in float16"),
    "infinite": (one_of(-np.inf), "lm_head.weight has NaN or infinite values in float16"),
    "too large for float16": (one_of(7e4), "lm_head.weight has NaN or infinite values in float16"),
    "too large for float32": (
        one_of(1e39, np.float64),
        "lm_head.weight has NaN or infinite values in float16",
    ),
    "integers": (
        one_of(1, np.int32),
        "lm_head.weight has dtype I32; use weights of dtype F64, F32",
    ),
    "booleans": (one_of(1, np.bool_), "lm_head.weight has dtype BOOL"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_weights_that_are_no_finite_numbers_are_refused_in_one_line(
    case: str, tmp_path: pathlib.Path
) -> None:
    save_hf(tmp_path, UNTIED, random_params(UNTIED))
    file, (spoiled, message) = tmp_path / SINGLE, SPOILED[case]
    safetensors.numpy.save_file(
        safetensors.numpy.load_file(file) | {"lm_head.weight": spoiled}, file
    )
    with pytest.raises(InputError, match=message) as caught:
        load_hf(tmp_path, dtype=jnp.float16)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
    safetensors.numpy.save_file(
        safetensors.numpy.load_file(file) | {"lm_head.weight": one_of(65504)}, file
    )
    assert load_hf(tmp_path, dtype=jnp.float16)[1]["head"][-1, -1] == 65504


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, np.float64])
def test_finite_is_what_numpy_calls_so(dtype: jnp.dtype) -> None:
    finfo = jnp.finfo(dtype)
    size = 3 * 2**16 + 5
    for value in (finfo.max, finfo.min, finfo.tiny, -0.0, np.inf, -np.inf, np.nan, -np.nan):
        for position in (0, 2**16 - 1, 2**16, size - 1):
            array = np.zeros(size, dtype)
            array[position] = value
            assert is_finite(array) == np.isfinite(array).all() == (abs(value) <= finfo.max)
