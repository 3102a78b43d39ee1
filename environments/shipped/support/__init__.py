"""A support inbox: each message is filed under its queue, with its order number."""
