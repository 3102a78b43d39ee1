"""The protocols that clients may speak, by the path that they are spoken at. A new one is a file
and a line here."""

from serving.dialects.chat import ChatDialect
from serving.dialects.contract import Dialect

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": ChatDialect(),
}
