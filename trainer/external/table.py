"""The engines that a run can be handed to."""

from trainer.external.contract import Engine
from trainer.external.prime_rl import PrimeRL
from trainer.external.verl import Verl

ENGINES: dict[str, type[Engine]] = {
    "verl": Verl,
    "prime-rl": PrimeRL,
}
