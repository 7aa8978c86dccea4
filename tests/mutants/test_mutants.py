"""Every bug kept here still fits the source, and a patch that says too little is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.run import FOLDER, ROOT, BadMutant, apply_diff, read_mutant

PATCHES = sorted(FOLDER.glob("*.patch"))


@pytest.mark.services
def test_every_mutant_fits_the_source() -> None:
    misfits = {path.name: apply_diff(read_mutant(path).diff, ROOT, "--check") for path in PATCHES}
    assert {name: misfit for name, misfit in misfits.items() if misfit} == {}


def test_a_mutant_changes_the_source_and_no_test() -> None:
    assert PATCHES
    for path in PATCHES:
        files = read_mutant(path).files()
        assert files, path.name
        assert all(name.startswith(("access/", "planner/", "stage_daemon/")) for name in files), path.name


def test_a_patch_names_the_bug_and_the_tests(tmp_path: Path) -> None:
    patch = tmp_path / "store-nothing.patch"
    patch.write_text("--- a/x\n+++ b/x\n")
    with pytest.raises(BadMutant, match="neither"):
        read_mutant(patch)
    patch.write_text("What: nothing.\nTests: tests/no/such/test.py\n--- a/x\n+++ b/x\n")
    with pytest.raises(BadMutant, match=r"tests/no/such/test\.py is not there"):
        read_mutant(patch)
