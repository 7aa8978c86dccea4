"""A few of the surveyed architectures, one of each kind; `make survey` runs them all."""

from __future__ import annotations

import pytest

from tests.models.architectures import ARCHITECTURES, find_architecture
from tests.models.survey import survey
from tests.nightly import nightly

# Each exports a model.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        ("causal/gpt_oss", ("input_ids[0]", "input_ids[1]")),
        ("vision/vit", ("pixel_values[0]",)),
        *nightly([("causal/jetmoe", ("input_ids[0]", "input_ids[1]"))]),
    ],
)
def test_comes_through_in_stages_at_two_sizes(name: str, dynamic: tuple[str, ...]) -> None:
    finding = survey(find_architecture(name))

    assert (finding.why_not, finding.stages, finding.equal_to, finding.dynamic) == ("", 4, "eager", dynamic)
    assert (finding.trains, finding.generates) == ("eager", "eager" if name.startswith("causal/") else "")


def test_no_architecture_is_listed_twice() -> None:
    assert len({one.name for one in ARCHITECTURES}) == len(ARCHITECTURES)
