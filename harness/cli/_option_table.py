"""Declare the options of a command as the fields of a class, each of them in one place.

A field says what click reads and shows, when the option is refused, and what a dry run says about
it; its name is the option's, with underscores. `command` makes a click command from the class and
runs it with an instance: so whatever acts on an option reads a typed attribute.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import attrs
import click

from harness._words import masked
from harness.cli._errors import InputError
from harness.cli._record_fields import FieldKind, RecordField
from harness.cli._records import Format

_OptionsT = TypeVar("_OptionsT")
_ROW = "harness row"


@attrs.frozen(kw_only=True)
class Facts:
    """What the options have to fit."""

    form: Format
    """How the input is written."""

    is_agent: bool | None = None
    """Whether the target is an agent; None if it isn't loaded yet."""


@attrs.frozen
class Refusal(Generic[_OptionsT]):
    """When an option doesn't go with the others, or with the facts."""

    when: Callable[[_OptionsT, Facts], bool]
    """Tells whether it is refused."""

    words: str
    """What is wrong and what to do; ``{option}``, ``{value}`` and ``{options}`` are filled in."""

    if_given: bool = True
    """Whether it applies to an option that is given; else to one that isn't."""


@attrs.frozen(kw_only=True)
class _Row:
    """What is declared of one option."""

    parameter: Callable[[str], click.Parameter]
    """Makes click's parameter from its name."""

    refusals: Sequence[Refusal[Any]] = ()
    plan: Callable[[Any], str] | None = None
    field: FieldKind | None = None
    is_setting: bool = False


def argument(metavar: str | None = None, *, many: bool = False, required: bool = True) -> Any:
    """Declare an argument, a text; shells complete it with the names of files.

    Args:
      metavar: What the help calls it; by default its name.
      many: Whether there may be several; the attribute is a tuple of them.
      required: Whether there has to be one.
    """
    nargs = -1 if many else 1

    def parameter(name: str) -> click.Parameter:
        return click.Argument(
            [name], type=click.Path(), metavar=metavar, nargs=nargs, required=required
        )

    return _declared(_Row(parameter=parameter))


def flag(help: str, *, refusals: Sequence[Refusal[Any]] = ()) -> Any:
    """Declare an option without a value; the attribute is whether it is given.

    Args:
      help: What it is for.
      refusals: When it is refused.
    """

    def parameter(name: str) -> click.Parameter:
        return click.Option([_flag(name), name], is_flag=True, help=help)

    return _declared(_Row(parameter=parameter, refusals=refusals))


def option(
    help: str,
    metavar: str | None = None,
    *,
    type: Any = None,
    read: Callable[[Any], Any] | None = None,
    default: Any = None,
    shows_default: bool = True,
    required: bool = False,
    many: bool = False,
    short: str | None = None,
    refusals: Sequence[Refusal[Any]] = (),
    plan: str | Callable[[Any], str] | None = None,
    field: FieldKind | None = None,
    is_setting: bool = False,
) -> Any:
    """Declare an option with a value; the attribute is the value, None if there is none.

    Args:
      help: What it is for.
      metavar: What the help calls the value; None: as click calls its type.
      type: What click turns the given text into; None: the type of ``default``, else a text.
      read: Turns that into the value, or raises `click.BadParameter`.
      default: What is used if nothing is given; a text if there is a ``read``.
      shows_default: Whether the help says so.
      required: Whether it has to be given.
      many: Whether it may be given several times; the attribute is a tuple of the values.
      short: Another name for it, of one letter, such as ``-o``.
      refusals: When it is refused.
      plan: What a dry run says about a value: made from it, or with ``{}`` in its place.
      field: What the field of the records that it names is for, if its value is a text.
      is_setting: Whether a batch is resumed only if it has the same value.
    """

    def value(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        return given if given is None or read is None else read(given)

    by_default: dict[str, Any] = {}
    if default is not None:  # To click, a default of None is one.
        by_default = {"default": default, "show_default": shows_default}

    def parameter(name: str) -> click.Parameter:
        return click.Option(
            [*(() if short is None else (short,)), _flag(name), name],
            metavar=metavar,
            help=help,
            type=type,
            callback=value,
            required=required,
            multiple=many,
            **by_default,
        )

    words = plan.format if isinstance(plan, str) else plan
    return _declared(
        _Row(parameter=parameter, refusals=refusals, plan=words, field=field, is_setting=is_setting)
    )


def declared_in(options: type[Any], name: str) -> Any:
    """Declare an option as it is declared in ``options``."""
    row: _Row = getattr(attrs.fields(options), name).metadata[_ROW]
    return _declared(row)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _declared(row: _Row) -> Any:
    return attrs.field(metadata={_ROW: row})


# What is made from it ---------------------------------------------------------------------------


class _Command(click.Command):
    """A command that knows what some of its options are called elsewhere."""

    other_names: Mapping[str, str] = MappingProxyType({})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in self.other_names:
                raise
            words = f"No such option {error.option_name!r}; {self.other_names[error.option_name]}"
            raise click.NoSuchOption(error.option_name, words, ctx=ctx) from None


def command(
    name: str,
    options: type[_OptionsT],
    run: Callable[[_OptionsT], int | None],
    *,
    other_names: Mapping[str, str] = _Command.other_names,
) -> click.Command:
    """Return a command that takes ``options``, in their order, and runs with them.

    Args:
      name: What it is called.
      options: The class that declares them; its docstring is the command's help.
      run: Called with an instance; it returns the exit status.
      other_names: What to write instead of options that people look for and there aren't.
    """

    def callback(**given: Any) -> int | None:
        return run(options(**given))

    parameters = [row.parameter(field) for field, row in _rows(options)]
    made = _Command(name, params=parameters, callback=callback, help=inspect.getdoc(options))
    made.other_names = other_names
    return made


def refuse(options: Any, facts: Facts) -> None:
    """Refuse options that don't go with each other, or with the facts.

    Raises:
      InputError: for the first that doesn't.
    """
    for name, value, row in _given(options):
        for refusal in row.refusals:
            is_given = value is not None and value is not False
            if refusal.if_given == is_given and refusal.when(options, facts):
                # Addresses may have passwords in them.
                shown = masked(value) if isinstance(value, str) else value
                raise InputError(
                    refusal.words.format(option=_flag(name), value=shown, options=options)
                )


def plan_of(options: Any) -> list[str]:
    """Return what a dry run says about the options."""
    return [
        row.plan(value)
        for _, value, row in _given(options)
        if row.plan is not None and value is not None
    ]


def fields_of(options: Any) -> list[RecordField]:
    """Return the fields of records that the options name."""
    return [
        RecordField(row.field, value)
        for _, value, row in _given(options)
        if row.field is not None and isinstance(value, str)
    ]


def settings_of(options: Any) -> dict[str, Any]:
    """Return the settings that a batch must share with its earlier sessions, as given."""
    return {_flag(name): value for name, value, row in _given(options) if row.is_setting}


def _given(options: Any) -> Iterator[tuple[str, Any, _Row]]:
    for name, row in _rows(type(options)):
        yield name, getattr(options, name), row


def _rows(options: type[Any]) -> Iterator[tuple[str, _Row]]:
    for field in attrs.fields(options):
        yield field.name, field.metadata[_ROW]
