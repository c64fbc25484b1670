"""From stored text to Python values, for products that keep some types as text."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID


def from_text(kind: str, value: Any) -> Any:
    """A Python value of a logical type from its canonical text."""
    if not isinstance(value, str):
        return value
    match kind:
        case "small_int" | "integer" | "big_int":
            return int(value)
        case "float" | "double":
            return float(value)
        case "boolean":
            return {"true": True, "false": False}[value]
        case "numeric":
            return Decimal(value)
        case "date":
            return date.fromisoformat(value)
        case "time":
            return time.fromisoformat(value)
        case "timestamp":
            return datetime.fromisoformat(value)
        case "timestamp_tz":
            return datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone(timezone.utc)
        case "uuid":
            return UUID(value)
        case "json" | "jsonb":
            return json.loads(value)
    return value
