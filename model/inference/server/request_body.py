"""The body of a request as one of the schemas."""

from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from model.inference.server.connections import ClientGone
from model.inference.server.errors import ApiError, from_validation
from model.inference.server.schemas import Body

T = TypeVar("T", bound=Body)


async def read_body(request: Request, schema: type[T]) -> T:
    """Raises ``ApiError`` for what is not JSON or does not fit the schema, ``ClientGone`` where the client
    left before all of it was there.
    """
    try:
        data = await request.body()
    except ClientDisconnect as error:
        raise ClientGone from error
    try:
        return schema.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error) from error
    except RecursionError as error:
        raise ApiError(400, "The body is nested too deeply", code="invalid_json") from error
