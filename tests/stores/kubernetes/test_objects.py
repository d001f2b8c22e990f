"""Objects of any shape are read without an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.stores.kubernetes.mirror import Mirror
from gateway.stores.kubernetes.objects import flag, number, part, parts, text, texts
from gateway.stores.kubernetes.pods import PODS, read_pod
from gateway.stores.kubernetes.reading import Defaults
from gateway.stores.kubernetes.slices import read_slice
from tests.stores.kubernetes.cluster import Object
from tests.stores.kubernetes.things import endpoint, piece, pod

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.just("10.0.0.1")
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def paths(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Paths of all members, however deep."""
    inner: list[tuple[object, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(found for key, each in inner for found in paths(each, (*path, key)))]


def replaced(value: object, path: tuple[object, ...], new: object) -> object:
    if not path:
        return new
    if isinstance(value, dict):
        return {key: replaced(each, path[1:], new) if key == path[0] else each for key, each in value.items()}
    assert isinstance(value, list)
    return [replaced(each, path[1:], new) if key == path[0] else each for key, each in enumerate(value)]


@st.composite
def damaged(draw: st.DrawFn, thing: Object) -> object:
    """``thing`` with one member replaced by anything."""
    return replaced(thing, draw(st.sampled_from(paths(thing)[1:])), draw(JSON))


@given(damaged(pod("a", model="m", labels={"app": "x"})))
def test_pod_of_any_shape_is_read(thing: Object) -> None:
    read_pod(thing, Defaults())


@given(damaged(piece("s", endpoint("10.0.0.1", "a", ready=True), annotations={"tito-gateway/port": "http"})))
def test_slice_of_any_shape_is_read(thing: Object) -> None:
    read_slice(thing, Defaults())


@given(damaged({"type": "ADDED", "object": pod("a")}))
def test_event_of_any_shape_is_taken(event: Object) -> None:
    mirror = Mirror(PODS, Defaults())
    mirror.version = "1"
    if event.get("type") != "ERROR":
        mirror.take(event)
    assert mirror.version


def test_members_are_found_or_not() -> None:
    thing = {"a": {"b": {"c": "x", "n": 3, "t": True, "l": [{"k": 1}, 2]}}}
    assert part(thing, "a", "b", "c") == {}
    assert text(thing, "a", "b", "c") == "x"
    assert text(thing, "a", "b", "n") == ""
    assert texts(thing, "a", "b") == {"c": "x"}
    assert (number(thing, "a", "b", "n"), number(thing, "a", "b", "t")) == (3, None)
    assert flag(thing, "a", "b", "t", default=False) and flag(thing, "a", "x", default=True)
    assert list(parts(thing, "a", "b", "l")) == [{"k": 1}]
