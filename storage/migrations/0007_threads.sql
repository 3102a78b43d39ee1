-- Requests that were logged one by one and go on with each other (storage/threads.py).
CREATE TABLE IF NOT EXISTS turns (
    trace_id VARCHAR NOT NULL,
    key UBIGINT NOT NULL,       -- of whose it is and of what was said before an answer
    place BIGINT NOT NULL,      -- messages before that answer
    own BOOLEAN NOT NULL,       -- it gave the answer; else its own request repeats it
    answer BIGINT NOT NULL,     -- the answer's messages.key
    started BIGINT
);
CREATE TABLE IF NOT EXISTS threads (
    trace_id VARCHAR NOT NULL,
    since BIGINT NOT NULL,      -- ledger sequence from which on this holds
    "until" BIGINT,             -- and from which on no more; NULL = it stands
    follows VARCHAR,            -- the trace whose answer it goes on from; NULL = it is a first one
    root VARCHAR NOT NULL       -- the conversation's first trace
);
