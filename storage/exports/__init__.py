"""What datasets are exported as. To add one: a file beside these, and its line in the table."""

from storage.exports import chat, huggingface, parquet, sharegpt, verifiers, verl
from storage.exports.layout import Layout

LAYOUTS: dict[str, Layout] = {
    "parquet": parquet.LAYOUT,
    "chat": chat.LAYOUT,
    "sharegpt": sharegpt.LAYOUT,
    "huggingface": huggingface.LAYOUT,
    "verl": verl.LAYOUT,
    "verifiers": verifiers.LAYOUT,
}
