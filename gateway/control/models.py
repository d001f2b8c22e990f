"""The list of models that the fleet serves.

Owns: that list in the shape of the OpenAI API, which clients of both engines use. Must never enter: a request
to a worker.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from gateway.control.replies import Failure, add_get_route, failure
from gateway.control.views import FleetView
from gateway.formats.worker_contract import WorkerInfo


class Model(BaseModel):
    """One model, with all that the engine of a worker lists of it.

    ``root`` is the model's path or name, ``parent`` the base model of an adapter. ``max_model_len`` and
    ``context_window`` are the same number of tokens, under two known names.
    """

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Any
    root: Any
    parent: Any
    permission: Any
    max_model_len: Any
    context_window: Any


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


def reserved(path: str) -> tuple[str, ...]:
    """Return the paths of ``models_router``. The id of a model may contain slashes."""
    return (path, f"{path}/{{model_id:path}}")


def models_router(path: str, fleet: FleetView) -> APIRouter:
    """Return a router with the list at ``path`` and each model at ``path/<id>``."""
    router = APIRouter(tags=["models"])
    listing, one = reserved(path)
    models = _Models(fleet)
    add_get_route(router, listing, models.listing, summary="All models that a usable worker serves")
    add_get_route(
        router,
        one,
        models.one,
        summary="One model",
        response_model=Model,
        responses={404: {"model": Failure}},
    )
    return router


class _Models:
    """The handlers.

    They are ``async`` without an ``await``, because FastAPI runs functions that are not ``async`` in threads.
    """

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        # The creation time of a model is not known. A time that changed with each reply would be worse.
        self._created = int(datetime.now(UTC).timestamp())

    async def listing(self) -> ModelList:
        return ModelList(data=[self._model(name, info) for name, info in self._fleet.models().items()])

    async def one(self, model_id: str) -> Model | Response:
        info = self._fleet.models().get(model_id)
        return failure(404, "Model not found") if info is None else self._model(model_id, info)

    def _model(self, name: str, info: WorkerInfo) -> Model:
        entry = info.model_entries.get(name, {})
        length = entry.get("max_model_len")
        length = info.card.context_length if length is None else length
        known = {"owned_by": info.engine, "root": name, "parent": None, "permission": [], **entry}
        own = {"id": name, "object": "model", "created": self._created}
        return Model(**{**known, **own, "max_model_len": length, "context_window": length})
