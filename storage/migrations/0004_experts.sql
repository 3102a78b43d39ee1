-- Which experts of a mixture model each token went to, where the engine said it.
ALTER TABLE tokens ADD COLUMN IF NOT EXISTS experts BLOB;
CREATE OR REPLACE TABLE tokens_history AS
    SELECT trace_id, span_id, since, choice, prompt_ids, completion_ids, logprobs, policy_versions,
        template_digest, tokenizer_digest, NULL::BLOB AS experts, "until"
    FROM tokens_history;
