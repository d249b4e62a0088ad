"""One declaration of an option is all that a command needs to have it."""

from __future__ import annotations

from typing import Any

import attrs
import click
import pytest

from harness.cli._errors import InputError
from harness.cli._option_table import (
    Facts,
    Refusal,
    argument,
    command,
    fields_of,
    flag,
    option,
    plan_of,
    refuse,
    settings_of,
)
from harness.cli._option_values import count
from harness.cli._options import BatchOptions
from harness.cli._record_fields import PRIORITY, RecordField

LINES = Facts(form="lines")
CSV = Facts(form="csv", is_agent=False)


@attrs.frozen(kw_only=True)
class Tea:
    """Make tea."""

    kind: str = argument()
    sugar_lumps: int = option(
        "How sweet.",
        "N",
        read=count("leave it out for one"),
        default="1",
        plan="{:,} lumps",
        is_setting=True,
    )
    guest: str | None = option(
        "Who is first.",
        "FIELD",
        field=PRIORITY,
        refusals=[
            Refusal(lambda tea, facts: facts.form == "lines", "{option} {value} names a field"),
            Refusal(lambda tea, facts: tea.cold, "for a {options.kind} name a guest", False),
        ],
        plan=lambda name: f"after {name}",
    )
    cold: bool = flag("With ice.")


def given(*words: str) -> Tea:
    """Return what the command is run with."""
    ran: list[Tea] = []
    made = command("tea", Tea, ran.append)
    made.main(list(words), standalone_mode=False)
    return ran[0]


def test_attributes_are_what_is_given_or_the_default() -> None:
    assert given("green") == Tea(kind="green", sugar_lumps=1, guest=None, cold=False)
    assert given("green", "--sugar-lumps", "3", "--guest", "age", "--cold") == Tea(
        kind="green", sugar_lumps=3, guest="age", cold=True
    )


def test_what_can_not_be_read_is_refused_with_its_option() -> None:
    with pytest.raises(click.BadParameter) as caught:
        given("green", "--sugar-lumps", "few")
    assert "Invalid value for '--sugar-lumps': few is not a whole number" in (
        caught.value.format_message()
    )


def test_help_is_the_docstring_and_the_options_in_their_order() -> None:
    made = command("tea", Tea, lambda tea: None)
    text = made.get_help(click.Context(made, info_name="tea"))
    assert "Make tea." in text
    words = ("KIND", "--sugar-lumps N  How sweet.  [default: 1]", "--guest FIELD", "--cold")
    assert sorted(map(text.index, words)) == list(map(text.index, words))


def test_a_refusal_is_about_an_option_that_is_given_or_one_that_is_not() -> None:
    refuse(given("green", "--guest", "age", "--cold"), CSV)
    refuse(given("green"), LINES)
    with pytest.raises(InputError, match=r"^--guest age names a field$"):
        refuse(given("green", "--guest", "age"), LINES)
    with pytest.raises(InputError, match=r"^for a green name a guest$"):
        refuse(given("green", "--cold"), CSV)


def test_a_dry_run_tells_of_what_has_a_value() -> None:
    assert plan_of(given("green")) == ["1 lumps"]
    assert plan_of(given("green", "--guest", "age")) == ["1 lumps", "after age"]


def test_fields_and_settings_are_told_from_the_others() -> None:
    assert fields_of(given("green")) == []
    assert fields_of(given("green", "--guest", "age")) == [RecordField(PRIORITY, "age")]
    assert settings_of(given("green")) == {"--sugar-lumps": 1}


# The table of `harness batch` ------------------------------------------------------------------


def batch(**options: Any) -> BatchOptions:
    """Return options that are all left out but these and the output."""
    flags = ("skip_bad", "resume", "retry_failed", "keep_logs", "force", "ordered")
    none = {
        **dict.fromkeys(field.name for field in attrs.fields(BatchOptions)),
        **dict.fromkeys(flags, False),
    }
    return BatchOptions(**{**none, "output": "out.jsonl", **options})


def test_a_journal_goes_on_only_with_the_settings_it_was_begun_with() -> None:
    """What changes the answers, or which record is which. One more refuses older journals."""
    assert list(settings_of(batch())) == [
        "--format",
        "--key",
        "--prompt",
        "--model",
        "--code-version",
    ]


@pytest.mark.parametrize(
    "name", ["resume", "retry_failed", "force", "max_attempts", "code_version", "keep_logs"]
)
def test_what_is_about_a_journal_needs_one(name: str) -> None:
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} says how to go on with"):
        refuse(batch(**{name: True}), CSV)
    refuse(batch(journal="run.db", resume=True, **({} if name == "resume" else {name: True})), CSV)
