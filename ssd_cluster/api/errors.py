"""Every error as OpenAI's body: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from ssd_cluster.errors import InvalidRequest, SsdClusterError, UnsupportedField

log = logging.getLogger(__name__)

_TYPES = {429: "rate_limit_error", 503: "service_unavailable_error"}
RETRY_AFTER_S = 1


def error_body(message: str, status: int, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object for an HTTP status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    name = None if param is None else _encodable(param)
    return {"error": {"message": _encodable(message), "type": kind, "param": name, "code": code}}


def _encodable(text: str) -> str:
    """Text of a client as it is, except for surrogates, which no UTF-8 body can hold."""
    return text.encode(errors="backslashreplace").decode()


def error_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body of an exception. What was not raised on purpose shows no details to the client."""
    if isinstance(error, SsdClusterError):
        status = error.http_status
        return status, error_body(error.message, status, param=error.param, code=error.code)
    return 500, error_body("internal error", 500, code="internal_error")


def invalid_request(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """The first of pydantic's errors as one of ours, naming the field by its path in the body."""
    first = errors[0]
    path = [str(part) for part in first["loc"] if part != "body"]
    field = (first.get("ctx") or {}).get("field")
    if field is not None:
        path.append(str(field))
    param = ".".join(path) or None
    kind, message = first["type"], str(first["msg"])
    if kind == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {(first.get('ctx') or {}).get('error', message)}")
    if kind == "extra_forbidden":
        return UnsupportedField(f"unknown field {param}", param=param)
    if kind == "unsupported_field":
        return UnsupportedField(message if field else f"{param}: {message}", param=param)
    if kind == "missing":
        return InvalidRequest(f"{param or 'the body'} is required", param=param)
    return InvalidRequest(f"{param}: {message}" if param else message, param=param)


def install(app: FastAPI) -> None:
    """Register the handlers on an app."""
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(SsdClusterError, _on_ours)
    app.add_exception_handler(Exception, _on_any)


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return await _on_ours(request, invalid_request(error.errors()))


async def _on_ours(request: Request, error: Exception) -> JSONResponse:
    status, body = error_of(error)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 429 else None
    return JSONResponse(body, status_code=status, headers=headers)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else None
    body = error_body(f"{request.method} {request.url.path}: {error.detail}", error.status_code, code=code)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _on_any(request: Request, error: Exception) -> JSONResponse:
    log.error("request failed path=%s", request.url.path, exc_info=error)
    status, body = error_of(error)
    return JSONResponse(body, status_code=status)
