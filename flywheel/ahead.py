"""One item ahead: what makes items works on the next one while the last is being used.

Pays where either side waits, or works in libraries that let go of the interpreter's lock (DuckDB,
polars, numpy). Items come in their order; at most one is made before it is asked for.
"""

import contextvars
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


def ahead(items: Iterable[_T]) -> Generator[_T]:
    """`items`, each made by a thread of their own; its errors are raised where the item is due."""
    left, context = iter(items), contextvars.copy_context()

    def made() -> list[_T]:
        return list(islice(left, 1))

    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming = thread.submit(context.run, made)
        while item := coming.result():
            coming = thread.submit(context.run, made)
            yield item[0]
