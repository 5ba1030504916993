"""`verb_references`: every verb as values, for a reference of the command line."""

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args, get_origin

from plan_adapter.cli.app import ADMIN_GROUPS, GROUPS, build_app
from plan_adapter.cli.examples import EXAMPLES, Example
from plan_adapter.cli.help_text import description_of, unwrapped, usage_of

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument


class OptionReference(NamedTuple):
    """An argument or an option of a verb."""

    names: tuple[str, ...]  # of an option with its dashes; of an argument in capitals, and also its option if it has one
    value: str  # the type of its value; "" for a switch
    text: str
    is_required: bool
    is_repeatable: bool


class VerbReference(NamedTuple):
    """A verb, as `plan VERB --help` explains it."""

    name: str
    group: str
    summary: str  # its line in `plan --help`
    usage: str
    description: str
    arguments: tuple[OptionReference, ...]
    options: tuple[OptionReference, ...]
    examples: tuple[Example, ...]
    page: str  # of the guide


def verb_references() -> Iterator[VerbReference]:
    """Yield every verb in the order of `plan --help` and `plan admin`. Imports all of them."""
    app = build_app()
    for group, verbs in (*GROUPS.items(), *ADMIN_GROUPS.items()):
        for verb in verbs:
            yield _reference_of(app[verb.name], verb.name, group, verb.help)


def _reference_of(verb: "App", name: str, group: str, summary: str) -> VerbReference:
    shown = [(argument.index is not None, _option_of(argument)) for argument in verb.assemble_argument_collection(parse_docstring=True)]
    return VerbReference(
        name=name,
        group=group,
        summary=summary,
        usage=usage_of(verb, name),
        description=description_of(unwrapped(inspect.getdoc(verb.default_command) or "")),
        arguments=tuple(option for is_argument, option in shown if is_argument),
        options=tuple(option for is_argument, option in shown if not is_argument),
        examples=EXAMPLES[name].examples,
        page=EXAMPLES[name].page,
    )


def _option_of(argument: "Argument") -> OptionReference:
    types = [kind for kind in get_args(argument.hint) if kind is not type(None)] if _is_optional(argument.hint) else [argument.hint]
    is_list = get_origin(types[0]) in (list, tuple)
    kind = get_args(types[0])[0] if is_list else types[0]
    names = argument.parameter.name or ()
    return OptionReference(
        names=(names,) if isinstance(names, str) else tuple(names),
        value=_value_of(kind),
        text=" ".join((argument.parameter.help or "").split()),
        is_required=argument.required,
        is_repeatable=is_list,
    )


def _is_optional(hint: object) -> bool:
    """Return whether `hint` is `… | None`."""
    return type(None) in get_args(hint)


def _value_of(kind: object) -> str:
    """Return how help writes a value: its type, or its choices."""
    if kind is bool:
        return ""
    return "|".join(map(str, get_args(kind))) if get_origin(kind) is Literal else getattr(kind, "__name__", str(kind)).upper()
