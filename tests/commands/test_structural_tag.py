"""``--dyn-structural-tag`` and ``DYN_STRUCTURAL_TAG``: every value, once as either and both together."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gateway import sim
from gateway.cards.structural_tag import OFF, ON, StructuralTag
from gateway.commands import workers
from gateway.commands.main import app
from gateway.process import server
from gateway.settings import Cards, Settings, SettingsError, load_section
from gateway.sim import SimConfig
from gateway.stores.record import WorkerRecord
from tests.cards.policies import FALSE, FIELDS, REFUSED, TRUE

FLAG, VARIABLE = "--dyn-structural-tag", "DYN_STRUCTURAL_TAG"
ACCEPTED: dict[str, StructuralTag] = {
    **dict.fromkeys((*TRUE, "{}", " {} "), ON),
    **dict.fromkeys(FALSE, OFF),
    **{text: replace(ON, **members) for text, members in FIELDS.items()},
}


def loaded(flag: str | None = None) -> StructuralTag | None:
    return load_section(Cards, {"dyn_structural_tag": flag}).dyn_structural_tag


def error(flag: str | None = None) -> str:
    with pytest.raises(SettingsError) as raised:
        loaded(flag)
    return str(raised.value)


def test_there_are_as_many_values_as_in_the_review() -> None:
    assert len(ACCEPTED) + len(REFUSED) >= 63
    assert loaded() is None, "unset"


@pytest.mark.parametrize("text", ACCEPTED)
def test_valid_value_is_read_alike_and_the_flag_replaces_the_variable(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loaded(text) == ACCEPTED[text]
    for other in ('{"schema":"strict","exclude_special_tokens":true}', "no", "yes", "", "{", "[]"):
        monkeypatch.setenv(VARIABLE, other)
        assert loaded(text) == ACCEPTED[text], other
    monkeypatch.setenv(VARIABLE, text)
    assert loaded() == ACCEPTED[text]


@pytest.mark.parametrize("text", REFUSED)
def test_bad_value_is_an_error_of_the_flag_or_variable_that_has_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert error(text).startswith(f"{FLAG}: ")
    monkeypatch.setenv(VARIABLE, text)
    assert error().startswith(f"{VARIABLE}: ")
    assert error(text).startswith(f"{FLAG}: ")
    assert loaded("off") == OFF
    monkeypatch.setenv(VARIABLE, "yes")
    assert error(text).startswith(f"{FLAG}: ")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[StructuralTag | None]:
    """The policies that the commands would have run with."""
    policies: list[StructuralTag | None] = []

    def simulate(kind: str, config: SimConfig) -> int:
        policies.append(config.dyn_structural_tag)
        return 0

    def serve(settings: Settings) -> int:
        policies.append(settings.dyn_structural_tag)
        return 0

    def keep(record: WorkerRecord) -> None:
        policies.append(record.card.structural_tag)

    monkeypatch.setattr(sim, "main", simulate)
    monkeypatch.setattr(server, "run", serve)
    monkeypatch.setattr(workers, "_keep", keep)
    return policies


#: A command without the flag, and its policy without the variable.
COMMANDS: dict[str, tuple[list[str], StructuralTag | None]] = {
    "serve": (["serve"], None),
    "sim": (["sim", "vllm"], OFF),
    "workers add": (["workers", "add", "http://a:1", "--keep"], None),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("arguments", "variable", "policy"),
    [
        ([FLAG], None, ON),
        ([FLAG], "false", ON),
        ([FLAG, "off"], "", OFF),
        ([f"{FLAG}= Off "], "true", OFF),
        ([f'{FLAG}={{"scope":"auto"}}'], "true", replace(ON, scope="auto")),
        ([], '{"schema":"strict"}', replace(ON, schema="strict")),
        ([], None, None),
    ],
)
def test_command_takes_the_flag_with_and_without_a_value_and_the_variable(
    command: str,
    arguments: list[str],
    variable: str | None,
    policy: StructuralTag | None,
    given: list[StructuralTag | None],
) -> None:
    line, default = COMMANDS[command]
    result = CliRunner().invoke(app, [*line, *arguments], env={VARIABLE: variable})
    assert (result.exit_code, result.output) == (0, "")
    assert given == [policy or default]


@pytest.mark.parametrize("rest", [["--port", "0"], []])
def test_flag_stands_alone_before_another_flag_and_at_the_end(
    rest: list[str], given: list[StructuralTag | None]
) -> None:
    assert CliRunner().invoke(app, ["serve", FLAG, *rest]).exit_code == 0
    assert CliRunner().invoke(app, ["workers", "add", "--keep", FLAG, "--", "http://a:1"]).exit_code == 0
    assert given == [ON, ON]


def test_older_flags_and_variables_of_dynamo_do_nothing(
    given: list[StructuralTag | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its Python workers; a flag is an error, a variable is named as one that has no effect."""
    for name in ("ENABLE_STRUCTURAL_TAG", "STRUCTURAL_TAG_SCOPE", "STRUCTURAL_TAG_SCHEMA"):
        flag = f"--dyn-{name.lower().replace('_', '-')}"
        assert CliRunner().invoke(app, ["serve", flag, "true"]).exit_code == 2
        monkeypatch.setenv(f"DYN_{name}", "true")
    result = CliRunner().invoke(app, ["serve"])
    assert "not supported here: DYN_ENABLE_STRUCTURAL_TAG, DYN_STRUCTURAL_TAG_SCHEMA" in result.stderr
    assert given == [None]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("arguments", "variable", "named"),
    [
        ([f"{FLAG}="], "true", FLAG),
        ([FLAG, "  "], None, FLAG),
        ([FLAG, '{"x":1}'], None, FLAG),
        ([], "", VARIABLE),
        ([], "{", VARIABLE),
    ],
)
def test_bad_value_ends_the_command_with_exit_code_2_and_one_line(
    command: str,
    arguments: list[str],
    variable: str | None,
    named: str,
    given: list[StructuralTag | None],
) -> None:
    result = CliRunner().invoke(app, [*COMMANDS[command][0], *arguments], env={VARIABLE: variable})
    assert (result.exit_code, given) == (2, [])
    assert re.match(rf"tito-gateway( workers)?: {named}: ", result.stderr)
    assert result.stderr.count("\n") == 1
