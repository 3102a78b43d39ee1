"""Peers of `benchmarks/privacy.py`, run under a Python that has them: texts on standard input as
one JSON list, spans and CPU seconds out.

Presidio with its recognisers of forms, from a score of 0.4 on, and without a language model: names
and places that it would find with one are missed here."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Spans = list[tuple[int, int]]


def presidio() -> Callable[[str], Spans]:
    from presidio_analyzer.predefined_recognizers import (
        CreditCardRecognizer,
        EmailRecognizer,
        EsNifRecognizer,
        IbanRecognizer,
        IpRecognizer,
        PhoneRecognizer,
        UsSsnRecognizer,
    )

    kinds: list[Any] = [
        CreditCardRecognizer(), EmailRecognizer(), IbanRecognizer(), IpRecognizer(),
        PhoneRecognizer(), UsSsnRecognizer(), EsNifRecognizer(),
    ]  # fmt: skip

    def find(text: str) -> Spans:
        return [
            (one.start, one.end)
            for kind in kinds
            for one in kind.analyze(text, kind.supported_entities, None)
            if one.score >= 0.4
        ]

    return find


def detect_secrets() -> Callable[[str], Spans]:
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import default_settings

    def find(text: str) -> Spans:
        found = []
        with default_settings():
            for line in text.split("\n"):
                for one in scan_line(line):
                    at = text.find(one.secret_value or "\0")
                    if at >= 0:
                        found.append((at, at + len(one.secret_value)))
        return found

    return find


def main() -> None:
    find = {"presidio": presidio, "detect-secrets": detect_secrets}[sys.argv[1]]()
    texts = json.load(sys.stdin)
    find("warm")
    begun = time.process_time()
    spans = [find(text) for text in texts]
    print(json.dumps({"spans": spans, "seconds": time.process_time() - begun}))


if __name__ == "__main__":
    main()
