"""Carry the messages of a cluster over Ray. Needs the extra ``ray``, loaded when first used."""

from __future__ import annotations

import os
import secrets
import sys
from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.cluster._over_ray._transport import open_transport
else:
    __getattr__, __dir__ = lazy(extras={"ray": "ray"}, subject="a RayCluster")

__all__ = ["keep_others_out", "open_transport"]


def keep_others_out() -> None:
    """Have a cluster that is started here answer only who has a token; before Ray is imported.

    Ray reads this when it is imported: a program that has done so before has decided for itself.
    """
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
