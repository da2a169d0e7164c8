"""Stop strings are found at the token that completes them, however they are cut into tokens."""

import pytest

from gigpo_jax.engines.stopping import StopStrings


class Pieces:
    """A vocabulary of pieces of text; -1 says nothing, as special tokens do."""

    def __init__(self, *pieces: str):
        self.pieces = pieces

    def encode(self, text: str) -> list[int]:
        return [self.pieces.index(text)] if text in self.pieces else list(range(len(self.pieces)))

    def decode(self, ids) -> str:
        return "".join(self.pieces[token] for token in ids)


STOP = ("</action>",)


@pytest.mark.parametrize(
    ("pieces", "start", "index"),
    [
        (("go", "</", "act", "ion", ">", " then"), 0, 4),
        (("go", "</", "act", "ion", ">", " then"), 4, 4),
        (("</action>",), 0, 0),
        (("x</acti", "on>\n", "y"), 0, 1),
        (("<", "/", "a", "c", "", "", "", "t", "i", "o", "n", ">"), 3, 11),
        (("<action>", "go", ">", "</action", " >"), 0, None),
    ],
)
def test_the_completing_token_is_found(pieces, start, index):
    stops = StopStrings(Pieces(*pieces))
    assert stops.find_completion(list(range(len(pieces))), start, STOP) == index


def test_the_first_of_several_strings_wins():
    stops = StopStrings(Pieces("a", "b", "é", "c"))
    assert stops.find_completion([0, 1, 2, 3], 0, ("c", "é", "bé")) == 2


def test_a_single_token_is_recognised_only_if_it_is_the_string():
    assert StopStrings(Pieces("x", "</action>")).single_token("</action>") == 1
    assert StopStrings(Pieces("</", "action>")).single_token("</action>") is None
