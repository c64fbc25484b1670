"""Makes the server fixtures of ``services/`` known to every test of the workspace."""

from __future__ import annotations

pytest_plugins = ["services.pytest_services"]
