"""Finds settings that do not exist: Prefect ignores a mistyped name without a word."""

from __future__ import annotations

from typing import Any

from prefect.settings.sources import (
    PrefectTomlConfigSettingsSource,
    PyprojectTomlConfigSettingsSource,
)
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource

from prefect_heteroflow.core.near_names import near_name
from prefect_heteroflow.core.valid_text import on_one_line
from prefect_heteroflow.settings import HeteroflowSettings

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"


def unknown_settings() -> tuple[str, ...]:
    """A sentence for each name in the environment or a file that is no setting; never a value.

    Looked at is what `HeteroflowSettings()` reads: the environment, `.env`, `prefect.toml` and
    `pyproject.toml` of the working folder.

    Raises:
        SettingsError: A file cannot be read.
    """
    known = HeteroflowSettings.model_fields
    told = []
    variables = {
        name.upper()
        for source in (EnvSettingsSource, DotEnvSettingsSource)
        for name in source(HeteroflowSettings).env_vars
    }
    for variable in sorted(variables):
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and name not in known:
            meant = near_name(name, known)
            told.append(_sentence(variable, None if meant is None else meant.upper()))
    prefect_toml = PrefectTomlConfigSettingsSource(HeteroflowSettings)
    pyproject = PyprojectTomlConfigSettingsSource(HeteroflowSettings)
    told += _of_table(prefect_toml.toml_data, "[integrations.heteroflow] of prefect.toml")
    told += _of_table(
        pyproject.toml_data, "[tool.prefect.integrations.heteroflow] of pyproject.toml"
    )
    return tuple(told)


def _of_table(table: Any, where: str) -> list[str]:
    if not isinstance(table, dict):
        return []
    known = HeteroflowSettings.model_fields
    return [
        _sentence(f"{name} in {where}", near_name(name, known))
        for name in table
        if name not in known
    ]


def _sentence(name: str, meant: str | None) -> str:
    guess = "" if meant is None else f"; did you mean {meant}?"
    text = f"{on_one_line(name)} is no setting of prefect-heteroflow and is ignored{guess}"
    return text if guess else f"{text}."
