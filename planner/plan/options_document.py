"""Options as plain lists, numbers and strings, for a database column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from planner.partition.modes.table import MODES
from planner.partition.objective import Activations, Objective, PipelineSchedule, Training
from planner.plan.options import PlanOptions, RatesFrom, Routing, ShapeBucket


def options_document(options: PlanOptions) -> dict[str, Any]:
    document = asdict(options)
    document["mode"] = {"name": options.mode.name, **document["mode"]}
    document["objective"] = options.objective.value
    document["routing"] = options.routing.value
    document["rates_from"] = options.rates_from.value if options.rates_from else None
    if options.training is not None:
        document["training"]["schedule"] = options.training.schedule.value
        document["training"]["activations"] = options.training.activations.value
    return document


def options_from_document(document: Mapping[str, Any]) -> PlanOptions:
    """The inverse, equal to what was given."""
    fields = {
        name: _tuples(content) for name, content in document.items() if name not in ("mode", "training", "buckets")
    }
    mode = {name: _tuples(content) for name, content in document["mode"].items()}
    training = document["training"]
    return PlanOptions(
        **{
            **fields,
            "mode": MODES[mode.pop("name")](**mode),
            "objective": Objective(document["objective"]),
            "routing": Routing(document["routing"]),
            "rates_from": document["rates_from"] and RatesFrom(document["rates_from"]),
            "training": training and _training(training),
            "buckets": tuple(
                ShapeBucket(symbol_values=_tuples(bucket["symbol_values"]), weight=bucket["weight"])
                for bucket in document["buckets"]
            ),
        }
    )


def _training(document: Mapping[str, Any]) -> Training:
    schedule, activations = PipelineSchedule(document["schedule"]), Activations(document["activations"])
    return Training(**{**document, "schedule": schedule, "activations": activations})


def _tuples(content: Any) -> Any:
    return tuple(map(_tuples, content)) if isinstance(content, (list, tuple)) else content
