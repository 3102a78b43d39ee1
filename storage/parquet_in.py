"""Parquet files as JSON lines: a row a line, null cells left out.

Enters a path; leaves blocks of bytes that the row reader takes as any other. Times become
nanoseconds, bytes base64. Invariant: a dictionary is never spread over a whole batch, so that
memory stays within one row group's pages and a few rows, whatever the file says of itself.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import BadRecord

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"PAR1"
MOST_GROUP = 2 << 30
"""Bytes that one row group may have uncompressed."""
_BATCH, _AT_ONCE = 1024, 16

_encoder = msgspec.json.Encoder()


def json_lines(path: Path) -> Iterator[bytes]:
    """The rows of `path`.

    Raises:
        BadRecord: it cannot be read, from some row on.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            texts = [
                field.name
                for field in file.schema_arrow
                if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
            ]
        with pq.ParquetFile(path, memory_map=True, read_dictionary=texts) as file:
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).total_byte_size
                if size > MOST_GROUP:
                    raise BadRecord(
                        f"has a row group of {size >> 20:,} MiB, over {MOST_GROUP >> 20:,}: write "
                        "the file with smaller row groups"
                    )
                for batch in file.iter_batches(
                    batch_size=_BATCH, row_groups=[group], use_threads=False
                ):
                    yield from _lines(batch)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise BadRecord(f"is a Parquet file that cannot be read: {error}") from error


def _lines(batch: "pa.RecordBatch") -> Iterator[bytes]:
    import pyarrow as pa

    names = batch.schema.names
    columns = [_plain(column) for column in batch.columns]
    table = pa.RecordBatch.from_arrays(columns, names=names)
    for start in range(0, table.num_rows, _AT_ONCE):
        rows: list[dict[str, Any]] = table.slice(start, _AT_ONCE).to_pylist()
        yield b"".join(
            _encoder.encode({key: one for key, one in row.items() if one is not None}) + b"\n"
            for row in rows
        )


def _plain(column: "pa.Array") -> "pa.Array":
    """Times as nanoseconds since the epoch: as Python's they would lose their last digits."""
    import pyarrow as pa

    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
