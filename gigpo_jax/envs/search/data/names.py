"""The words of names in the synthetic world: people, towns, rivers, books and guilds.

A world of up to `SMALL` people uses the first part of each list, a larger one all of it.
"""

from collections.abc import Mapping

SMALL = 600  # people
LARGEST = 2400
# _SMALL: words of all worlds; _MORE: additional words of larger ones. Both are frozen: worlds of a
# seed, and the tiny model's vocabulary, depend on every word and its place.
Words = Mapping[str, tuple[str, ...]]
# fmt: off
TRADES = (
    "baker", "carpenter", "doctor", "engraver", "farmer", "gardener", "hunter", "judge", "mason",
    "painter", "sailor", "tailor", "teacher", "weaver",
)
_SMALL: Words = {
    "first": (
        "alda", "berin", "corva", "dorian", "elsin", "farro", "gilda", "harlan", "ilsa", "joran",
        "kelda", "lorin", "mirra", "nolan", "orsa", "perrin", "quill", "rosa", "silas", "tamsin",
        "ulric", "vera", "wendel", "yara", "zoran", "adela", "bram", "celia", "dagmar", "emmet",
    ),
    "last": (
        "ashdown", "birk", "calder", "drummond", "eastley", "fenwick", "garrow", "holt", "ingram",
        "jarvis", "kestrel", "lomax", "marlow", "norcott", "oakes", "penrose", "quarles",
        "redfern", "selwyn", "thorne", "umber", "vance", "westcott", "yardley", "zeller",
        "aldous", "bexley", "croft", "dunning", "everly",
    ),
    "place": (
        "amber", "bitter", "cold", "dry", "elder", "fallen", "grey", "high", "iron", "jagged",
        "kind", "long", "misty", "narrow", "old", "pale", "quiet", "red", "silver", "tall",
        "upper", "velvet", "white", "yellow",
    ),
    "site": (
        "bridge", "cross", "dale", "edge", "ferry", "gate", "haven", "island", "junction",
        "knoll", "landing", "mill", "nook", "orchard", "port", "quay", "ridge", "spring", "tower",
        "valley",
    ),
    "water": (
        "black", "blue", "clear", "deep", "early", "fast", "green", "hollow", "idle", "jade",
        "lazy", "muddy", "noisy", "open", "purple", "restless",
    ),
    "stream": (
        "beck", "brook", "burn", "channel", "creek", "run", "stream", "water",
    ),
    "topic": (
        "songs", "letters", "lessons", "tales", "maps", "dreams", "recipes", "secrets",
        "portraits", "memories", "riddles", "voyages",
    ),
    "subject": (
        "bees", "clocks", "dust", "eagles", "foxes", "glass", "harvest", "ivory", "jewels",
        "kites", "lanterns", "moths", "needles", "owls", "pepper", "rain", "salt", "thunder",
        "vines", "wolves",
    ),
    "goods": (
        "barrels", "candles", "drums", "flutes", "gloves", "hats", "inks", "jars", "knives",
        "lamps", "mirrors", "nets", "paints", "ropes", "sails", "tiles",
    ),
    "house": (
        "company", "guild", "house", "union", "workshop", "brothers", "society", "works",
    ),
}
_MORE: Words = {
    "first": (
        "fenna", "gideon", "hedda", "isolde", "jasper", "korin", "leif", "maren", "niko", "odile",
        "petra", "rufus", "selma", "tobin", "una", "viggo", "willa", "xenia", "yorick", "zelda",
        "anselm", "brenna", "cyril", "dinah", "ezra", "flora",
    ),
    "last": (
        "ackroyd", "barlow", "cotter", "dexter", "eames", "farrow", "gresham", "hobbs", "ives",
        "jessop", "kemble", "langley", "mercer", "nash", "orford", "pryor", "quigley", "rowntree",
        "stroud", "tansley", "upton", "venn", "wickham", "yates", "abbott", "burrell",
    ),
    "place": (
        "ancient", "broad", "crooked", "dusty", "empty", "frosty", "gentle", "hidden", "inner",
        "jolly", "knotted", "lonely", "mossy", "northern", "outer", "proud", "rocky", "sandy",
        "tidy", "sunken", "vast", "windy", "young", "zealous",
    ),
    "site": (
        "acre", "barrow", "castle", "dock", "end", "forge", "grove", "harbour", "inlet", "jetty",
        "keep", "lodge", "meadow", "notch", "oasis", "pass", "quarter", "road", "shore",
        "terrace",
    ),
    "water": (
        "ashen", "bronze", "copper", "dark", "eastern", "foaming", "golden", "humble", "icy",
        "joyful", "keen", "lively", "mild", "nimble", "olive", "patient",
    ),
    "stream": (
        "bourne", "canal", "current", "falls", "fork", "race", "reach", "rill", "rapids",
        "shallows", "torrent", "winding",
    ),
    "topic": (
        "games", "prayers", "sketches", "warnings", "rules", "stories", "customs", "laws",
        "habits", "wonders", "plans", "signs", "hymns", "legends", "journeys", "poems", "debts",
        "sorrows",
    ),
    "subject": (
        "apples", "berries", "camels", "dolphins", "embers", "feathers", "geese", "honey",
        "icicles", "juniper", "kettles", "ladders", "marbles", "nettles", "oranges", "pebbles",
        "quilts", "ribbons", "sparrows", "tulips",
    ),
}
# fmt: on


def select_words(people: int) -> Words:
    """The lists of words for names in a world of this many people.

    "first" and "last" are of people, "place" and "site" of towns, "water" and "stream" of rivers,
    "topic" and "subject" of books, "place", "goods" and "house" of guilds.
    """
    if people <= SMALL:
        return _SMALL
    return {kind: words + _MORE.get(kind, ()) for kind, words in _SMALL.items()}
