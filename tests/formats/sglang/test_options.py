"""The options of this format."""

from __future__ import annotations

import pytest

from gateway.formats.contract import ReplyHead
from gateway.formats.sglang.options import DEFAULTS
from tests.formats.sglang.support import FORMAT, parsed, run, same
from tests.formats.support import EVENTS, JSON, View

LEAK = b'{"object":"error","message":"in /srv/eng/x.py of http://host/a/b","type":"500","code":500}'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream_mode": "fast"}, "stream_mode"),
        ({"passthrough_engine_errors": "yes"}, "passthrough_engine_errors"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_bad_setting_is_refused_by_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FORMAT.configured(options)


def test_settings_add_up_and_do_not_change_the_original_format() -> None:
    one = DEFAULTS.updated({"stream_mode": "incremental"})
    assert one.updated({"passthrough_engine_errors": "true"}).stream_mode == "incremental"
    assert DEFAULTS.stream_mode == "engine"


def given(options: dict[str, str], status: int, body: bytes) -> bytes:
    head = ReplyHead(status, JSON)
    request = parsed({"input_ids": [1]})
    return run(FORMAT.configured(options).reader(request, View(), same("a"), head), [body]).given


@pytest.mark.parametrize("status", [500, 502, 503])
def test_paths_are_removed_from_an_engines_message_about_its_own_failure(status: int) -> None:
    assert given({}, status, LEAK) == LEAK.replace(b"/srv/eng/x.py", b"<path>")
    assert given({"passthrough_engine_errors": "true"}, status, LEAK) == LEAK


@pytest.mark.parametrize("status", [200, 400, 404, 429])
def test_engines_message_about_a_request_is_unchanged(status: int) -> None:
    body = LEAK if status != 200 else b'{"text":"/srv/eng/x.py","meta_info":{}}'
    assert given({}, status, body) == body


@pytest.mark.parametrize(
    ("event", "cut"),
    [
        (b'data: {"error":{"message":"at /a/b.py","code":500}}\n\n', True),
        (b'data: {"error":{"message":"at /a/b.py","code":400}}\n\n', False),
        (
            b'data: {"text":"","meta_info":{"finish_reason":'
            b'{"type":"abort","status_code":500,"message":"at /a/b.py"}}}\n\n',
            True,
        ),
        (
            b'data: {"text":"","meta_info":{"finish_reason":'
            b'{"type":"abort","status_code":400,"message":"at /a/b.py"}}}\n\n',
            False,
        ),
    ],
)
def test_paths_are_cut_from_failures_inside_a_stream(event: bytes, cut: bool) -> None:
    request = parsed({"input_ids": [1], "stream": True})
    passed = run(FORMAT.reader(request, View(), same("a"), ReplyHead(200, EVENTS)), [event]).given
    assert passed == (event.replace(b"/a/b.py", b"<path>") if cut else event)


def test_generated_text_keeps_its_paths_where_the_engine_failed() -> None:
    finish = b'{"type":"abort","status_code":503,"message":"at /a/b.py"}'
    event = b'data: {"text":"open /etc/passwd/x","meta_info":{"finish_reason":%b}}\n\n'
    request = parsed({"input_ids": [1], "stream": True})
    passed = run(FORMAT.reader(request, View(), same("a"), ReplyHead(200, EVENTS)), [event % finish]).given
    assert passed == event % finish.replace(b"/a/b.py", b"<path>")
