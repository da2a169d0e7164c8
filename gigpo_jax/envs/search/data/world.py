"""A synthetic world: passages about people, towns, books and guilds, and questions about them.

Names are two words from short lists, so a small vocabulary covers them. Most names share a word
with others, so a search for half a name finds wrong passages first. Training and test questions
share no entity, including the intermediate ones of two-hop questions and the answers. All passages
are in one corpus.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.envs.search.data.names import LARGEST, TRADES, Words, select_words
from gigpo_jax.envs.search.questions import Question
from gigpo_jax.envs.search.retrieval.retriever import Document

SPLITS = ("train", "test")
KINDS = ("one_hop", "two_hop")
_SHARE = {"train": 3, "test": 1}  # of the entities
_TOWN_FACTS = ("It has a market.", "It has two schools.", "It is known for its walls.")


@dataclass(frozen=True)
class InventedWorld:
    """Documents in corpus order, and the questions of all splits."""

    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class _Entities:
    """The entities of one split, a row each, with their facts."""

    towns: list[tuple[str, str]]  # name, river
    people: list[tuple[str, str, str]]  # name, town of birth, trade
    books: list[tuple[str, str]]  # name, author
    guilds: list[tuple[str, str, str]]  # name, founder, town


def check_world(seed: int, people: int) -> None:
    """InputError for arguments that `make_world` cannot use."""
    check_whole("people", people, 16, LARGEST)
    check_whole("seed", seed)


def make_world(seed: int = 0, *, people: int = 480) -> InventedWorld:
    """Makes a world; the same arguments give the same world on any machine.

    Args:
      seed: Seed of names, facts and order.
      people: Number of people, which sets the numbers of towns, books and guilds. Passages: about
        seven times as many.
    """
    check_world(seed, people)
    # The order of the draws below is part of the format: another one gives another world.
    rng = random.Random(f"world {seed} {people}")
    documents: list[Document] = []
    selection: list[Question] = []
    splits = _draw_entities(people, rng)
    for split, entities in splits.items():
        documents += _write_passages(entities, rng)
        selection += _write_questions(entities, split)
    documents += _write_distractors(splits, select_words(people)["goods"], rng)
    # The order decides between equal scores, so it must not tell gold passages from distractors.
    rng.shuffle(documents)
    numbered = []
    for number, document in enumerate(documents):
        numbered.append(Document(str(number), document.contents))
    return InventedWorld(tuple(numbered), tuple(selection))


def _draw_names(
    first: Sequence[str], second: Sequence[str], count: int, rng: random.Random, joint: str = " "
) -> list[str]:
    # All combinations, sampled without repeats: a name belongs to one entity alone.
    names = [f"{start}{joint}{end}" for start, end in itertools.product(first, second)]
    return rng.sample(names, min(count, len(names)))


def _draw_guild_names(words: Words, count: int, rng: random.Random) -> list[str]:
    names = list(itertools.product(words["place"], words["goods"], words["house"]))
    return [" ".join(name) for name in rng.sample(names, count)]


def _draw_entities(people: int, rng: random.Random) -> dict[str, _Entities]:
    """Draws names, deals them to splits, relates each split's."""
    words = select_words(people)
    names = {
        "people": _draw_names(words["first"], words["last"], people, rng),
        "towns": _draw_names(words["place"], words["site"], people // 2, rng),
        "rivers": _draw_names(words["water"], words["stream"], people // 4, rng),
        "books": _draw_names(words["topic"], words["subject"], people // 2, rng, " of "),
        "guilds": _draw_guild_names(words, people // 2, rng),
    }
    # Names are dealt before facts are drawn: no fact relates entities of two splits, so nothing
    # about the test can be learnt from training questions.
    total = sum(_SHARE.values())
    split_names: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
    for kind, all_names in names.items():
        boundary = len(all_names) * _SHARE["train"] // total
        split_names["train"][kind] = all_names[:boundary]
        split_names["test"][kind] = all_names[boundary:]
    return {split: _draw_facts(kinds, rng) for split, kinds in split_names.items()}


def _draw_facts(names: dict[str, list[str]], rng: random.Random) -> _Entities:
    towns = [(town, rng.choice(names["rivers"])) for town in names["towns"]]
    people = [
        (person, rng.choice(names["towns"]), rng.choice(TRADES)) for person in names["people"]
    ]
    books = [(book, rng.choice(names["people"])) for book in names["books"]]
    guilds = [
        (guild, rng.choice(names["people"]), rng.choice(names["towns"]))
        for guild in names["guilds"]
    ]
    return _Entities(towns, people, books, guilds)


def capitalise_name(name: str) -> str:
    """Capitalises a name as passages write it: "songs of bees" -> "Songs of Bees"."""
    return " ".join(word if word == "of" else word.capitalize() for word in name.split())


def _passage(title: str, *sentences: str) -> Document:
    return Document("", f'"{title}"\n' + " ".join(sentences))


def _write_passages(entities: _Entities, rng: random.Random) -> list[Document]:
    """Writes one passage for each entity, with its facts and some unrelated text."""
    documents = []
    for town, river in entities.towns:
        title = capitalise_name(town)
        fact = f"{title} is a town on the {capitalise_name(river)}."
        documents.append(_passage(title, fact, rng.choice(_TOWN_FACTS)))
    for person, town, trade in entities.people:
        title = capitalise_name(person)
        year = rng.randrange(1700, 1900)
        fact = f"{title} was born in {capitalise_name(town)} in {year} and worked as a {trade}."
        documents.append(_passage(title, fact))
    for book, author in entities.books:
        title = capitalise_name(book)
        pages = rng.randrange(60, 600)
        fact = f"{title} is a book of {pages} pages by {capitalise_name(author)}."
        documents.append(_passage(title, fact))
    for guild, founder, town in entities.guilds:
        title = capitalise_name(guild)
        year = rng.randrange(1700, 1900)
        facts = (
            f"{title} was founded by {capitalise_name(founder)} in {year}.",
            f"It trades in {capitalise_name(town)}.",
        )
        documents.append(_passage(title, *facts))
    return documents


def _write_distractors(
    splits: dict[str, _Entities], goods: Sequence[str], rng: random.Random
) -> list[Document]:
    """Writes passages that name the entities and answer no question."""
    documents = []
    for entities in splits.values():
        # Distractors name the entities of their split: a name alone does not find its passage.
        towns = [capitalise_name(town) for town, _ in entities.towns]
        for person, _, _ in entities.people:
            documents += _write_news(capitalise_name(person), towns, goods, rng)
        for town, river in entities.towns:
            title = capitalise_name(town)
            stream = capitalise_name(rng.choice(entities.towns)[1])
            fact = f"The fair of {title} moved away from the {stream} once."
            documents.append(_passage(f"{title} fair", fact))
            title = capitalise_name(river)
            documents.append(_passage(title, f"{title} is a river that freezes in winter."))
        for book, _ in entities.books:
            title = capitalise_name(book)
            reader = capitalise_name(rng.choice(entities.people)[0])
            documents.append(
                _passage(f"Notes on {title}", f"{reader} praised {title} in a letter.")
            )
        for guild, _, _ in entities.guilds:
            title = capitalise_name(guild)
            rival = capitalise_name(rng.choice(entities.people)[0])
            documents.append(
                _passage(f"{title} strike", f"{rival} spoke at the strike of {title}.")
            )
    return documents


def _write_news(
    person: str, towns: Sequence[str], goods: Sequence[str], rng: random.Random
) -> list[Document]:
    """Three passages that mention a person and a town."""
    lost = (rng.choice(towns), rng.randrange(1750, 1900))
    visit = (rng.choice(towns), rng.randrange(1750, 1900))
    letter = (rng.choice(towns), rng.choice(goods))
    sentences = (
        f"A ship called {person} was lost near {lost[0]} in {lost[1]}.",
        f"{person} visited {visit[0]} in {visit[1]} and did not stay.",
        f"{person} wrote to the council of {letter[0]} about the price of {letter[1]}.",
        f"A street in {rng.choice(towns)} was named after {person}.",
        f"{person} was painted in {rng.choice(towns)} by a stranger.",
    )
    documents = []
    for sentence in rng.sample(sentences, 3):
        documents.append(_passage(f"News of {rng.randrange(1750, 1900)}", sentence))
    return documents


def _write_questions(entities: _Entities, split: str) -> list[Question]:
    """Writes all questions about a split's entities, one hop first."""
    rivers = dict(entities.towns)
    birth_towns = {person: town for person, town, _ in entities.people}
    # question, answer, the entities whose passages it needs
    one_hop: list[tuple[str, ...]] = []
    two_hop: list[tuple[str, ...]] = []
    for person, town, trade in entities.people:
        name = capitalise_name(person)
        one_hop.append((f"In which town was {name} born?", town, person))
        one_hop.append((f"What did {name} work as?", trade, person))
        question = f"On which river lies the town where {name} was born?"
        # The passage of the first entity names the second one, so two searches are needed.
        two_hop.append((question, rivers[town], person, town))
    for town, river in entities.towns:
        one_hop.append((f"On which river lies {capitalise_name(town)}?", river, town))
    for book, author in entities.books:
        name = capitalise_name(book)
        one_hop.append((f"Who wrote {name}?", author, book))
        question = f"In which town was the author of {name} born?"
        two_hop.append((question, birth_towns[author], book, author))
    for guild, founder, town in entities.guilds:
        name = capitalise_name(guild)
        one_hop.append((f"Who founded {name}?", founder, guild))
        question = f"In which town was the founder of {name} born?"
        two_hop.append((question, birth_towns[founder], guild, founder))
        question = f"On which river lies the town where {name} trades?"
        two_hop.append((question, rivers[town], guild, town))

    questions = []
    for kind, rows in zip(KINDS, (one_hop, two_hop), strict=True):
        for number, (text, answer, *needed) in enumerate(rows):
            golden = (capitalise_name(answer),)
            titles = tuple(capitalise_name(name) for name in needed)
            questions.append(Question(f"{kind}/{number:05d}", text, golden, kind, split, titles))
    return questions
