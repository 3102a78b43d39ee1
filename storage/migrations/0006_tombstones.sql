-- What was erased and must not come back, by keyed hashes alone (storage/tombstones.py).
CREATE TABLE IF NOT EXISTS tombstones (
    hash BLOB NOT NULL,
    erased BIGINT NOT NULL          -- when: what began later is new data
);
