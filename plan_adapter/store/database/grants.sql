-- What each role may do in a plan store on PostgreSQL. `plan store grants | psql …` as the owner of the tables, again after each upgrade.
--
--   plan_runner    runs plans: the command line, workers, the API. Adds to attempts, receipts, commands and audit, and never changes them.
--   plan_operator  approves, rejects, resolves and cancels, sets the policy, enrolls one-time codes, serves `plan desk`; reads everything.
--                  Runs nothing: it can write no attempt and no plan.
--   plan_keeper    prunes runs and erases values: deletes or changes rows of a run that has ended, in the transaction that
--                  writes its tombstone, and changes them only by erasing words. Make nobody a member of plan_runner, too.
--   plan_auditor   reads everything, which is all that `plan verify` and `plan export` need.
--
-- They cannot log in themselves: CREATE ROLE ana LOGIN PASSWORD '…' IN ROLE plan_operator;

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['plan_runner', 'plan_operator', 'plan_keeper', 'plan_auditor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role);
    END LOOP;
END
$$;

REVOKE ALL ON plans, versions, implied_dependencies, runs, leases, concurrency_keys, triggered_runs, step_runs, attempts, receipts, commands, approvals, gates,
    gate_messages, standing_approvals, used_codes, revisions, drafts, model_calls, audit, tombstones, tombstone_signatures, policy_history,
    totp_history, plan_adapter_revision
    FROM PUBLIC, plan_runner, plan_operator, plan_keeper, plan_auditor;

GRANT SELECT ON plans, versions, implied_dependencies, runs, leases, concurrency_keys, triggered_runs, step_runs, attempts, receipts, commands, approvals, gates,
    gate_messages, standing_approvals, used_codes, revisions, drafts, model_calls, audit, tombstones, tombstone_signatures, policy_history,
    totp_history, plan_adapter_revision
    TO plan_runner, plan_operator, plan_keeper, plan_auditor;

GRANT INSERT ON plans, versions, implied_dependencies, runs, leases, concurrency_keys, triggered_runs, step_runs, attempts, receipts, commands, approvals, gates,
    gate_messages, standing_approvals, used_codes, revisions, drafts, model_calls, audit TO plan_runner;
GRANT UPDATE, DELETE ON plans, implied_dependencies, runs, leases, concurrency_keys, triggered_runs, step_runs, approvals, gates, gate_messages, standing_approvals,
    used_codes, revisions, drafts TO plan_runner;

GRANT INSERT ON approvals, gate_messages, standing_approvals, used_codes, receipts, audit, policy_history, totp_history TO plan_operator;
GRANT UPDATE (shown, reference, not_before, failures, sent_at) ON gate_messages TO plan_operator;
GRANT UPDATE (closed_at, "end") ON gates TO plan_operator;
GRANT UPDATE (revoked_at, revoked_by) ON standing_approvals TO plan_operator;
GRANT UPDATE (status, reason, message, rollback, updated_at, completed_at, cancel_reason, cancel_requested_at, cancel_rollback) ON runs
    TO plan_operator;
GRANT UPDATE (status, outcome, error, reason) ON step_runs TO plan_operator;
GRANT UPDATE (owner) ON leases TO plan_operator;

GRANT INSERT ON audit, tombstones, tombstone_signatures TO plan_keeper;
GRANT DELETE ON runs, leases, concurrency_keys, triggered_runs, step_runs, attempts, receipts, commands, approvals, gates, gate_messages, revisions, audit TO plan_keeper;
GRANT UPDATE (inputs, outputs, message, rejection_note, cancel_reason, metadata, rollback, salt, updated_at) ON runs TO plan_keeper;
GRANT UPDATE (error, reason, items, outputs, salt) ON step_runs TO plan_keeper;
GRANT UPDATE (parameters, label, salt) ON attempts TO plan_keeper;
GRANT UPDATE (result, error, note, salt) ON receipts TO plan_keeper;
GRANT UPDATE (result, note, salt) ON approvals TO plan_keeper;
GRANT UPDATE (note, salt) ON revisions TO plan_keeper;
GRANT UPDATE (key) ON concurrency_keys TO plan_keeper;
GRANT UPDATE (description, text, label, fields, salt) ON gates TO plan_keeper;
GRANT UPDATE (message, salt) ON audit TO plan_keeper;
