"""Whether a captured program gives the numbers that its module gives, on the example inputs.

A module may ask whether it is being captured, and go another way then: transformers leaves the mask out of some
attentions where they simply run, and builds it where they are exported. Daemons run what was captured, so that their
answers would be others than the module's, and no error would say so.

Or it counts its calls in an attribute, to cool a temperature down, or leaves a layer out as Python's random numbers
say. What stood in the attribute when it was captured, or was drawn then, is in the program for ever, and a training
goes on with the first step's temperature.

In training, too, gradients of both are compared: what a forward does to autograd by other means than operators, as
torch.utils.checkpoint does, torch.export leaves out.

Both run once from one seed, so that torch's random numbers are the same, and again where they differ: what does not
agree with itself is left alone. A module that changed an attribute or drew Python's numbers is called again and again,
with nothing put back but what programs hold as well. What cannot be compared is left alone, and a forward that raises
outside of torch.export too; of a program that raises is told why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from planner.client.export.dtypes import has_fractions
from planner.client.export.example_runs import WITHOUT_COMPARISON, Outputs, Runs

# Of eight layers that are each left out at one call in ten, every other call leaves one out.
_CALLS, _CALLS_THAT_DRAW = 2, 8


def difference_of_numbers(runs: Runs) -> str:
    """What to say of the output that is farthest off, where that is more than other roundings explain; else nothing."""
    rounding = runs.rounding
    try:
        with runs.of_module() as calls:
            given = calls.run()
            causes = _Causes(kept=calls.changed(), are_drawn=calls.are_drawn())
        return (
            _between_calls(runs, causes, rounding)
            or _of_program(runs, given, rounding)
            or _of_gradients(runs, rounding)
        )
    except Exception:
        # What runs only under torch.export cannot be compared, and is exported all the same.
        return _failure_of_program(runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Causes:
    """That a call may be another than the one before: attributes that it changed, and Python's or numpy's draws."""

    kept: list[str]
    are_drawn: bool

    def __str__(self) -> str:
        kept = [f"keeps {', '.join(self.kept)} in Python"] if self.kept else []
        drawn = ["draws Python's or numpy's random numbers"] if self.are_drawn else []
        return " and ".join(kept + drawn)


def _failure_of_program(runs: Runs) -> str:
    error = runs.failure_of_program()
    if error is None:
        return ""
    first_line = str(error).strip().partition("\n")[0]
    return (
        f"{runs.name}: what torch.export captured cannot be run on the example inputs here, and can on daemons only if "
        f"their devices make the difference: {type(error).__name__}: {first_line}. {WITHOUT_COMPARISON}"
    )


def _of_program(runs: Runs, given: Outputs, rounding: float) -> str:
    made = runs.of_program()
    farthest = _farthest(given, made, rounding)
    if farthest is None:
        return ""
    with runs.of_module() as calls:
        again = calls.run()
    if _farthest(given, again, rounding) or _farthest(made, runs.of_program(), rounding):
        return ""
    name, difference, largest = farthest
    cause = (
        "Somewhere the forward writes it in a way that torch.export does not capture."
        if name.startswith("buffer")
        else "Somewhere the forward asks whether it is being captured: models of transformers do where they build "
        'attention masks, and agree with attn_implementation="eager". Or it sets the seed of random numbers, which no '
        "program does."
    )
    return (
        f"{runs.name}: on the example inputs, what torch.export captured gives other numbers than the "
        f"module: {name} is off by {difference:.2g}, its largest value being {largest:.2g}. Daemons run what was "
        f"captured. {cause} {WITHOUT_COMPARISON}"
    )


def _of_gradients(runs: Runs, rounding: float) -> str:
    if not runs.have_gradients:
        return ""
    given = runs.gradients_of_module()
    farthest = farthest_gradient(given, runs.gradients_of_program(), rounding)
    if farthest is None or farthest_gradient(given, runs.gradients_of_module(), rounding):
        return ""
    name, difference, largest = farthest
    return (
        f"{runs.name}: on the example inputs, what torch.export captured is trained otherwise than the module: the "
        f"gradient of {name} is off by {difference:.2g}, its largest value being {largest:.2g}. Somewhere the forward "
        f"changes what autograd does, and torch.export does not capture it. {WITHOUT_COMPARISON}"
    )


def farthest_gradient(given: Outputs, other: Outputs, rounding: float) -> tuple[str, float, float] | None:
    """The name, difference and largest value of the gradient that is farthest off for its size, if any is too far.

    Those that are next to nothing beside others are nothing but roundings.
    """
    pairs = [
        (name, torch.zeros_like(two) if one is None else one, torch.zeros_like(one) if two is None else two)
        for (name, one), (_, two) in zip(given, other, strict=True)
        if one is not None or two is not None
    ]
    apart = {name: _difference(one, two) for name, one, two in pairs}
    least = rounding * max((largest for _, largest in apart.values()), default=0.0)
    beyond = [
        (difference / max(largest, least), name, difference, largest)
        for name, (difference, largest) in apart.items()
        if difference > rounding * max(largest, least)
    ]
    if not beyond:
        return None
    _, name, difference, largest = max(beyond)
    return name, difference, largest


def _between_calls(runs: Runs, causes: _Causes, rounding: float) -> str:
    if not (causes.kept or causes.are_drawn):
        return ""
    with runs.of_module() as calls:
        first = calls.run()
        for _ in range(_CALLS_THAT_DRAW if causes.are_drawn else _CALLS):
            farthest = _farthest(first, calls.run(), rounding)
            if farthest is not None:
                name, difference, largest = farthest
                return (
                    f"{runs.name}: on the same inputs, {name} is off by {difference:.2g} from one call to another, its "
                    f"largest value being {largest:.2g}. The forward {causes}, and what torch.export captured has what "
                    f"it met then for ever. Count in a buffer, and draw with torch. {WITHOUT_COMPARISON}"
                )
    return ""


def _farthest(given: Outputs, other: Outputs, rounding: float) -> tuple[str, float, float] | None:
    """The name, difference and largest value of the output that is farthest off for its size, if any is too far."""
    beyond = []
    for (name, one), (_, two) in zip(given, other, strict=True):
        if not (isinstance(one, torch.Tensor) and one.numel() and has_fractions(one)):
            continue
        difference, largest = _difference(one, two)
        if difference > rounding * largest:
            beyond.append((difference / largest if largest else math.inf, name, difference, largest))
    if not beyond:
        return None
    _, name, difference, largest = max(beyond)
    return name, difference, largest


def _difference(one: torch.Tensor, two: torch.Tensor) -> tuple[float, float]:
    """The largest one, and the largest finite value of both; infinite where only one has a number, and for shapes."""
    if one.shape != two.shape:
        return math.inf, float(one.abs().max())
    exact = torch.complex128 if one.is_complex() else torch.float64
    one, two = one.to(exact), two.to(exact)
    same = (one == two) | (one.isnan() & two.isnan())
    apart = torch.where(same, 0.0, (one - two).abs().nan_to_num(math.inf))
    sizes = torch.stack((one.abs(), two.abs())).nan_to_num(0.0, 0.0, 0.0)
    return float(apart.max()), float(sizes.max())
