"""Many scrapes as one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.control.exposition_merge import Merger

ONE = b"""# HELP up A gauge.
# TYPE up gauge
up 1
# HELP x:ttft_seconds A histogram.
# TYPE x:ttft_seconds histogram
x:ttft_seconds_bucket{le="0.1",model="a{b}"} 3
x:ttft_seconds_bucket{le="+Inf",model="a{b}"} 4.0
x:ttft_seconds_sum{model="a{b}"} 1e-7
x:ttft_seconds_count{model="a{b}"} 4
plain{} 7 1700000000000
"""


def merge(*scrapes: tuple[str, bytes]) -> str:
    merger = Merger()
    for worker, scrape in scrapes:
        for _ in merger.add(worker, scrape):
            pass
    merged = b"".join(merger.render())
    assert merger.size == sum(len(line) + 1 for line in merged.splitlines() if line[:1] != b"#")
    return merged.decode()


def test_families_of_all_workers_stand_together_with_one_head() -> None:
    text = merge(("http://a:1", ONE), ("http://b:1", ONE))
    assert text.count("# TYPE up gauge") == text.count("# HELP x:ttft_seconds A histogram.") == 1
    assert text.splitlines()[2:4] == ['up{worker="http://a:1"} 1', 'up{worker="http://b:1"} 1']
    assert 'x:ttft_seconds_sum{worker="http://b:1",model="a{b}"} 1e-7' in text
    assert 'plain{worker="http://a:1"} 7 1700000000000' in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["x:ttft_seconds"].type == "histogram"
    assert len(families["x:ttft_seconds"].samples) == 8


@pytest.mark.parametrize(
    ("worker", "scrape", "merged"),
    [
        ("w", b'm{worker="0",a="worker=1"} 1\n', 'm{worker="w",exported_worker="0",a="worker=1"} 1\n'),
        ('a"\\\n', b"m 1\n", 'm{worker="a\\"\\\\\\n"} 1\n'),
        ("w", b"# EOF\n#\n\n   \n{} 1\n9 1\n# odd comment\nm 1\r\n", 'm{worker="w"} 1\n'),
        (
            "w",
            b'm_bucket{le="1"} 3 # {trace="x"} 0.5 1.0\nn 1e3\t17  # odd\no{a="\\"}\\\\",} +Inf \n',
            'm_bucket{worker="w",le="1"} 3\nn{worker="w"} 1e3\t17\no{worker="w",a="\\"}\\\\",} +Inf\n',
        ),
    ],
    ids=["label of the same name", "escaped URL", "no samples", "parts of other formats"],
)
def test_each_sample_gets_the_label_of_its_worker(worker: str, scrape: bytes, merged: str) -> None:
    assert merge((worker, scrape)) == merged


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"hello world",
        b'm{a="b"}',
        b'm{a="b" 1',
        b'm{a="b} 1',
        b"m{a} 1",
        b'm{a="b"c="d"} 1',
        b"m 1 soon",
        b"m 1.2.3",
        b'm{a="\xff"} 1',
        b"# HELP m caf\xe9",
        b"# TYPE m thing",
        b"# TYPE m",
        b"# HELP 9 m",
    ],
)
def test_line_that_makes_a_scraper_reject_the_scrape_is_left_out(line: bytes) -> None:
    """An invalid line of one worker does not cost the metrics of the others."""
    assert merge(("w", line + b"\nm 1\n"), ("v", b"m 2\n")) == 'm{worker="w"} 1\nm{worker="v"} 2\n'


def test_sample_that_does_not_belong_to_the_family_before_it_is_a_family_of_its_own() -> None:
    text = merge(("w", b"# TYPE a gauge\na 1\nab 2\n"), ("v", b"ab 3\n# TYPE a gauge\na 4\n"))
    assert text == ('# TYPE a gauge\na{worker="w"} 1\na{worker="v"} 4\nab{worker="w"} 2\nab{worker="v"} 3\n')


_NEARLY = st.text(alphabet=' \t#am_19.{}=",\\+-e\né', max_size=40).map(str.encode)


@given(
    st.lists(st.tuples(st.sampled_from("wv"), st.binary(max_size=60) | _NEARLY | st.just(ONE)), max_size=4)
)
def test_any_bytes_merge_into_lines_that_all_name_a_worker(scrapes: list[tuple[str, bytes]]) -> None:
    """A scraper can parse all of them."""
    merged = merge(*scrapes)
    list(text_string_to_metric_families(merged))
    for line in merged.split("\n")[:-1]:
        assert line.startswith("#") or re.search(r'\{worker="[wv]"', line), line
