"""A step's time on other numbers of ranks, by the curve through the sizes of a study."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from runner.base.errors import UsageError
from runner.tools.costs.fit import Fit
from runner.tools.costs.study import STRONG, WEAK, Size, Study
from runner.tools.plan.predicted import UNCHECKED, Outlook, PredictedStep, grown
from runner.tools.plan.prediction import Prediction


def by_curve(given: Namespace, study: Study, check: Callable[[int], object]) -> Outlook:
    """Predict.

    Args:
        check: raises UsageError where the layout cannot have so many ranks.

    Raises:
        UsageError: the study has too few sizes.
    """
    found = Outlook(unit="samples" if all(size.batch for size in study.sizes) else "steps")
    for scaling in (STRONG, WEAK):
        fit, base = study.fit(scaling), study.base(scaling)
        if fit is None or base is None:
            continue
        error = max([fit.spread, *(abs(one) for _, one in fit.errors)] if fit.errors else [fit.spread, UNCHECKED])
        largest = max(size.ranks for size in study.measured(scaling))
        found.steps += [_step(ranks, fit, base, grown(error, ranks, largest), check) for ranks in given.ranks]
        found.errors += [(scaling, ranks, error) for ranks, error in fit.errors]
        found.assumptions.append(_line(given.study, study, scaling, fit, error))
    if not found.steps:
        raise UsageError(
            f"{given.study} has fewer than two sizes that were measured",
            fix="measure another one, or give --bench or --gpu",
        )
    return found


def _step(ranks: int, fit: Fit, base: Size, error: float, check: Callable[[int], object]) -> PredictedStep:
    try:
        check(ranks)
    except UsageError as problem:
        return PredictedStep(scaling=base.scaling, ranks=ranks, problem=problem.message)
    seconds, computing = fit.seconds(ranks), fit.c / (1 if fit.weak else ranks)
    return PredictedStep(
        scaling=base.scaling,
        ranks=ranks,
        samples=base.batch * (ranks / base.ranks if fit.weak else 1),
        prediction=Prediction(
            seconds=seconds,
            low=seconds / (1 + error),
            high=seconds * (1 + error),
            computing=computing,
            exchange=max(0.0, seconds - computing),
        ),
    )


def _line(path: str, study: Study, scaling: str, fit: Fit, error: float) -> str:
    sizes = ", ".join(str(size.ranks) for size in study.measured(scaling))
    costs = ", ".join(f"{name} {1e3 * cost:.3g} ms" for name, cost in (("c", fit.c), ("a", fit.a), ("b", fit.b)))
    kind = (
        "the largest error"
        if fit.errors
        else "the spread"
        if error > UNCHECKED
        else "an assumption, as four sizes check it"
    )
    return (
        f"a step, {scaling} scaling: {'c' if fit.weak else 'c/n'} + a + b·n through what {path} measured on {sizes} ranks: {costs}; "
        f"interval: {error:.0%}, {kind}, and as much again for each doubling of the largest"
    )
