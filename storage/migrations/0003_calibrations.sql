-- How far judges agree with people.
CREATE TABLE calibrations (
    id VARCHAR NOT NULL,
    since BIGINT NOT NULL,
    project VARCHAR NOT NULL,
    judge VARCHAR NOT NULL,
    reward VARCHAR NOT NULL,
    kappa DOUBLE,
    given BIGINT NOT NULL,
    body VARCHAR NOT NULL           -- JSON: the whole record
);
