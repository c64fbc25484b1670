"""The public door to metrics: what a sink is, and those behind URLs."""

from __future__ import annotations

from ematix_flow.observe.metrics import MetricsSink
from ematix_flow.observe.metrics import open_metrics as from_url

__all__ = ["MetricsSink", "from_url"]
