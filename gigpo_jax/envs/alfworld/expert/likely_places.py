"""Where objects are likely to be: the order of the expert's search.

Receptacle type -> likely object types. A type that is not in the table may hold anything. Unlikely
receptacles are searched last.
"""

_FOOD = frozenset({"apple", "bread", "egg", "lettuce", "potato", "tomato"})
_DISHES = frozenset({"bowl", "cup", "mug", "plate"})
_POTS = frozenset({"kettle", "pan", "pot"})
_BOTTLES = frozenset({"glassbottle", "winebottle"})
_CUTLERY = frozenset({"butterknife", "fork", "knife", "ladle", "spatula", "spoon"})
_WASHING = frozenset({"cloth", "dishsponge", "handtowel", "soapbar"})
_PAPER = frozenset({"papertowel", "tissuebox", "toiletpaper", "toiletpaperroll"})
_BOTTLED = frozenset({"soapbottle", "spraybottle"})
_WRITING = frozenset({"newspaper", "pen", "pencil"})
_SHAKERS = frozenset({"peppershaker", "saltshaker"})
_POCKET = frozenset({"cd", "cellphone", "creditcard", "keychain", "remotecontrol", "watch"})
_SEATS = frozenset({"basketball", "book", "box", "cloth", "laptop", "newspaper", "pillow"}) | (
    _POCKET - {"cd", "watch"}
)

# Only an order of search: an object in an unlikely place is found later, never missed.
LIKELY = {
    "armchair": _SEATS,
    "bathtubbasin": _WASHING,
    "bed": frozenset(
        {
            "baseballbat",
            "basketball",
            "book",
            "cellphone",
            "laptop",
            "newspaper",
            "pillow",
            "tennisracket",
        }
    ),
    "coffeemachine": frozenset({"mug"}),
    "drawer": _CUTLERY
    | _WASHING
    | _PAPER
    | _BOTTLED
    | _WRITING
    | _SHAKERS
    | _POCKET
    | {"book", "candle", "wateringcan"},
    "fridge": _FOOD | _DISHES | _BOTTLES | {"pan", "pot"},
    "garbagecan": _FOOD | _WASHING | _PAPER | _BOTTLED | _WRITING | {"cd", "winebottle"},
    "handtowelholder": frozenset({"handtowel"}),
    "laundryhamper": frozenset({"cloth"}),
    "microwave": (_FOOD | _DISHES | {"glassbottle"}) - {"lettuce"},
    "ottoman": _SEATS,
    "safe": (_POCKET | {"statue", "vase"}) - {"remotecontrol"},
    "sinkbasin": (_FOOD | _DISHES | _POTS | _CUTLERY | _WASHING | {"glassbottle"}) - {"bread"},
    "sofa": _SEATS,
    "stoveburner": _POTS,
    "toaster": frozenset[str](),
    "toilet": _WASHING | _PAPER | _BOTTLED | {"candle", "newspaper"},
    "toiletpaperhanger": frozenset({"toiletpaper", "toiletpaperroll"}),
    "towelholder": frozenset({"towel"}),
    "tvstand": frozenset({"tissuebox"}),
}


def is_likely(receptacle_type: str, object_type: str) -> bool:
    """Tells whether to look early for an object there."""
    return receptacle_type not in LIKELY or object_type in LIKELY[receptacle_type]
