"""The data gate's parts: what is expected, how it is checked, and the page that tells it."""
