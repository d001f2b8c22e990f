"""The ids of a reply that are mapped."""

from __future__ import annotations

from gateway.formats.contract import Ids
from gateway.formats.sglang.ids import id_mapping_for
from tests.formats.sglang.support import parsed, same
from tests.formats.support import HEX, PRIVATE


def test_id_inside_another_word_is_none() -> None:
    id_mapping = id_mapping_for(parsed(b'{"text":"a"}'), PRIVATE)
    assert id_mapping is not None
    for text in (HEX, f'"{HEX}1"', f'\\"{HEX}\\"', f'"x{HEX}"'):
        assert id_mapping.map(text.encode()) == text.encode()


def test_no_mapping_where_the_engine_has_the_clients_id() -> None:
    assert id_mapping_for(parsed(b'{"text":"a","rid":"job-1"}'), same("job-1")) is None
    assert id_mapping_for(parsed(b'{"text":["a"]}'), same(HEX)) is None


def test_no_mapping_for_parallel_samples() -> None:
    assert id_mapping_for(parsed(b'{"text":"a","sampling_params":{"n":2}}'), PRIVATE) is None


def test_many_ids_are_mapped_by_one_search() -> None:
    count = 300
    names = tuple(f"job-{index}" for index in range(count))
    ids = Ids(names, tuple(f"{HEX}{index:08x}" for index in range(count)))
    id_mapping = id_mapping_for(parsed({"input_ids": [[1]] * count, "rid": list(names)}), ids)
    assert id_mapping is not None
    text = ",".join(f'"{name}"' for name in ids.dispatch).encode()
    assert id_mapping.map(text) == ",".join(f'"{name}"' for name in names).encode()
