"""The registry of the controller's decisions: one function for each request class.

    @decides(CreatePartitionsRequest, adds=True, may_be_long=True)
    def create_partitions(context: Context, request: CreatePartitionsRequest) -> Outcome[CreatePartitionsResponse]: ...

A decision reads its context and its request, and changes no metadata. `discover` finds the decisions of all modules of
this package, so a new one is registered where it is written.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

from kbroker.controller.context import Context
from kbroker.runtime.outcome import Outcome

Request = TypeVar("Request")
Response = TypeVar("Response")


class Decision(NamedTuple, Generic[Request, Response]):
    """One registered decision.

    adds         it adds data, and is refused on a nearly full disk
    changes      it writes metadata that can wait, and is refused once half of the reserve is used: the rest is for
                 deletions and starts
    may_be_long  whether it runs in a thread because this request may make it long; it must not use the broker sessions
    """

    request_class: type[Request]
    adds: bool
    changes: bool
    may_be_long: Callable[[Request], bool]
    function: Callable[[Context, Request], Outcome[Response]]

    def __call__(self, context: Context, request: Request) -> Outcome[Response]:
        return self.function(context, request)


def decides(
    request_class: type[Request],
    *,
    adds: bool = False,
    changes: bool = False,
    may_be_long: bool | Callable[[Request], bool] = False,
) -> Callable[[Callable[[Context, Request], Outcome[Response]]], Decision[Request, Response]]:
    """Register a function as the decision for a request class; see `Decision` for the parameters."""
    is_long = may_be_long if callable(may_be_long) else lambda _request: may_be_long
    return lambda function: Decision(request_class, adds, changes, is_long, function)


def discover() -> dict[type, Decision[Any, Any]]:
    """The decisions of all modules of the controller, by request class."""
    found: dict[type, Decision[Any, Any]] = {}
    package = import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(import_module(f"{__package__}.{module.name}")).values():
            if isinstance(value, Decision):
                assert found.get(value.request_class, value) is value, f"two decisions for {value.request_class}"
                found[value.request_class] = value
    return found
