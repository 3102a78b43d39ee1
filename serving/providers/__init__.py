"""The protocols that providers speak, by the names that [providers] knows them by. A new one is a
file and a line here."""

from serving.providers.anthropic import AnthropicProtocol
from serving.providers.contract import Protocol
from serving.providers.openai import OpenAIProtocol

PROTOCOLS: dict[str, Protocol] = {
    "openai": OpenAIProtocol(),
    "anthropic": AnthropicProtocol(),
}
