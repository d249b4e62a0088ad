"""Read what models cost from a file that somebody keeps up to date.

harness has no prices of its own: they change, and a guessed one would let a budget run over. The
file is TOML. It says of which day it is, and has a table for each model, by the name that
`harness.models.NamedModel` takes, with the fields of a `harness.models.Price`::

    dated = 2026-01-31

    ["openai:gpt-5-mini"]
    input_usd_per_million_tokens = 0.25
    output_usd_per_million_tokens = 2.00
"""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import attrs

from harness.models._price import Price

VARIABLE = "HARNESS_PRICES"
"""The environment variable that names the file."""


@attrs.frozen(kw_only=True)
class PriceTable:
    """What models cost, as of one day. Names are exact: a model that isn't there has no price."""

    dated: datetime.date
    """The day of the prices."""

    prices: Mapping[str, Price]
    """The price of each model, by a name such as ``openai:gpt-5-mini``."""

    source: str = "the table of prices"
    """Where it is from, for messages."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PriceTable:
        """Return the table in a file.

        Args:
          path: The file: TOML with a date ``dated``, and a table for each model.

        Raises:
          OSError: if the file can't be read.
          ValueError: if it isn't such a table.
        """
        source = os.fspath(path)
        try:
            read = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"the table of prices {source} is no TOML: {error}") from error
        dated = read.pop("dated", None)
        if not isinstance(dated, datetime.date) or isinstance(dated, datetime.datetime):
            raise ValueError(
                f"the table of prices {source} doesn't say of which day it is; begin it with a "
                "line such as dated = 2026-01-31"
            )
        prices: dict[str, Price] = {}
        for name, fields in read.items():
            try:
                prices[name] = Price(**fields)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"the table of prices {source} has no price for {name!r} that can be read: "
                    f"{error}"
                ) from error
        return cls(dated=dated, prices=MappingProxyType(prices), source=source)


def known_prices(prices: PriceTable | str | os.PathLike[str] | None) -> PriceTable | None:
    """Return the table that is given, or that the environment names; ``None`` for none."""
    if isinstance(prices, PriceTable):
        return prices
    path = prices if prices is not None else os.environ.get(VARIABLE)
    return None if not path else PriceTable.read(path)
