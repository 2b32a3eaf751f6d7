"""What goes wrong, in the shape of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from http import HTTPStatus

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
         404: "not_found_error", 408: "timeout_error", 413: "invalid_request_error",
         422: "invalid_request_error", 429: "rate_limit_error", 500: "server_error",
         503: "service_unavailable_error"}  # fmt: skip
RETRY_AFTER = {"Retry-After": "1"}  # seconds


class ApiError(Exception):
    """A refusal: HTTP status, one sentence, the field it is about and a code that programs can test."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict:
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(
            self.body(), self.status, headers=RETRY_AFTER if self.status in (429, 503) else None
        )


def from_validation(error: ValidationError) -> ApiError:
    """400 for what is not JSON, 422 for a field that does not fit, named by its path."""
    # Of a union's alternatives the one that went deepest is what the client meant.
    fault = max(error.errors(include_url=False, include_input=False), key=lambda e: len(e["loc"]))
    if fault["type"] == "json_invalid":
        return ApiError(400, f"The body is not JSON: {fault['msg']}", code="invalid_json")
    where = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    return ApiError(422, f"{where}: {message}" if where else message, param=where or None)


async def handle(request: Request, error: Exception) -> JSONResponse:
    """The app's handler for ApiError, for what Starlette raises itself, and for the unforeseen."""
    if isinstance(error, ApiError):
        return error.response()
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        return ApiError(error.status_code, f"{phrase}: {request.method} {request.url.path}").response()
    return ApiError(500, "The server failed at this request; its log has the reason").response()
