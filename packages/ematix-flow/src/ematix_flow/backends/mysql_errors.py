"""Errors of MySQL and MariaDB, by their number, as one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ematix_flow.errors import BadValue, EmatixError, Permanent, Transient
from ematix_flow.redaction import redact_text

_CORRECT_THE_ROWS = "correct the rows in the source, or change the declaration"
_FIXES = {
    **dict.fromkeys((1045, 1251, 1698, 2059), "check user and password"),
    1049: "check the database name",
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), "grant the privilege to this user"),
    **dict.fromkeys((1051, 1054, 1109, 1146), "check the names in the SQL"),
    1060: "give one of them another name with AS",
    1064: "correct the SQL",
    **dict.fromkeys((1021, 1114, 3675), "free space on the server's disk"),
    **dict.fromkeys((1071, 1118, 1170), "declare shorter columns, for example String[100]"),
    **dict.fromkeys((1290, 1792, 1836), "use a user who may write, and no replica"),
}
_ABOUT_ROWS = frozenset(
    {
        *(1048, 1062, 1169, 1216, 1217, 1264, 1265, 1292, 1364, 1365, 1366, 1406, 1411, 1416),
        *(1425, 1426, 1441, 1451, 1452, 1586, 1690, 3140, 3141, 3156, 3819, 4025),
    }
)
_TRY_AGAIN = frozenset(
    {
        *(1020, 1040, 1053, 1079, 1152, 1158, 1159, 1160, 1161, 1189, 1190, 1203, 1205, 1213),
        *(1226, 1317, 1412, 1927, 2006, 2013, 3024, 3058, 3169, 4031),
    }
)
_UNREACHED = (2002, 2003, 2005)
_NO_LOCAL_FILES = (1148, 3948, 3950, 4166)


def number_of(error: BaseException) -> int:
    """The server's or the driver's number of an error; 0 where it has none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def refuses_local_files(error: BaseException) -> bool:
    """Whether the server does not let clients send files."""
    return number_of(error) in _NO_LOCAL_FILES


def translate(error: Exception, connection: str, info: Mapping[str, Any]) -> EmatixError | None:
    """The error as one of ours; None where the driver did not raise it."""
    import pymysql

    if not isinstance(error, pymysql.Error):
        return None
    number = number_of(error)
    said = str(error.args[1]) if len(error.args) > 1 else ""
    text = redact_text((said.strip().splitlines() or [type(error).__name__])[0])
    if number in _UNREACHED:
        return _unreached(text, connection, info)
    if number in _ABOUT_ROWS:
        return BadValue(f"connection {connection!r}: {text}", fix=_CORRECT_THE_ROWS)
    if number in _TRY_AGAIN:
        return Transient(text, connection=connection, fix="run again")
    if isinstance(error, pymysql.InterfaceError):
        return Transient("the connection is closed", connection=connection, fix="run again")
    if isinstance(error, pymysql.InternalError) and not number:
        # The driver counts packets: it has missed some, or the server has.
        return Transient("an answer was cut short", connection=connection, fix="run again")
    return Permanent(text, connection=connection, fix=_FIXES.get(number, ""))


def _unreached(text: str, connection: str, info: Mapping[str, Any]) -> EmatixError:
    where = f"{info.get('host', 'localhost')}:{info.get('port', 3306)}"
    lowered = text.lower()
    if "name or service" in lowered or "resolve" in lowered or "not known" in lowered:
        return Transient(
            f"the host of {where} cannot be found", connection=connection, fix="correct host"
        )
    if "refused" in lowered:
        return Transient(
            f"nothing answers at {where}",
            connection=connection,
            fix="start the server, or correct host and port",
        )
    return Transient(text, connection=connection, fix="check that the server is up, then run again")
