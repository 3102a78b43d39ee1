-- Times are nanoseconds since the Unix epoch, UTC. "since" is the ledger sequence of the transaction
-- that wrote a row; a row that was replaced moves to the table's _history with "until", so that a
-- reader of an earlier sequence still sees what it saw.

CREATE TABLE segments (
    name VARCHAR NOT NULL,          -- a segment, or journal:<file>
    sequence BIGINT NOT NULL,       -- of the transaction that took it in (a journal: last took from it)
    records BIGINT NOT NULL,
    consumed BIGINT NOT NULL        -- bytes: a segment's size, or how far a journal was read
);
CREATE TABLE parts (                -- every record ever taken in, by the hash of its line
    hash BLOB NOT NULL,
    sequence BIGINT NOT NULL
);

CREATE TABLE traces (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    external_id VARCHAR NOT NULL,
    origin VARCHAR NOT NULL,
    conversation VARCHAR,
    user_id VARCHAR,
    problem_id VARCHAR,
    run_id VARCHAR,
    attempt BIGINT,
    raw VARCHAR,                    -- key in the raw store
    raws VARCHAR[],                 -- all keys that ever came, this one included
    fidelity VARCHAR NOT NULL,
    fidelity_reasons VARCHAR[] NOT NULL,
    started BIGINT,
    ended BIGINT,
    spans BIGINT NOT NULL,          -- counted once
    incomplete BOOLEAN NOT NULL,    -- a parent span has not come
    digest VARCHAR NOT NULL,        -- of the merged trace
    content VARCHAR,                -- of what was said, whatever its ids; NULL = nothing was
    duplicate_of VARCHAR,           -- the trace that this one is a copy of, under other ids
    rest VARCHAR                    -- JSON: attributes
);
CREATE TABLE traces_history AS SELECT *, 0::BIGINT AS "until" FROM traces LIMIT 0;

CREATE TABLE spans (
    trace_id VARCHAR NOT NULL,
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    parents VARCHAR[] NOT NULL,
    started BIGINT,
    ended BIGINT,
    error VARCHAR,
    version BIGINT NOT NULL,
    copy_of VARCHAR,                -- the span of the same trace that this one is a copy of
    input VARCHAR[],                -- message ids; NULL = no model call
    output VARCHAR[],               -- message ids, one a choice
    finish_reasons VARCHAR[],       -- parallel to output
    tools VARCHAR,                  -- toolsets.id; NULL = not recorded
    model VARCHAR,
    response_model VARCHAR,
    deployment VARCHAR,
    routing_probability DOUBLE,
    input_tokens BIGINT,
    cached_input_tokens BIGINT,
    output_tokens BIGINT,
    reasoning_tokens BIGINT,
    cost_usd DOUBLE,
    cached BOOLEAN,
    rest VARCHAR                    -- JSON: attributes, tool, result, sampling, why usage is unknown
);
CREATE TABLE spans_history AS SELECT *, 0::BIGINT AS "until" FROM spans LIMIT 0;

CREATE TABLE tokens (
    trace_id VARCHAR NOT NULL,
    span_id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    choice BIGINT NOT NULL,
    prompt_ids BIGINT[] NOT NULL,
    completion_ids BIGINT[] NOT NULL,
    logprobs DOUBLE[],
    policy_versions VARCHAR[] NOT NULL,
    template_digest VARCHAR,
    tokenizer_digest VARCHAR
);
CREATE TABLE tokens_history AS SELECT *, 0::BIGINT AS "until" FROM tokens LIMIT 0;

CREATE TABLE messages (             -- each once, by the hash of its JSON
    id VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    body VARCHAR NOT NULL
);
CREATE TABLE toolsets (
    id VARCHAR NOT NULL,
    body VARCHAR NOT NULL
);

CREATE TABLE grades (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    trace_id VARCHAR NOT NULL,
    span_id VARCHAR,
    reward VARCHAR NOT NULL,
    value DOUBLE,                   -- NULL = could not be given
    weight DOUBLE NOT NULL,
    reason VARCHAR,
    kind VARCHAR NOT NULL,
    grader VARCHAR NOT NULL,
    problem_id VARCHAR,
    confirmed_by VARCHAR,
    given BIGINT NOT NULL,
    digest VARCHAR NOT NULL
);
CREATE TABLE feedback (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    target VARCHAR NOT NULL,
    target_kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    said_by VARCHAR,
    said BIGINT NOT NULL,
    body VARCHAR NOT NULL           -- JSON: the whole record
);
CREATE TABLE problems (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    environment VARCHAR NOT NULL,
    split VARCHAR NOT NULL,
    slice VARCHAR NOT NULL,
    conversation VARCHAR,
    user_id VARCHAR,
    trace_id VARCHAR,
    body VARCHAR NOT NULL
);
CREATE TABLE datasets (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    path VARCHAR NOT NULL,
    "rows" BIGINT NOT NULL,
    parents VARCHAR[] NOT NULL,
    body VARCHAR NOT NULL
);
CREATE TABLE runs (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    algorithm VARCHAR NOT NULL,
    champion VARCHAR NOT NULL,
    dataset_id VARCHAR,
    body VARCHAR NOT NULL
);
CREATE TABLE checkpoints (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    run_id VARCHAR NOT NULL,
    parent VARCHAR,
    path VARCHAR NOT NULL,
    body VARCHAR NOT NULL
);
CREATE TABLE evaluations (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    champion VARCHAR NOT NULL,
    candidate VARCHAR NOT NULL,
    body VARCHAR NOT NULL
);
CREATE TABLE decisions (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    outcome VARCHAR NOT NULL,
    gate VARCHAR NOT NULL,
    run_id VARCHAR,
    evaluation_id VARCHAR,
    deployment VARCHAR,
    replaced VARCHAR,
    decided BIGINT NOT NULL,
    body VARCHAR NOT NULL
);
CREATE TABLE deployments (
    id VARCHAR NOT NULL,            -- its name
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    version BIGINT NOT NULL,
    checkpoint_id VARCHAR,
    run_id VARCHAR,
    body VARCHAR NOT NULL
);

-- All versions of a trace; "until" NULL = the one that stands.
CREATE VIEW all_traces AS
    SELECT *, NULL::BIGINT AS "until" FROM traces UNION ALL SELECT * FROM traces_history;
