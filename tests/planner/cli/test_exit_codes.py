"""What a command ends with: the error's own status, one line, and a traceback only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner import errors
from planner.cli import __main__ as command_line
from planner.cli import exit_codes

STATUSES = {
    errors.PlannerError: 1,
    errors.InvalidArgument: 4,
    errors.GraphError: 4,
    errors.UnsupportedModule: 4,
    errors.InventoryError: 4,
    errors.OptionsError: 4,
    errors.Infeasible: 5,
    errors.Unauthenticated: 9,
    errors.Forbidden: 9,
    errors.NotFound: 3,
    errors.Conflict: 6,
    errors.RequestIdReused: 6,
    errors.NotDeployable: 6,
    errors.DeviceGone: 6,
    errors.DeviceFull: 6,
    errors.DeviceTaken: 6,
    errors.BuffersInUse: 6,
    errors.WrongOffset: 6,
    errors.ResourceExhausted: 6,
    errors.Corrupt: 4,
    errors.Unavailable: 7,
    errors.AwayForNow: 7,
    errors.NotLeading: 7,
    errors.PlanInvariantError: 1,
    errors.DeploymentFailed: 8,
    errors.MicrobatchFailed: 8,
    errors.StateLost: 8,
    errors.StepNotApplied: 8,
    errors.Cancelled: 130,
}


def tree(root: type[errors.PlannerError]) -> set[type[errors.PlannerError]]:
    below = {kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__}
    return {root}.union(*map(tree, below))


def ended(monkeypatch: pytest.MonkeyPatch, app: Callable[..., object]) -> object:
    monkeypatch.setattr(command_line, "app", app)
    with pytest.raises(SystemExit) as raised:
        command_line.main(["x"])
    return raised.value.code


def raising(error: BaseException) -> Callable[..., object]:
    def app(**_: object) -> None:
        raise error

    return app


@pytest.mark.parametrize("kind", STATUSES)
def test_each_error_has_its_status_and_says_one_line(
    kind: type[errors.PlannerError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, raising(kind("what was found"))) == STATUSES[kind]
    assert capsys.readouterr() == ("", "error: what was found\n")
    assert exit_codes.exit_code_of(kind("")) in exit_codes.MEANINGS


def test_no_error_is_forgotten() -> None:
    assert tree(errors.PlannerError) == set(STATUSES)


def test_a_command_that_returns_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[object] = []
    assert ended(monkeypatch, lambda args, prog_name: arguments.extend((*args, prog_name))) == 0
    assert arguments == ["x", "planner-cli"]


def test_ctrl_c_is_an_interruption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(monkeypatch, raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


def test_memory_that_does_not_suffice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(monkeypatch, raising(MemoryError())) == 1
    assert capsys.readouterr().err.startswith("error: this machine's memory does not suffice")


def test_a_defect_is_named_and_shown_whole_where_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PLANNER_DEBUG", raising=False)
    assert ended(monkeypatch, raising(ValueError("a [bold]defect"))) == 1
    assert capsys.readouterr().err == "unexpected ValueError: a [bold]defect (PLANNER_DEBUG=1 shows where)\n"
    monkeypatch.setenv("PLANNER_DEBUG", "1")
    with pytest.raises(ValueError, match="defect"):
        command_line.main(["x"])
