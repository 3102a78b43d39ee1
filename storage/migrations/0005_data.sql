-- Whose a trace is, whether it may be learnt from, and until when it may be kept; what a later word
-- changed in what was made before; and what was erased.
DROP VIEW IF EXISTS all_traces;
ALTER TABLE traces ADD COLUMN IF NOT EXISTS tenant VARCHAR;
ALTER TABLE traces ADD COLUMN IF NOT EXISTS consent VARCHAR;
ALTER TABLE traces ADD COLUMN IF NOT EXISTS expires BIGINT;
CREATE TABLE traces_before AS SELECT *, 0::BIGINT AS "until" FROM traces LIMIT 0;
INSERT INTO traces_before BY NAME SELECT * FROM traces_history;
DROP TABLE traces_history;
ALTER TABLE traces_before RENAME TO traces_history;
CREATE VIEW all_traces AS
    SELECT *, NULL::BIGINT AS "until" FROM traces UNION ALL SELECT * FROM traces_history;

CREATE TABLE IF NOT EXISTS marks (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    target_kind VARCHAR NOT NULL,   -- dataset, checkpoint or deployment
    target VARCHAR NOT NULL,
    cause VARCHAR NOT NULL,         -- erased, feedback, label, grader, rules
    marked BIGINT NOT NULL,
    body VARCHAR NOT NULL
);
CREATE TABLE IF NOT EXISTS erasures (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    erased BIGINT NOT NULL,
    body VARCHAR NOT NULL
);
