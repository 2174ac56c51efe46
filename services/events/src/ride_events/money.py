"""Amounts of money."""

from pydantic import BaseModel, ConfigDict, Field


class Money(BaseModel):
    """An amount in the smallest unit of a currency: 1250 USD minor units are 12.50 dollars."""

    model_config = ConfigDict(frozen=True)

    amount_minor: int = Field(ge=0)
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
