"""MemorySettings: the only reader of the environment. It is read when settings are made, never on import."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from inference_core.clock import time_zone
from inference_core.memory.types import MEMORY_CATEGORIES, validate_memory_category


class MemorySettings(BaseSettings):
    """Settings of the memory, each from the environment variable ``AGENT_MEMORY_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="AGENT_MEMORY_", extra="ignore")

    enabled: bool = Field(default=True, description="Give agents their memory.")
    store_url: str = Field(default="sqlite:///memory.db", description="Where memories are kept.")
    max_results: int = Field(
        default=5, ge=1, le=50, description="Memories of each category that are put into a prompt."
    )
    categories: Annotated[tuple[str, ...], NoDecode] = Field(
        default=tuple(MEMORY_CATEGORIES), description="Categories that are put into a prompt, separated by commas."
    )
    agent_scope_enabled: bool = Field(
        default=True, description="Give each named agent its own episodic and procedural memory."
    )
    timezone: str = Field(default="UTC", description="The users' time zone, as an IANA name.")

    @field_validator("categories", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if isinstance(names, list | tuple):
            return tuple(validate_memory_category(str(name)) for name in names if str(name).strip())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return names

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        time_zone(value)
        return value
