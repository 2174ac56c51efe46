"""Routes: apply the faults that are switched on, do the order once per key, send the answer."""

import asyncio
from dataclasses import replace
from typing import Annotated, Final
from uuid import NAMESPACE_URL, uuid5

import structlog
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from hailbus.fastapi import IdempotencyKey, ProblemError, reply_to
from hailbus.idempotency import fingerprint
from pydantic import BaseModel

from payment_provider.adapters.http import schemas
from payment_provider.adapters.http.problems import PROBLEMS, documented
from payment_provider.adapters.storage.books import Books, Order
from payment_provider.domain.authorisation import Authorisation
from payment_provider.domain.errors import Refusal
from payment_provider.domain.faults import Faults, Kind, Outage

IdPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
_POSTED: Final = (
    "malformed", "too-large", "unsupported-media-type", "invalid", "idempotency-key-reused", "unavailable", "declined",
)  # fmt: skip
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("payment_provider.http")


class Switchboard:
    """The faults that are switched on, changed by an administrator while the provider runs."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    async def before(self, kind: Kind) -> None:
        """Let a request wait or fail before it has any effect.

        Raises:
            ProblemError: The provider is away.
        """
        faults = self.faults
        if faults.latency_ms:
            await asyncio.sleep(faults.latency_ms / 1000)
        outage = faults.outage_of(kind)
        if outage is Outage.HANG:
            await asyncio.sleep(faults.hang_s)
        if outage in {Outage.HANG, Outage.REFUSE}:
            raise ProblemError("unavailable", "the provider is away; send the same request again")

    async def after(self, kind: Kind) -> None:
        """Lose the answer of a request that has had its effect.

        Raises:
            ProblemError: The provider is away.
        """
        faults = self.faults
        outage = faults.outage_of(kind)
        if outage is Outage.HANG_AFTER:
            await asyncio.sleep(faults.hang_s)
        if outage in {Outage.HANG_AFTER, Outage.LOSE_ANSWERS}:
            raise ProblemError("unavailable", "the answer is lost; send the same request again")


def add_routes(api: APIRouter, books: Books, switchboard: Switchboard) -> None:
    """Add the routes to the application's own router."""

    async def once(request: Request, order: Order, body: BaseModel, *, key: str) -> Response:
        path = request.url.path

        def present(result: Authorisation | Refusal) -> tuple[int, bytes]:
            if isinstance(result, Refusal):
                return PROBLEMS.stored(result, instance=path)
            return 201, schemas.AuthorisationView.of(result).model_dump_json().encode()

        await switchboard.before(order.kind)
        answer = await books.once(
            order,
            key=key,
            fingerprint=fingerprint(path, body.model_dump_json().encode()),
            faults=switchboard.faults,
            present=present,
        )
        await switchboard.after(order.kind)
        return reply_to(answer)

    @api.post(
        "/authorisations",
        status_code=201,
        tags=["money"],
        summary="Reserve an amount",
        response_model=schemas.AuthorisationView,
        responses=documented(*_POSTED),
    )
    async def authorise(request: Request, body: schemas.NewAuthorisation, key: IdempotencyKey) -> Response:
        order = Order(
            kind=Kind.AUTHORISE,
            # Derived from the key, so that a repeated request finds what the first one made.
            authorisation_id=str(uuid5(NAMESPACE_URL, f"authorisation/{key}")),
            amount_minor=body.amount.amount_minor,
            currency=body.amount.currency,
            opens=True,
            reference=body.reference,
            card=body.card,
        )
        return await once(request, order, body, key=key)

    def movement(kind: Kind, authorisation_id: str, amount: schemas.Amount) -> Order:
        return Order(
            kind=kind,
            authorisation_id=authorisation_id,
            amount_minor=amount.amount_minor,
            currency=amount.currency,
        )

    @api.post(
        "/authorisations/{authorisation_id}/increments",
        status_code=201,
        tags=["money"],
        summary="Reserve more",
        response_model=schemas.AuthorisationView,
        responses=documented(*_POSTED, "not-found", "other-currency"),
    )
    async def increment(
        request: Request, authorisation_id: IdPath, body: schemas.Movement, key: IdempotencyKey
    ) -> Response:
        return await once(request, movement(Kind.AUTHORISE, authorisation_id, body.amount), body, key=key)

    @api.post(
        "/authorisations/{authorisation_id}/captures",
        status_code=201,
        tags=["money"],
        summary="Charge a part of what is reserved",
        response_model=schemas.AuthorisationView,
        responses=documented(*_POSTED, "not-found", "too-much", "other-currency"),
    )
    async def capture(
        request: Request, authorisation_id: IdPath, body: schemas.Movement, key: IdempotencyKey
    ) -> Response:
        return await once(request, movement(Kind.CAPTURE, authorisation_id, body.amount), body, key=key)

    @api.post(
        "/authorisations/{authorisation_id}/releases",
        status_code=201,
        tags=["money"],
        summary="Free a part of what is reserved",
        response_model=schemas.AuthorisationView,
        responses=documented(*_POSTED, "not-found", "too-much", "other-currency"),
    )
    async def release(
        request: Request, authorisation_id: IdPath, body: schemas.Movement, key: IdempotencyKey
    ) -> Response:
        return await once(request, movement(Kind.RELEASE, authorisation_id, body.amount), body, key=key)

    @api.post(
        "/refunds",
        status_code=201,
        tags=["money"],
        summary="Pay back a part of what was charged",
        response_model=schemas.AuthorisationView,
        responses=documented(*_POSTED, "not-found", "too-much", "other-currency"),
    )
    async def refund(request: Request, body: schemas.NewRefund, key: IdempotencyKey) -> Response:
        return await once(request, movement(Kind.REFUND, body.authorisation_id, body.amount), body, key=key)

    @api.get(
        "/authorisations/{authorisation_id}",
        tags=["money"],
        summary="Look at an authorisation",
        response_model=schemas.AuthorisationView,
        responses=documented("not-found", "invalid"),
    )
    async def get_authorisation(authorisation_id: IdPath) -> Response:
        return _json(schemas.AuthorisationView.of(await books.authorisation(authorisation_id)))

    @api.get(
        "/transactions",
        tags=["reconciliation"],
        summary="List movements of money, the oldest first",
        response_model=schemas.TransactionList,
        responses=documented("invalid"),
    )
    async def list_transactions(
        after: Annotated[int, Query(ge=0, description="`next` of the page before.")] = 0,
        limit: Annotated[int, Query(ge=1, le=5_000)] = 1_000,
        reference: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] = None,
    ) -> Response:
        found = await books.transactions(after=after, limit=limit, reference=reference)
        return _json(
            schemas.TransactionList(
                transactions=[schemas.TransactionView.of(transaction) for transaction in found],
                next=found[-1].transaction_id if len(found) == limit else None,
            )
        )

    @api.get("/admin/faults", tags=["faults"], summary="Show the faults", response_model=schemas.FaultsView)
    async def get_faults() -> Response:
        return _json(schemas.FaultsView.of(switchboard.faults))

    @api.post(
        "/admin/faults",
        tags=["faults"],
        summary="Switch faults on or off",
        response_model=schemas.FaultsView,
        responses=documented("malformed", "invalid"),
    )
    async def set_faults(body: schemas.FaultsView) -> Response:
        said = {name: getattr(body, name) for name in body.model_fields_set}
        switchboard.faults = replace(switchboard.faults, **said)
        log.info("faults_changed", **body.model_dump(mode="json", exclude_unset=True))
        return _json(schemas.FaultsView.of(switchboard.faults))

    @api.get("/readyz", tags=["health"], summary="Whether the process serves")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}


def _json(view: BaseModel) -> Response:
    return Response(view.model_dump_json(), media_type="application/json")
