"""Words that stand where names do, and names that are words."""

NO_NAME = frozenset((
    "a", "all", "american", "an", "and", "api", "april", "are", "at", "august", "board",
    "british", "but", "catholic", "chinese", "christian", "colleagues", "committee", "customer",
    "customers", "december", "desk", "editor", "english", "everyone", "false", "february",
    "folks", "for", "french", "friday", "friend", "friends", "from", "german", "glad", "happy",
    "he", "help", "hiring", "http", "i", "in", "indian", "is", "it", "italian", "january", "json",
    "july", "june", "madam", "madame", "manager", "march", "may", "monday", "muslim", "my", "n/a",
    "no", "none", "not", "november", "null", "october", "ok", "on", "our", "please", "python",
    "sales", "saturday", "september", "service", "she", "sir", "sorry", "spanish", "sql",
    "sunday", "support", "sure", "team", "thank", "thanks", "that", "the", "there", "they",
    "this", "thursday", "to", "true", "tuesday", "unknown", "user", "valued", "was", "we",
    "wednesday", "with", "yes", "you", "your",
))  # fmt: skip
"""What may follow "my name is" or "dear", written large, and names nobody."""
WORDS_TOO = frozenset((
    "april", "art", "august", "avenue", "baker", "banks", "best", "bill", "bishop", "black",
    "brown", "carter", "case", "chase", "church", "cook", "day", "dean", "drew", "english",
    "faith", "field", "frank", "french", "grace", "green", "hill", "hope", "hunter", "jack",
    "joy", "june", "king", "long", "love", "major", "mark", "marshall", "mason", "may", "miles",
    "order", "page", "park", "parker", "porter", "price", "rich", "rose", "stone", "street",
    "summer", "taylor", "white", "will", "wood", "young",
))  # fmt: skip
"""Parts of names that alone are no name, though somebody has it."""
