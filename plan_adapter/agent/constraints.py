"""Whether a plan keeps the constraints that were given: an order is an edge, and is checked; the rest is told as unchecked."""

from collections.abc import Mapping, Sequence

from plan_adapter.agent.decision import Claim
from plan_adapter.drafts import KeptConstraint
from plan_adapter.problems import Problem


def judged_constraints(
    texts: Sequence[str], claims: Sequence[Claim], ancestors: Mapping[str, frozenset[str]]
) -> tuple[list[KeptConstraint], list[Problem]]:
    """Return what is known of each constraint, and a problem for each claim that the plan does not keep.

    `ancestors` of each step: all that must have completed before it starts.
    """
    kept, problems = list[KeptConstraint](), list[Problem]()
    for number, text in enumerate(texts, 1):
        mine = [claim for claim in claims if claim.number == number]
        broken = [problem for claim in mine for problem in _broken(claim, text, ancestors)]
        problems += broken
        pairs = [(first, then) for claim in mine for first in claim.steps for then in claim.before]
        named = sorted({step for claim in mine for step in claim.steps})
        if pairs and not broken:
            how = ", ".join(f"`{first}` completes before `{then}` starts" for first, then in pairs)
            kept.append(KeptConstraint(number, text, checked=True, how=how))
        elif named:
            how = f"the model says that {', '.join(f'`{name}`' for name in named)} sees to it"
            kept.append(KeptConstraint(number, text, checked=False, how=how))
        else:
            kept.append(KeptConstraint(number, text, checked=False, how="nothing in the plan says how it is kept"))
    return kept, problems


def _broken(claim: Claim, text: str, ancestors: Mapping[str, frozenset[str]]) -> list[Problem]:
    at = f"constraints[{claim.number - 1}]"
    unknown = [name for name in dict.fromkeys((*claim.steps, *claim.before)) if name not in ancestors]
    if unknown:
        names = ", ".join(f"`{name[:64]}`" for name in unknown)
        return [Problem("unknown-step", at=at, message=f"no step is called {names}", hint="name steps of the plan")]
    return [
        Problem(
            "broken-constraint",
            at=at,
            message=f"`{then}` can start before `{first}` has completed, against the constraint {text[:200]!r}",
            hint=f"let `{then}` depend on `{first}`",
        )
        for first in claim.steps
        for then in claim.before
        if first not in ancestors[then]
    ]
