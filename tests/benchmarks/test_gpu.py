"""The one command for machines with GPUs, on a CPU: whoever has such a machine first should not find that it breaks."""

from __future__ import annotations

import pytest

from benchmarks.gpu.__main__ import SUITES, main


@pytest.mark.slow
@pytest.mark.services
def test_every_suite_runs_and_finds_what_the_module_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--quick"]) == 0
    output = capsys.readouterr().out
    assert all(f"| {suite} |" in output for suite in SUITES)
    assert "bitwise the module's" in output


def test_without_a_gpu_it_says_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        main([])
    assert "--device cpu" in capsys.readouterr().err
