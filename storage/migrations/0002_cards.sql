-- One narrow row a trace: all that lists of traces filter, sort and count by (storage/cards.py keeps
-- it, in the transaction that changed what it is made of).
CREATE TABLE cards (
    trace_id VARCHAR NOT NULL,
    since BIGINT NOT NULL,          -- of the trace's row
    first_since BIGINT NOT NULL,    -- of its oldest span: where its rows begin
    project VARCHAR NOT NULL,
    origin VARCHAR NOT NULL,
    external_id VARCHAR NOT NULL,
    conversation VARCHAR,
    user_id VARCHAR,
    problem_id VARCHAR,
    run_id VARCHAR,
    fidelity VARCHAR NOT NULL,
    stands_for VARCHAR NOT NULL,    -- itself, or the trace that it is a copy of
    handles VARCHAR[] NOT NULL,     -- ids of its spans and of their responses
    started BIGINT,
    ended BIGINT,
    spans BIGINT NOT NULL,
    calls BIGINT NOT NULL,
    model VARCHAR,                  -- that gave the last answer, as requested
    deployment VARCHAR,
    finish VARCHAR,                 -- of the last answer; NULL = not said, or no answer
    answered BOOLEAN NOT NULL,
    failed BOOLEAN NOT NULL,        -- a span has an error
    input_tokens BIGINT,            -- of all its calls; NULL = not known of each
    output_tokens BIGINT,
    logprob DOUBLE,                 -- mean of the sampled tokens of first choices; NULL = not known
    reward DOUBLE,                  -- weighted mean of its rewards; NULL = none, or one not given
    ungiven BIGINT NOT NULL,        -- rewards that could not be given
    graded BIGINT NOT NULL,         -- rewards that were
    said BIGINT NOT NULL,           -- what people and systems said of it, reviews apart
    liked DOUBLE,                   -- mean of the yes and no among it
    reviewers VARCHAR[] NOT NULL,   -- whose review stands
    verdict DOUBLE                  -- mean of their verdicts: 1 accepted, 0 rejected or corrected
);

ALTER TABLE messages ADD COLUMN key BIGINT; -- of the id's first 60 bits: what messages are looked up by
UPDATE messages SET key = ('0x' || left(id, 15))::BIGINT;
