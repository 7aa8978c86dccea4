"""What the CLI's exit status says, for scripts."""

from __future__ import annotations

from collections.abc import Mapping

from planner import errors

OK = 0
UNEXPECTED = 1
USAGE = 2
NOT_FOUND = 3
INVALID_INPUT = 4
INFEASIBLE = 5
CONFLICT = 6
UNAVAILABLE = 7
DEPLOYMENT_FAILED = 8
FORBIDDEN = 9
INTERRUPTED = 130

MEANINGS: Mapping[int, str] = {
    OK: "done",
    UNEXPECTED: "unexpected error",
    USAGE: "wrong command line",
    NOT_FOUND: "no such graph, plan, inventory or deployment",
    INVALID_INPUT: "a module, graph, inventory, option or batch that can never work",
    INFEASIBLE: "no plan exists; the message says what lacks",
    CONFLICT: "the state of things forbids it now, or a limit of the server is reached",
    UNAVAILABLE: "the server or a daemon does not answer",
    DEPLOYMENT_FAILED: "a rollout, a deployment or a batch in it failed",
    FORBIDDEN: "the server does not know the caller, or does not let it do this",
    INTERRUPTED: "interrupted",
}

# The first class that fits counts.
_BY_ERROR: Mapping[type[errors.PlannerError], int] = {
    errors.InvalidArgument: INVALID_INPUT,
    errors.Corrupt: INVALID_INPUT,
    errors.Infeasible: INFEASIBLE,
    errors.Unauthenticated: FORBIDDEN,
    errors.Forbidden: FORBIDDEN,
    errors.NotFound: NOT_FOUND,
    errors.Conflict: CONFLICT,
    errors.ResourceExhausted: CONFLICT,
    errors.Unavailable: UNAVAILABLE,
    errors.DeploymentFailed: DEPLOYMENT_FAILED,
    errors.MicrobatchFailed: DEPLOYMENT_FAILED,
    errors.Cancelled: INTERRUPTED,
}


def exit_code_of(error: errors.PlannerError) -> int:
    return next((code for kind, code in _BY_ERROR.items() if isinstance(error, kind)), UNEXPECTED)
