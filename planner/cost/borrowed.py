"""Rates that a plan is to take from profiles of other graphs: those named by id, or the newest of a kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Protocol

from planner.cost.calibration import Calibration
from planner.errors import OptionsError


class ProfileRates(Protocol):
    """A stored profile; no `calibration` where its times were too few to fit rates to."""

    @property
    def id(self) -> str: ...
    @property
    def device_kind(self) -> str: ...
    @property
    def calibration(self) -> Calibration | None: ...


def named_rates(profiles: Iterable[ProfileRates], kinds: Collection[str]) -> tuple[Calibration, ...]:
    """As named. Raises OptionsError for one that has no rates, is of none of `kinds`, or of the kind of another."""
    planned = sorted({kind.lower() for kind in kinds})
    calibrations: dict[str, Calibration] = {}
    for profile in profiles:
        kind = profile.device_kind.lower()
        where = f"options.rates_from_profiles: profile {profile.id!r}"
        if profile.calibration is None:
            raise _refused(f"{where} has too few measured nodes to fit rates to; name another")
        if kind not in planned:
            raise _refused(
                f"{where} is of kind {profile.device_kind!r}; the devices are {', '.join(map(repr, planned))}"
            )
        if kind in calibrations:
            raise _refused(
                f"{where} is of kind {kind!r}, as is {calibrations[kind].profile_id!r}; name one of each kind"
            )
        calibrations[kind] = replace(profile.calibration, profile_id=profile.id)
    return tuple(calibrations.values())


def newest_rates(newest_first: Iterable[ProfileRates]) -> tuple[Calibration, ...]:
    """Of each kind, the first profile's that has rates, by kind."""
    calibrations: dict[str, Calibration] = {}
    for profile in newest_first:
        if profile.calibration is not None:
            calibrations.setdefault(profile.device_kind.lower(), replace(profile.calibration, profile_id=profile.id))
    return tuple(calibrations[kind] for kind in sorted(calibrations))


def _refused(message: str) -> OptionsError:
    return OptionsError(message, field="options.rates_from_profiles")
