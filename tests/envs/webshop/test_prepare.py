"""Source files that are broken, and prepared folders that must not be used."""

import json
import multiprocessing
import os
import shutil

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.folders import lock_folder
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.webshop import open_catalogue
from gigpo_jax.envs.webshop.catalogue import store
from gigpo_jax.envs.webshop.catalogue.sources import find_sources, parse_price, read_products
from gigpo_jax.envs.webshop.data.generate import ensure_catalogue
from tests.envs.webshop.conftest import DATA

NEEDED = (
    *(
        "asin",
        "name",
        "category",
        "query",
        "product_category",
        "full_description",
        "small_description",
    ),
    *("customization_options", "images"),
)


@pytest.mark.parametrize("key", NEEDED)
def test_a_missing_key_is_named(own_copy, key):
    path = own_copy / "items_shuffle_1000.json"
    products = json.loads(path.read_text())
    del products[7][key]
    path.write_text(json.dumps(products))
    with pytest.raises(InputError, match=rf"product 7.*has no '{key}'") as raised:
        open_catalogue(own_copy)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("name", None, "'name' is None"),
        ("small_description", [None], "small_description"),
        ("pricing", "12", "without a price"),
        ("pricing", "$1.2.3", "without a price"),
        ("pricing", 12, "'pricing' is 12"),
        ("customization_options", {"color": [{"image": None}]}, "option 'color'"),
        ("customization_options", [1], "customization_options"),
    ],
)
def test_a_wrong_value_is_named(own_copy, key, value, says):
    path = own_copy / "items_shuffle_1000.json"
    products = json.loads(path.read_text())
    products[3][key] = value
    path.write_text(json.dumps(products))
    with pytest.raises(InputError, match=f"product 3 .*{says}"):
        open_catalogue(own_copy)


@pytest.mark.parametrize(
    "name", ["items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json"]
)
def test_a_file_that_is_cut_short_is_named(own_copy, name):
    path = own_copy / name
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match=f"{name}: .*not valid JSON"):
        open_catalogue(own_copy)


@pytest.mark.parametrize("name", ["items_shuffle_1000.json", "items_ins_v2_1000.json"])
def test_a_file_that_is_nested_too_deep_is_named(own_copy, name):
    (own_copy / name).write_text("[" * 100_000)
    with pytest.raises(InputError, match=name):
        open_catalogue(own_copy)


def test_missing_files_are_named(own_copy):
    (own_copy / "items_human_ins.json").unlink()
    with pytest.raises(InputError, match=r"no human goals \(they come from items_human_ins.json"):
        open_catalogue(own_copy, goals="human")
    assert open_catalogue(own_copy).goal_count > 0
    (own_copy / "items_ins_v2_1000.json").unlink()
    with pytest.raises(InputError, match=r"no items_ins_v2\*.json"):
        open_catalogue(own_copy)
    with pytest.raises(InputError, match=r"no such folder.*webshop generate"):
        open_catalogue(own_copy / "nowhere")
    with pytest.raises(InputError, match="goals='robot'"):
        open_catalogue(DATA, goals="robot")


def test_several_catalogues_want_a_choice(own_copy):
    for stem in ("items_shuffle", "items_ins_v2"):
        shutil.copy(own_copy / f"{stem}_1000.json", own_copy / f"{stem}.json")
    with pytest.raises(InputError, match="variant='_1000'"):
        find_sources(own_copy)
    assert find_sources(own_copy, variant="").products.name == "items_shuffle.json"


def test_products_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("gigpo_jax.envs.webshop.catalogue.sources._CHUNK", 7)
    path = tmp_path / "items.json"
    items = [{"a": "x" * 30}, [], 12345678, "é\\u00e9", None]
    for indent in (None, 2):
        path.write_text(json.dumps(items, indent=indent))
        assert list(read_products(path)) == items
    for broken in ("", "{}", "[1", "[1,", '[{"a": 1]', "[1 x]"):
        path.write_text(broken)
        with pytest.raises(InputError, match=r"items\.json"):
            list(read_products(path))


def test_prices():
    assert parse_price("$1,795.00") == (1795.0,)
    assert parse_price("from $5.00 to $7.50 or $9") == (5.0, 7.5)
    assert parse_price("") == parse_price(None) == (100.0,)


def test_num_products_counts_entries_of_the_file(own_copy):
    with pytest.raises(InputError, match="num_products=0: must be a whole number of at least 1"):
        open_catalogue(own_copy, num_products=0)
    raw = json.loads((own_copy / "items_shuffle_1000.json").read_text())
    catalogue = open_catalogue(own_copy, num_products=len(raw) - 50)
    assert len(catalogue) < len(raw) - 50 + 1
    assert {catalogue.product(row).asin for row in range(len(catalogue))} == {
        p["asin"] for p in raw[:-50] if p["asin"] != "nan" and len(p["asin"]) <= 10
    }


def test_a_prepared_folder_is_used_only_for_its_sources(own_copy, capsys):
    assert main(["webshop", "prepare", str(own_copy)]) == 0
    assert "200 products, 282 human" in capsys.readouterr().out
    assert open_catalogue(own_copy).folder == own_copy / "prepared"
    assert open_catalogue(own_copy / "prepared").content == open_catalogue(own_copy).content
    path = own_copy / "items_shuffle_1000.json"
    os.utime(path)  # another time, the same content
    assert open_catalogue(own_copy).folder == own_copy / "prepared"
    text = path.read_text()
    path.write_text(text.replace("COSYCOST", "COZYCOST"))  # the same size
    with pytest.raises(InputError, match=r"made from other files.*webshop prepare"):
        open_catalogue(own_copy)
    old = open_catalogue(own_copy / "prepared")
    assert main(["webshop", "prepare", str(own_copy)]) == 0
    assert open_catalogue(own_copy).content != old.content
    assert "COSYCOST" in old.product(0).title  # whoever had it open keeps what it had


@pytest.mark.parametrize("name", ["products.blob", "posting_docs.npy", "manifest.json"])
def test_a_damaged_prepared_folder_is_refused(own_copy, name):
    assert main(["webshop", "prepare", str(own_copy)]) == 0
    path = own_copy / "prepared" / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match="incomplete or of another version"):
        open_catalogue(own_copy)
    assert main(["webshop", "prepare", str(own_copy)]) == 0
    assert len(open_catalogue(own_copy)) == 200


def test_a_product_damaged_in_place_is_named(own_copy):
    assert main(["webshop", "prepare", str(own_copy)]) == 0
    path = own_copy / "prepared" / "products.blob"
    content = path.read_bytes()
    path.write_bytes(content[:2000] + b"\0" * 100 + content[2100:])
    catalogue = open_catalogue(own_copy)
    with pytest.raises(InputError, match=r"prepared: product \d is damaged .*prepare it again"):
        [catalogue.product(row) for row in range(10)]


def test_a_failed_build_leaves_nothing(own_copy, capsys):
    (own_copy / ".prepared-killed").mkdir()  # what a killed builder leaves goes with the next build
    assert main(["webshop", "prepare", str(own_copy)]) == 0
    assert [entry.name for entry in own_copy.iterdir() if entry.is_dir()] == ["prepared"]
    shutil.rmtree(own_copy / "prepared")
    path = own_copy / "items_shuffle_1000.json"
    path.write_text(path.read_text()[:-50])
    assert main(["webshop", "prepare", str(own_copy)]) == 2
    assert "cut short" in capsys.readouterr().err
    assert [entry.name for entry in own_copy.iterdir() if entry.is_dir()] == []


def _open_and_report(folder, cache, answers):
    os.environ["GIGPO_JAX_CACHE"] = cache
    catalogue = open_catalogue(ensure_catalogue(products=40))
    answers.put((catalogue.content, catalogue.goal(0).instruction))


def test_several_processes_make_one_catalogue(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    workers = [
        context.Process(target=_open_and_report, args=("", str(tmp_path), answers))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    contents = {answers.get(timeout=120) for _ in workers}
    for worker in workers:
        worker.join(timeout=60)
    assert len(contents) == 1
    assert len([entry for entry in (tmp_path / "webshop").iterdir() if entry.is_dir()]) == 1


def test_a_generated_catalogue_of_an_older_version_is_prepared_anew(tmp_path):
    folder = ensure_catalogue(tmp_path, products=5)
    manifest = folder / "prepared" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"format": {store.FORMAT}', '"format": 0'))
    assert ensure_catalogue(tmp_path, products=5) == folder
    assert len(open_catalogue(folder)) == 5


def test_waiting_for_another_builder_ends(tmp_path):
    out = tmp_path / "x"
    with (
        lock_folder(out),
        pytest.raises(InputError, match="another process"),
        lock_folder(out, timeout_s=0.1),
    ):
        pass
