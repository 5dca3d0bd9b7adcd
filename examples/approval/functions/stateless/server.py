"""Payments that a person approves: two questions, one order, and a receipt."""

import secrets
from datetime import UTC, datetime
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import AcceptedElicitation, Elicit, ElicitationResult, Resolve
from pydantic import BaseModel, Field

from sealane import ANYONE, Catalog, HandleStore, current_principal, logger, once

catalog = Catalog()
orders = HandleStore("order")

KEPT = 90 * 86_400
"""Seconds that an order is kept."""


class Amount(BaseModel):
    """The answer to the first question."""

    euros: int = Field(ge=1, le=10_000, description="Whole euros, 10,000 at most.")


class Approval(BaseModel):
    """The answer to the second question."""

    approve: bool = Field(description="Whether the order is to be placed.")


class Order(BaseModel):
    """What is kept of an order: what a payment run of yours would carry out."""

    number: str = Field(description="Number of the order, which the log has too.")
    payee: str
    purpose: str
    euros: int
    placed_at: datetime


class Receipt(BaseModel):
    """What came of a request."""

    approved: bool
    receipt: str | None = Field(default=None, description="Handle of the order, for show_order.")
    order: Order | None = None


async def ask_amount(payee: str) -> Elicit[Amount]:
    """The first question. The model names the payee, the person the amount."""
    return Elicit(f"How much is {payee!r} to get?", Amount)


async def ask_approval(
    payee: str, purpose: str, amount: Annotated[ElicitationResult[Amount], Resolve(ask_amount)]
) -> Elicit[Approval] | Approval:
    """The second question, of which the first one's answer is a part."""
    match amount:
        case AcceptedElicitation(data=Amount(euros=euros)):
            return Elicit(f"Pay {payee!r} {euros} euros for {purpose!r}?", Approval)
        case _:
            return Approval(approve=False)


@catalog.tool()
async def request_payment(
    payee: Annotated[str, Field(min_length=1, max_length=100, description="Who is to be paid.")],
    purpose: Annotated[str, Field(min_length=1, max_length=200, description="What for.")],
    amount: Annotated[ElicitationResult[Amount], Resolve(ask_amount)],
    approval: Annotated[ElicitationResult[Approval], Resolve(ask_approval)],
) -> Receipt:
    """Order a payment. The person is asked how much, and then to approve it."""
    match amount, approval:
        case AcceptedElicitation(data=Amount(euros=euros)), AcceptedElicitation(data=Approval(approve=True)):
            # A client whose answer was lost sends its last round again: that is the same order.
            return Receipt.model_validate(await once(lambda: place(payee, purpose, euros)))
        case _:
            logger.info("a payment was not approved")
            return Receipt(approved=False)


async def place(payee: str, purpose: str, euros: int) -> dict[str, object]:
    """Place an order, and tell the log that it was done, not what it says."""
    order = Order(number=secrets.token_hex(4), payee=payee, purpose=purpose, euros=euros, placed_at=datetime.now(UTC))
    handle = await orders.create(
        order.model_dump(mode="json"),
        ttl=KEPT,
        # Open, so that it can be tried without a sign-in: then whoever knows its handle can see an order.
        owner=ANYONE if current_principal() is None else None,
    )
    logger.info("a payment was ordered", order=order.number)
    return Receipt(approved=True, receipt=handle, order=order).model_dump(mode="json")


@catalog.tool()
async def show_order(receipt: Annotated[str, Field(description="Handle that request_payment gave.")]) -> Order:
    """Show an order again."""
    return Order.model_validate((await orders.get(receipt)).value)


def create_server() -> MCPServer:
    """A fresh server for one request."""
    return catalog.server("approval", version="1.0.0")
