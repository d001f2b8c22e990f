"""Scalars are read as pydantic does."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.formats.vllm.lenient import count_items, flag, integer

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-3, 3)
    | st.sampled_from([1.0, 0.0, 2.0, math.nan, math.inf, 10**40])
    | st.sampled_from(
        ["1", "0", "t", "F", "YES", "no", "on", "Off", "true", "2", "", " 5", "+5", "1_0", "5.0", "x"]
    )
)


@given(SCALARS)
def test_scalar_is_read_exactly_when_the_engines_model_reads_it(value: object) -> None:
    for kind, found, otherwise in ((bool, flag(value), False), (int, integer(value), integer(value))):
        try:
            expected = TypeAdapter[object](kind).validate_python(value)
        except ValidationError:
            expected = otherwise
        assert found == expected


@pytest.mark.parametrize(
    ("raw", "count"), [(b"[]", 0), (b"[\n]", 0), (b"[1]", 1), (b"[1 , 2]", 2), (b"{}", None), (b"", None)]
)
def test_count_items_counts_commas(raw: bytes, count: int | None) -> None:
    assert count_items(msgspec.Raw(raw)) == count
