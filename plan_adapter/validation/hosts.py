"""Checks the hosts of a plan, and on which of them a run works."""

from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from plan_adapter.expressions import Template
from plan_adapter.expressions.references import longest_paths
from plan_adapter.model.inventory import EVERY, MAX_HOSTS, ON, Inventory, PatternError, is_host_name
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.readable import is_secret_name
from plan_adapter.model.values import join
from plan_adapter.validation.findings import Findings

CODE = "bad-hosts"


def check_hosts(plan: ExecutionPlan, findings: Findings) -> None:
    """Add the problems of the hosts of `plan`."""
    if isinstance(plan.hosts, str):
        hint = "load this plan with `load_plan` or the command line, which also read its inventory"
        findings.add(CODE, "hosts", f"the inventory `{plan.hosts[:80]}` was not read", hint)
    inventory = plan.inventory
    if inventory is None:
        return
    if plan.inputs[ON].type != "string":
        findings.add(CODE, f"inputs.{ON}.type", f"`{ON}` says on which hosts a run works, and is a text", "write `type: string`")
    _check_names(inventory, findings)
    if loop := inventory.find_loop():
        names = " → ".join(f"`{name}`" for name in loop)
        findings.add(
            CODE, f"{join('hosts', loop[0])}.children", f"the groups contain each other in a circle: {names}", "remove one of them"
        )
    for name, group in inventory.groups.items():
        for index, child in enumerate(group.children):
            if child not in inventory.groups:
                at = f"{join('hosts', name)}.children[{index}]"
                findings.add(CODE, at, f"no group is called `{child[:80]}`", did_you_mean(child, [*inventory.groups]))
        _check_variables(group.vars, f"{join('hosts', name)}.vars", findings)
        for host, variables in group.hosts.items():
            _check_variables(variables, join(f"{join('hosts', name)}.hosts", host), findings)
    if not (count := len(inventory.members[EVERY])) or count > MAX_HOSTS:
        how_many = f"there are {count} hosts, and at most {MAX_HOSTS} are allowed" if count else "there is no host"
        findings.add(CODE, "hosts", how_many, "name hosts, or remove `hosts`")
        return
    for host, variable, first, second in inventory.conflicts():
        message = f"`{first}` and `{second}` give `{host}` different values of `{variable}`, and that of `{second}` counts"
        findings.warn(CODE, join(f"{join('hosts', second)}.vars", variable), message, "give the host a value of its own")
    _check_addresses(inventory, findings)


def _check_names(inventory: Inventory, findings: Findings) -> None:
    hint = "use letters, digits, `.`, `-` and `_`; give an address as the variable `host`"
    for name, group in inventory.groups.items():
        at = join("hosts", name)
        if not is_host_name(name):
            findings.add(CODE, at, f"{name[:80]!r} cannot be the name of a group", hint)
        if name in inventory.members[EVERY]:
            findings.add(CODE, at, f"`{name}` is the name of a group and of a host", "rename one of them")
        for host in group.hosts:
            if not is_host_name(host):
                findings.add(CODE, join(f"{at}.hosts", host), f"{host[:80]!r} cannot be the name of a host", hint)


def _check_variables(variables: Mapping[str, JsonValue], at: str, findings: Findings) -> None:
    for name in filter(is_secret_name, variables):
        message = f"`{name}` looks like a secret, and everybody who sees the plan would see it"
        findings.add(CODE, join(at, name), message, "remove it: steps get secrets with `${{ secrets.NAME }}`, and hosts accept a key")


def _check_addresses(inventory: Inventory, findings: Findings) -> None:
    """Warn of two names of one host, and add a problem for each variable of a connection that has another type."""
    names: dict[tuple[object, object], str] = {}
    for name, host in inventory.hosts.items():
        wrong = next((member for member in ("host", "user", "jump") if not isinstance(host[member], str | None)), None)
        wrong = "port" if isinstance(host["port"], bool) or not isinstance(host["port"], int | None) else wrong
        if wrong is not None:
            wanted = "a whole number" if wrong == "port" else "a text"
            findings.add(CODE, "hosts", f"the {wrong} of `{name}` must be {wanted}, not {host[wrong]!r:.80}", f"write {wanted}")
        other = names.setdefault((str(host["host"]), host["port"]), name)
        if other != name:
            message = f"`{other}` and `{name}` are the same host, {host['host']}: steps for each host would run on it twice"
            findings.warn(CODE, "hosts", message, "remove one of them")


def find_bad_limit(plan: ExecutionPlan, lists: Iterable[Template], inputs: Mapping[str, JsonValue]) -> list[Problem]:
    """Return the problem of the hosts that a run with `inputs` works on: they do not exist, or no list in `lists` has one of them."""
    inventory = plan.inventory
    if inventory is None:
        return []
    on, at = str(inputs[ON]), f"inputs.{ON}"
    try:
        chosen = {*inventory.select(on)}
    except PatternError as error:
        return [Problem("unknown-hosts", at=at, message=str(error), hint=error.hint)]
    used = {str(path[1]) for template in lists for path in _hosts_in(template)}
    if chosen and (not used or any(chosen.intersection(inventory.select(pattern)) for pattern in used)):
        return []
    where = " and ".join(f"`hosts('{pattern}')`" for pattern in sorted(used)) if used and chosen else "the hosts of the plan"
    return [Problem("unknown-hosts", at=at, message=f"`{on}` leaves no host of {where}", hint=f"`{EVERY}` stands for every host")]


def _hosts_in(template: Template) -> list[tuple[str | int, ...]]:
    return [path for path in longest_paths(str(template.source)) if path[0] == "hosts"]
