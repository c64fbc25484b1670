"""``email://user:password@host:port?from=…&to=…``: a message by SMTP."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import TYPE_CHECKING

from ematix_flow.errors import ConfigError
from ematix_flow.observe.addresses import Address
from ematix_flow.observe.posting import SECONDS, Undelivered

if TYPE_CHECKING:
    from ematix_flow.observe.events import AlertEvent

_PLAIN_PORT, _SUBMISSION_PORT, _TLS_PORT = 25, 587, 465
_TEMPORARY = range(400, 500)


class EmailAlerter:
    """STARTTLS unless ``starttls=0``; TLS from the first byte on port 465. ``ca=`` names a file."""

    def __init__(self, address: Address) -> None:
        self._host = address.need_host("email://host?from=…&to=…")
        address.check_options("from", "to", "starttls", "ca")
        address.check_no_path()
        self._starttls = address.flag("starttls", default=True)
        self._port = address.port or (_SUBMISSION_PORT if self._starttls else _PLAIN_PORT)
        self._user, self._password = address.user, address.password
        self._ca = address.options.get("ca")
        self._to = [one.strip() for one in address.options.get("to", "").split(",") if one.strip()]
        self._from = address.options.get("from", "").strip()
        for name, value in (("from", self._from), ("to", self._to)):
            if not value:
                raise ConfigError(
                    f"alerter email:// has no {name}=", fix=f"add {name}=somebody@example.com"
                )
        for one in (self._from, *self._to):
            if "@" not in one or any(c.isspace() for c in one):
                raise ConfigError(
                    "alerter email:// has a from= or to= that is no address",
                    fix="write somebody@example.com, with commas between several",
                )
        self.name = f"email ({self._host})"

    def notify(self, event: AlertEvent) -> None:
        """Send a message to all."""
        try:
            with self._server() as server:
                if self._user is not None:
                    server.login(self._user, self._password or "")
                server.send_message(self._message(event))
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            again = all(code in _TEMPORARY for code in codes)
            raise Undelivered(f"all recipients were refused ({codes[0]})", again=again) from None
        except smtplib.SMTPResponseException as error:
            said = error.smtp_error
            text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
            again = error.smtp_code in _TEMPORARY or error.smtp_code < 0
            raise Undelivered(f"SMTP {error.smtp_code} ({text})", again=again) from None
        except smtplib.SMTPNotSupportedError as error:
            raise Undelivered(f"{error}", again=False) from None
        except ssl.SSLCertVerificationError as error:
            raise Undelivered(error.verify_message, again=False) from None
        except (OSError, smtplib.SMTPServerDisconnected) as error:
            raise Undelivered(str(error), again=True) from None

    def _server(self) -> smtplib.SMTP:
        trusted = ssl.create_default_context(cafile=self._ca)
        if self._port == _TLS_PORT:
            return smtplib.SMTP_SSL(self._host, self._port, timeout=SECONDS, context=trusted)
        server = smtplib.SMTP(self._host, self._port, timeout=SECONDS)
        if self._starttls:
            try:
                server.starttls(context=trusted)
            except BaseException:
                server.close()
                raise
        return server

    def _message(self, event: AlertEvent) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = f"[ematix-flow] {event.title}"
        message["From"] = self._from
        message["To"] = ", ".join(self._to)
        message["Date"] = format_datetime(event.timestamp)
        message["Message-ID"] = make_msgid(domain="ematix-flow.invalid")
        shown = {k: v for k, v in event.to_dict().items() if v not in (None, "", 0, False)}
        del shown["text"]
        lines = [f"{name.replace('_', ' ')}: {value}" for name, value in shown.items()]
        message.set_content("\n".join([event.text, "", *lines, ""]))
        return message
