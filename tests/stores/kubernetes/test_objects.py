"""Objects of any shape are read without an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.stores.kubernetes.object_cache import ObjectCache
from gateway.stores.kubernetes.objects import flag, number, part, parts, text, texts
from gateway.stores.kubernetes.pods import PODS, read_pod
from gateway.stores.kubernetes.reading import Defaults
from gateway.stores.kubernetes.slices import read_slice
from tests.stores.kubernetes.things import Object, endpoint, pod, slice_

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
def damaged(draw: st.DrawFn, object_: Object) -> object:
    """``object_`` with one member replaced by anything."""
    return replaced(object_, draw(st.sampled_from(paths(object_)[1:])), draw(JSON))


@given(damaged(pod("a", model="m", labels="a=x")))
def test_pod_of_any_shape_is_read(object_: Object) -> None:
    read_pod(object_, Defaults())


@given(damaged(slice_("s", endpoint("10.0.0.1", "a", ready=True), annotations={"tito-gateway/port": "http"})))
def test_slice_of_any_shape_is_read(object_: Object) -> None:
    read_slice(object_, Defaults())


@given(damaged({"type": "ADDED", "object": pod("a")}))
def test_event_of_any_shape_is_taken(event: Object) -> None:
    mirror = ObjectCache(PODS, Defaults())
    mirror.version = "1"
    if event.get("type") != "ERROR":
        mirror.take(event)
    assert mirror.version


def test_members_are_found_or_not() -> None:
    object_ = {"a": {"b": {"c": "x", "n": 3, "t": True, "l": [{"k": 1}, 2]}}}
    assert part(object_, "a", "b", "c") == {}
    assert text(object_, "a", "b", "c") == "x"
    assert text(object_, "a", "b", "n") == ""
    assert texts(object_, "a", "b") == {"c": "x"}
    assert (number(object_, "a", "b", "n"), number(object_, "a", "b", "t")) == (3, None)
    assert flag(object_, "a", "b", "t", default=False) and flag(object_, "a", "x", default=True)
    assert list(parts(object_, "a", "b", "l")) == [{"k": 1}]
