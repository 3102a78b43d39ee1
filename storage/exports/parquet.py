"""The dataset's own file: every column that training reads, token ids and log-probabilities too."""

from storage.exports.layout import Layout

LAYOUT = Layout(
    file="rows.parquet",
    read_by='`polars.read_parquet("rows.parquet")`; messages and tools are JSON text',
    copied=True,
)
