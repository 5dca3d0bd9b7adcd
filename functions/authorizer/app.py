"""The authorizer function: API Gateway asks it who calls, and the client gets a 401 that leads to a token."""

from sealane.gateway.authorizer import create_authorizer
from sealane.policy.bearer import BearerAuth

handler = create_authorizer(BearerAuth.from_environment())
