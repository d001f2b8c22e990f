"""Options of formats: values and errors."""

from __future__ import annotations

import pytest

from gateway.formats.options import Kind, count, flag, one_of, read

KINDS: dict[str, Kind] = {"quick": flag, "size": count, "way": one_of("up", "down")}


def test_options_are_read_by_their_kinds() -> None:
    given = {"way": "down", "size": "9", "quick": "false"}
    assert read(given, KINDS) == {"way": "down", "size": 9, "quick": False}
    assert read({}, KINDS) == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("depth", "1", "depth: this format has no such setting"),
        ("quick", "yes", "quick: must be true or false, not 'yes'"),
        ("size", "0", "size: must be a whole number above 0, not '0'"),
        ("size", "9" * 19, "size: must be a whole number above 0, not '9999999999999999999'"),
        ("way", "Up", "way: 'Up' is none of up, down"),
    ],
)
def test_bad_option_is_named_with_what_it_may_be(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        read({name: text}, KINDS)
