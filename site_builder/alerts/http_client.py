"""Send the requests of apprise's services, and judge how each ended."""

from __future__ import annotations

import inspect
import json
import math
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from types import FunctionType
from typing import Any

from site_builder.alerts.model import FAILED, SENT, UNSURE, DeliveryOutcome

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 20.0
MAX_BODY_BYTES = 1024 * 1024
CHUNK_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 86400
HTTP_FUNCTIONS = frozenset({"request", "get", "options", "head", "post", "put", "patch", "delete"})
STATUS_MEANINGS = {
    400: "rejects the notification as invalid",
    401: "rejects its token or password",
    403: "rejects its token or forbids it",
    404: "does not know this address",
    410: "no longer has this address",
    413: "rejects the notification as too large",
    429: "has reached its rate limit",
}


class AlertHttpClient:
    """Takes the place of the module `requests` in one service, and records how each of its requests ended.

    Nothing is sent twice: redirects are not followed, and a service that would wait and repeat a request gets an error.
    """

    def __init__(self) -> None:
        self.outcomes: list[DeliveryOutcome] = []
        self.has_begun = self.is_abandoned = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 # requests.post, requests.codes, …
        import requests  # noqa: PLC0415 # slow to import

        attribute = getattr(requests, name)
        return partial(self.send_request, attribute) if name in HTTP_FUNCTIONS else attribute

    def send_request(self, function: Any, *arguments: object, **options: Any) -> Any:  # noqa: ANN401
        """Call a function of `requests` once, and return its response with a body of limited length."""
        from requests import RequestException  # noqa: PLC0415 # slow to import

        self.has_begun = True
        if self.is_abandoned:
            raise RequestException
        options["timeout"] = options.get("timeout") or (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
        try:
            response = function(*arguments, **{**options, "allow_redirects": False, "stream": True})
        except Exception as error:
            self.outcomes.append(judge_alert_http_error(error))
            raise
        body = bytearray()
        with suppress(Exception):  # a body that breaks off does not change what the status says
            for chunk in response.iter_content(CHUNK_BYTES):
                body += chunk
                if len(body) >= MAX_BODY_BYTES:
                    break
        response.close()
        response._content, response._content_consumed = bytes(body[:MAX_BODY_BYTES]), True
        outcome = judge_alert_http_response(response.status_code, response.headers, response.content)
        self.outcomes.append(outcome)
        # apprise would sleep after a 429, for as long as the receiver likes, and send again
        if response.status_code == 429 or outcome.retry_after_s or 300 <= response.status_code < 400:
            raise RequestException
        return response

    def summarize_outcomes(self, has_many_receivers: bool) -> DeliveryOutcome:
        """Judge a notification that the service calls failed by the outcomes of its requests."""
        last_by_status = {outcome.status: outcome for outcome in self.outcomes}
        if UNSURE in last_by_status:
            return last_by_status[UNSURE]
        if has_many_receivers and SENT in last_by_status:
            return DeliveryOutcome(UNSURE, "only some of the recipients in its address accepted it")
        if FAILED in last_by_status or not self.outcomes:
            return last_by_status.get(FAILED, DeliveryOutcome(FAILED))
        # every answer looked fine to us but not to the service
        return DeliveryOutcome(UNSURE, "sent an invalid answer")


def derive_http_apprise_class(plugin: type, client: AlertHttpClient) -> type:
    """Derive a class from a plugin of apprise whose methods send through `client`.

    Plugins call `requests.post()` and accept no session. The new class has copies of their methods that find `client`
    under the name `requests`; the plugin and `requests` stay as they are.
    """
    methods: dict[str, FunctionType] = {}
    for name in dir(plugin):
        method = inspect.getattr_static(plugin, name)
        if isinstance(method, FunctionType) and "requests" in method.__globals__:
            names = {**method.__globals__, "requests": client}
            copy = FunctionType(method.__code__, names, name, method.__defaults__, method.__closure__)
            copy.__kwdefaults__ = method.__kwdefaults__
            methods[name] = copy
    return type(plugin.__name__, (plugin,), methods)


def judge_alert_http_response(status: int, headers: Any, body: bytes) -> DeliveryOutcome:  # noqa: ANN401 # of requests
    if status == 504:  # a gateway that got no answer knows as little as we do
        return DeliveryOutcome(UNSURE, "answered 504: it may have arrived")
    if 200 <= status < 300:
        answer = parse_http_json_answer(body)  # Slack and others refuse with a status of 200
        if answer.get("ok") is False or answer.get("success") is False or answer.get("errcode"):
            return DeliveryOutcome(FAILED, "refused it", parse_http_retry_after(headers, body))
        return DeliveryOutcome(SENT)
    if 300 <= status < 400:
        return DeliveryOutcome(FAILED, f"answered {status}: the address redirects, which is not followed")
    meaning = STATUS_MEANINGS.get(status) or ("has an internal error" if status >= 500 else "did not accept it")
    retry_after_s = parse_http_retry_after(headers, body) if status in (429, 503) else None
    return DeliveryOutcome(FAILED, f"{meaning} (HTTP {status})", retry_after_s)


def parse_http_json_answer(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body) if body[:1] == b"{" else None
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def parse_http_retry_after(headers: Any, body: bytes) -> int | None:  # noqa: ANN401 # of requests
    """Return how many seconds to wait, by the header or as Discord, Telegram and Matrix write it."""
    header, from_header = str(headers.get("Retry-After") or "").strip(), None  # a number of seconds, or a date
    if header.isascii() and header.isdigit():
        from_header = float(header[:9])
    else:
        with suppress(TypeError, ValueError, IndexError, OverflowError):
            from_header = parsedate_to_datetime(header).timestamp() - time.time()
    answer = parse_http_json_answer(body)
    parameters, millis = answer.get("parameters"), answer.get("retry_after_ms")
    candidates = (
        from_header,
        answer.get("retry_after"),
        parameters.get("retry_after") if isinstance(parameters, dict) else None,
        millis / 1000 if isinstance(millis, (int, float)) else None,
    )
    for seconds in candidates:
        if isinstance(seconds, (int, float)) and math.isfinite(seconds):
            return int(min(max(seconds, 1), MAX_RETRY_AFTER_S))
    return None


def judge_alert_http_error(error: Exception) -> DeliveryOutcome:
    """Judge a request without an answer: nothing was sent before it was connected; after that, unknown."""
    from requests import exceptions  # noqa: PLC0415 # slow to import

    cause = type(getattr(error.args[0] if error.args else None, "reason", None)).__name__
    if cause == "NameResolutionError":
        return DeliveryOutcome(FAILED, "is not known on this network")
    if cause == "NewConnectionError":
        return DeliveryOutcome(FAILED, "cannot be reached: nothing answers there")
    meanings: tuple[tuple[type[Exception], str, str], ...] = (
        (exceptions.ReadTimeout, UNSURE, "did not answer in time"),
        (exceptions.ConnectTimeout, FAILED, "cannot be reached in time"),
        (exceptions.SSLError, FAILED, "cannot be reached over TLS, or its certificate is not trusted"),
        (exceptions.ProxyError, FAILED, "cannot be reached through the proxy"),
        (exceptions.ConnectionError, UNSURE, "closed the connection without an answer"),
        (ValueError, FAILED, "has an invalid address"),  # InvalidURL and its like
    )
    for error_type, status, reason in meanings:
        if isinstance(error, error_type):
            return DeliveryOutcome(status, reason)
    return DeliveryOutcome(UNSURE, f"was cut off during sending ({type(error).__name__})")
