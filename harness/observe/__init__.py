"""Seeing what runs do, while they do it and afterwards: live views and reports."""

from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.observe._dashboard import open_dashboard
    from harness.observe._live import Live
    from harness.observe._socket import open_socket
else:
    __getattr__, __dir__ = lazy(extras={"hypercorn": "dashboard", "starlette": "dashboard"})

__all__ = ["Live", "open_dashboard", "open_socket"]
