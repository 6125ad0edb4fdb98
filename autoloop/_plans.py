"""What a plan may hold and where it may run: the forms that this version knows."""

from __future__ import annotations

from autoloop import _form, _legal
from autoloop._forms import FORMS
from autoloop._plan import Plan
from autoloop._records import PlanError

ALL_FORMS: _form.Forms = {form.name: form for form in FORMS}


def runs_on_host(plan: Plan) -> bool:
    """Whether a plan needs a Python loop."""
    return _legal.on_host(plan, ALL_FORMS)


def runs_in_trace(plan: Plan) -> bool:
    """Whether a plan can be part of any outer trace: one program, no XLA options, differentiable."""
    plain = all(ALL_FORMS[c.form].reverse_differentiable for c in plan.choices)
    return plain and not plan.options and not runs_on_host(plan)


def is_known(text: str) -> bool:
    """Whether a text is a plan of this version: a newer one's record may hold others."""
    try:
        check_plan(text)
    except ValueError:
        return False
    return True


def check_plan(text: str | Plan) -> Plan:
    """The plan, if its forms exist and take what it gives them.

    Raises:
        TypeError: neither a text nor a plan.
        ValueError: not the text of a plan, or a form that does not exist.
    """
    if isinstance(text, str) and not text.strip():
        written = f"write {str(Plan())!r} for the function as you wrote it"
        raise PlanError(f"a plan must say something; got {text!r}; {written}")
    plan = Plan.parse(text)
    for choice in plan.choices:
        if reason := _legal.form_why_not(choice, ALL_FORMS):
            raise PlanError(reason)
        number = choice.parameter
        if isinstance(number, int) and number < 1:
            raise PlanError(f"{choice}: the number must be at least 1; got {number}")
    if reason := _legal.option_why_not(plan):
        raise PlanError(reason)
    return plan
