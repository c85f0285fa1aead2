"""An answer as an object of a class, and the tools that a model may call."""

import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

import akunu


class Weather(BaseModel):
    """The weather of a place."""

    model_config = ConfigDict(extra="forbid")

    place: Literal["Rome", "Oslo"]
    celsius: int = Field(ge=-60, le=60)


class LookUp(BaseModel):
    """Looks up the weather."""

    model_config = ConfigDict(extra="forbid")

    place: Literal["Rome", "Oslo"]


with akunu.Model(sys.argv[1] if len(sys.argv) > 1 else None) as model:
    weather = model.chat("What is the weather like in Rome?", schema=Weather, max_tokens=100, seed=1).parsed
    print(repr(weather))
    reply = model.chat("What is the weather like in Rome?", tools=[LookUp], tool_choice="required", seed=2, max_tokens=300)
    for call in reply.tool_calls:
        print(call.name, call.arguments)
