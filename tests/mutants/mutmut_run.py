"""Run mutmut with the options in a file, and write how each mutant ended: `python tests/mutants/mutmut_run.py OPTIONS.json RESULTS.json`.

This is a script, because the folder with the mutants has its own `plan_adapter` and `tests`. It changes four things about mutmut 3.8.1:

- It mutates functions with the decorators in WRAPPERS. mutmut leaves decorated functions as they are, because decorating each mutant may
  have side effects. But the functions that decide at a gate are decorated: `@writes` gives them their transaction. Here, these decorators
  are put around the function that switches between the mutants.
- It leaves the type in `cast(type, value)` as it is, which does nothing when the code runs.
- The processes that tests start run the code without mutants.
- A mutant's fastest tests run first.
"""

import json
import os
import sys
from pathlib import Path

from mutmut import configuration

PYTEST_RAISED, NOT_RUN = 255, "not run"
"""mutmut calls it a timeout if its call of pytest raises, such as for a test that does not exist. But then no test has run."""

WRAPPERS = {"reads", "writes", "records", "property", "cached_property", "cache"}


def is_wrapped(function):
    return all(getattr(each.decorator, "value", None) in WRAPPERS for each in function.decorators)


def change_mutmut():
    import libcst
    from mutmut.mutation import file_mutation, trampoline
    from mutmut.runners.harness import PytestRunner
    from mutmut.state import state

    visitor, arrange = file_mutation.MutationVisitor, file_mutation.function_trampoline_arrangement
    skips, mutate, arguments = visitor._skip_node_and_children, visitor._create_mutations, PytestRunner._pytest_args_regular_run
    types = set()  # the first argument of each `cast`

    def mutate_but_cast(self, node):
        if isinstance(node, libcst.Call) and getattr(node.func, "value", None) == "cast":
            types.add(node.args[0])
        else:
            mutate(self, node)

    def skips_unwrapped(self, node):
        if isinstance(node, libcst.FunctionDef) and node.decorators:
            return not is_wrapped(node)
        return node in types or skips(self, node)

    def arrange_wrapped(function, mutants, class_name):
        if not is_wrapped(function):
            return arrange(function, mutants, class_name)
        before, [switch, *copies], after, names = arrange(function.with_changes(decorators=[]), mutants, class_name)
        return before, [switch.with_changes(decorators=[*function.decorators, *switch.decorators]), *copies], after, names

    visitor._skip_node_and_children, visitor._create_mutations = skips_unwrapped, mutate_but_cast
    file_mutation.function_trampoline_arrangement = arrange_wrapped
    trampoline.set_mutant_under_test = lambda name: setattr(trampoline, "_mutant_under_test", name)
    PytestRunner._pytest_args_regular_run = lambda self, tests: arguments(
        self, sorted(tests, key=lambda test: (state().duration_by_test.get(test, 0), test))
    )


def results(path):
    """Yield the function, the change and the end of each mutant of a module."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key

    data = SourceFileMutationData(path=path)
    data.load()
    for name, code in data.exit_code_by_key.items():
        function, class_name = orig_function_and_class_names_from_key(name)
        lines = get_diff_for_mutant(name, path=path).splitlines()
        sides = (" ".join(line[1:].strip() for line in lines if line[0] == sign and line[:3] != sign * 3) for sign in "-+")
        where = function if class_name is None else f"{class_name}.{function}"
        yield [f"{where}: {' → '.join(sides)}", NOT_RUN if code == PYTEST_RAISED else status_by_exit_code[code]]


if __name__ == "__main__":
    options, written = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]).absolute()
    configuration._config_reader = lambda: options.get
    change_mutmut()
    from mutmut.__main__ import cli

    cli(["run", "--max-children", options["children"]], standalone_mode=False)
    found = [each for path in options["only_mutate"] for each in results(path)]
    written.write_text(json.dumps(found, ensure_ascii=False, indent=1), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # mutmut may leave a thread
