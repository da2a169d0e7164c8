"""A synthetic world: passages about people, towns, books and guilds, and questions about them.

Names are two words from short lists, so a small vocabulary covers them. Most names share a word with others, so a
search for half a name finds wrong passages first. Training and test questions share no entity, including the
intermediate ones of two-hop questions and the answers. All passages are in one corpus.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.envs.search.data.names import LARGEST, TRADES, Words, words
from gigpo_jax.envs.search.questions import Question
from gigpo_jax.envs.search.retrieval.retriever import Document

SPLITS = ("train", "test")
KINDS = ("one_hop", "two_hop")
_SHARE = {"train": 3, "test": 1}  # of the entities


@dataclass(frozen=True)
class World:
    """Documents in corpus order, and the questions of all splits."""

    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class _People:
    """The entities of one split; a row is an entity with its facts."""

    towns: list[tuple[str, str]]  # name, river
    people: list[tuple[str, str, str]]  # name, town of birth, trade
    books: list[tuple[str, str]]  # name, author
    guilds: list[tuple[str, str, str]]  # name, founder, town


def check_world(seed: int, people: int, questions: int) -> None:
    check_whole("people", people, 16, LARGEST)
    check_whole("questions", questions, 0)
    check_whole("seed", seed)


def make_world(seed: int = 0, *, people: int = 480, questions: int = 0) -> World:
    """Makes a world; the same arguments give the same world on any machine.

    Args:
      seed: of the world.
      people: their number, which sets those of towns, books and guilds. Passages: about seven times as many.
      questions: limit of each split, drawn at random; 0 = all.
    """
    check_world(seed, people, questions)
    rng = random.Random(f"world {seed} {people}")
    documents: list[Document] = []
    asked: list[Question] = []
    splits = _populate(people, rng)
    for split, entities in splits.items():
        documents += _passages(entities, rng)
        found = _questions(entities, split)
        if questions and len(found) > questions:
            found = [found[place] for place in sorted(rng.sample(range(len(found)), questions))]
        asked += found
    documents += _distractors(splits, words(people)["goods"], rng)
    rng.shuffle(documents)
    numbered = [Document(str(number), document.contents) for number, document in enumerate(documents)]
    return World(tuple(numbered), tuple(asked))


def _names(first: Sequence[str], second: Sequence[str], count: int, rng: random.Random, joint: str = " ") -> list[str]:
    every = [f"{one}{joint}{other}" for one in first for other in second]
    return rng.sample(every, min(count, len(every)))


def _populate(people: int, rng: random.Random) -> dict[str, _People]:
    lists = words(people)
    everything = {
        "people": _names(lists["first"], lists["last"], people, rng),
        "towns": _names(lists["place"], lists["site"], people // 2, rng),
        "rivers": _names(lists["water"], lists["stream"], people // 4, rng),
        "books": _names(lists["topic"], lists["subject"], people // 2, rng, " of "),
        "guilds": [f"{place} {goods} {house}" for place, goods, house in _guild_names(lists, people // 2, rng)],
    }
    total = sum(_SHARE.values())
    dealt: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
    for kind, names in everything.items():
        first = len(names) * _SHARE["train"] // total
        dealt["train"][kind], dealt["test"][kind] = names[:first], names[first:]
    return {split: _relate(names, rng) for split, names in dealt.items()}


def _guild_names(lists: Words, count: int, rng: random.Random) -> list[tuple[str, str, str]]:
    every = [(place, goods, house) for place in lists["place"] for goods in lists["goods"] for house in lists["house"]]
    return rng.sample(every, count)


def _relate(names: dict[str, list[str]], rng: random.Random) -> _People:
    towns = [(town, rng.choice(names["rivers"])) for town in names["towns"]]
    people = [(person, rng.choice(names["towns"]), rng.choice(TRADES)) for person in names["people"]]
    books = [(book, rng.choice(names["people"])) for book in names["books"]]
    guilds = [(guild, rng.choice(names["people"]), rng.choice(names["towns"])) for guild in names["guilds"]]
    return _People(towns, people, books, guilds)


def title(name: str) -> str:
    return " ".join(word if word == "of" else word.capitalize() for word in name.split())


def _document(name: str, *sentences: str) -> Document:
    return Document("", f'"{title(name)}"\n' + " ".join(sentences))


def _passages(world: _People, rng: random.Random) -> list[Document]:
    """One passage for each entity, with its facts and some unrelated text."""
    documents = []
    for town, river in world.towns:
        documents.append(
            _document(
                town,
                f"{title(town)} is a town on the {title(river)}.",
                rng.choice(("It has a market.", "It has two schools.", "It is known for its walls.")),
            )
        )
    for person, town, trade in world.people:
        year = rng.randrange(1700, 1900)
        documents.append(
            _document(person, f"{title(person)} was born in {title(town)} in {year} and worked as a {trade}.")
        )
    for book, author in world.books:
        pages = rng.randrange(60, 600)
        documents.append(_document(book, f"{title(book)} is a book of {pages} pages by {title(author)}."))
    for guild, founder, town in world.guilds:
        year = rng.randrange(1700, 1900)
        documents.append(
            _document(guild, f"{title(guild)} was founded by {title(founder)} in {year}. It trades in {title(town)}.")
        )
    return documents


def _distractors(splits: dict[str, _People], goods: Sequence[str], rng: random.Random) -> list[Document]:
    """Passages that name the same entities and answer no question about them."""
    documents = []
    for world in splits.values():
        towns = [title(town) for town, _ in world.towns]
        for person, _, _ in world.people:
            name = title(person)
            for sentence in rng.sample(
                (
                    f"A ship called {name} was lost near {rng.choice(towns)} in {rng.randrange(1750, 1900)}.",
                    f"{name} visited {rng.choice(towns)} in {rng.randrange(1750, 1900)} and did not stay.",
                    f"{name} wrote to the council of {rng.choice(towns)} about the price of {rng.choice(goods)}.",
                    f"A street in {rng.choice(towns)} was named after {name}.",
                    f"{name} was painted in {rng.choice(towns)} by a stranger.",
                ),
                3,
            ):
                documents.append(Document("", f'"News of {rng.randrange(1750, 1900)}"\n{sentence}'))
        for town, river in world.towns:
            other = rng.choice(world.towns)[1]
            documents.append(
                Document(
                    "", f'"{title(town)} fair"\nThe fair of {title(town)} moved away from the {title(other)} once.'
                )
            )
            documents.append(Document("", f'"{title(river)}"\n{title(river)} is a river that freezes in winter.'))
        for book, _ in world.books:
            reader = title(rng.choice(world.people)[0])
            documents.append(Document("", f'"Notes on {title(book)}"\n{reader} praised {title(book)} in a letter.'))
        for guild, _, _ in world.guilds:
            rival = title(rng.choice(world.people)[0])
            documents.append(Document("", f'"{title(guild)} strike"\n{rival} spoke at the strike of {title(guild)}.'))
    return documents


def _questions(world: _People, split: str) -> list[Question]:
    river = dict(world.towns)
    birth = {person: town for person, town, _ in world.people}
    one: list[tuple[str, ...]] = []  # question, answer, the entities whose passages it needs
    two: list[tuple[str, ...]] = []
    for person, town, trade in world.people:
        one.append((f"In which town was {title(person)} born?", town, person))
        one.append((f"What did {title(person)} work as?", trade, person))
        two.append((f"On which river lies the town where {title(person)} was born?", river[town], person, town))
    for town, stream in world.towns:
        one.append((f"On which river lies {title(town)}?", stream, town))
    for book, author in world.books:
        one.append((f"Who wrote {title(book)}?", author, book))
        two.append((f"In which town was the author of {title(book)} born?", birth[author], book, author))
    for guild, founder, town in world.guilds:
        one.append((f"Who founded {title(guild)}?", founder, guild))
        two.append((f"In which town was the founder of {title(guild)} born?", birth[founder], guild, founder))
        two.append((f"On which river lies the town where {title(guild)} trades?", river[town], guild, town))
    made = []
    for kind, rows in zip(KINDS, (one, two)):
        for number, (text, answer, *needed) in enumerate(rows):
            passages = tuple(title(name) for name in needed)
            made.append(Question(f"{kind}/{number:05d}", text, (title(answer),), kind, split, passages))
    return made
