CREATE FUNCTION public.plan_adapter_guard_approvals() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT') AND (NOT EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = 'erased') OR EXISTS (SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE now.value IS DISTINCT FROM before.value AND key NOT IN ('salt', 'updated_at') AND coalesce(position('[erased' IN now.value), 0) = 0)) THEN RAISE EXCEPTION 'this role only erases words in rows of approvals'; END IF; RETURN NEW; END $$;

CREATE FUNCTION public.plan_adapter_guard_attempts() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT') AND (NOT EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = 'erased') OR EXISTS (SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE now.value IS DISTINCT FROM before.value AND key NOT IN ('salt', 'updated_at') AND coalesce(position('[erased' IN now.value), 0) = 0)) THEN RAISE EXCEPTION 'this role only erases words in rows of attempts'; END IF; RETURN NEW; END $$;

CREATE FUNCTION public.plan_adapter_guard_audit() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT') AND NEW.kind NOT IN ('erased', 'refused') THEN RAISE EXCEPTION 'this role adds no such entry to the audit log'; END IF; RETURN NEW; END $$;

CREATE FUNCTION public.plan_adapter_guard_gates() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT') AND (NOT EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = 'erased') OR EXISTS (SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE now.value IS DISTINCT FROM before.value AND key NOT IN ('salt', 'updated_at') AND coalesce(position('[erased' IN now.value), 0) = 0)) THEN RAISE EXCEPTION 'this role only erases words in rows of gates'; END IF; RETURN NEW; END $$;

CREATE FUNCTION public.plan_adapter_guard_receipts() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT') AND (NOT EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = 'erased') OR EXISTS (SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE now.value IS DISTINCT FROM before.value AND key NOT IN ('salt', 'updated_at') AND coalesce(position('[erased' IN now.value), 0) = 0)) THEN RAISE EXCEPTION 'this role only erases words in rows of receipts'; END IF; RETURN NEW; END $$;

CREATE FUNCTION public.plan_adapter_guard_revisions() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT') AND (NOT EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = 'erased') OR EXISTS (SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE now.value IS DISTINCT FROM before.value AND key NOT IN ('salt', 'updated_at') AND coalesce(position('[erased' IN now.value), 0) = 0)) THEN RAISE EXCEPTION 'this role only erases words in rows of revisions'; END IF; RETURN NEW; END $$;

CREATE FUNCTION public.plan_adapter_guard_runs() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT') AND (NOT EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.id AND kind = 'erased') OR EXISTS (SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE now.value IS DISTINCT FROM before.value AND key NOT IN ('salt', 'updated_at') AND coalesce(position('[erased' IN now.value), 0) = 0)) THEN RAISE EXCEPTION 'this role only erases words in rows of runs'; END IF; RETURN NEW; END $$;

CREATE FUNCTION public.plan_adapter_guard_step_runs() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF has_table_privilege('tombstones', 'INSERT') AND NOT has_table_privilege('attempts', 'INSERT') AND (NOT EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = 'erased') OR EXISTS (SELECT 1 FROM jsonb_each_text(to_jsonb(NEW)) AS now JOIN jsonb_each_text(to_jsonb(OLD)) AS before USING (key) WHERE now.value IS DISTINCT FROM before.value AND key NOT IN ('salt', 'updated_at') AND coalesce(position('[erased' IN now.value), 0) = 0)) THEN RAISE EXCEPTION 'this role only erases words in rows of step_runs'; END IF; RETURN NEW; END $$;

CREATE FUNCTION public.plan_adapter_refuse_audit_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN IF TG_OP = 'DELETE' THEN IF EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = 'pruned') THEN RETURN OLD; END IF; ELSIF EXISTS (SELECT 1 FROM tombstones WHERE run_id = OLD.run_id AND kind = 'erased') AND position('[erased]' IN NEW.message) > 0 AND to_jsonb(NEW) - 'message' - 'salt' = to_jsonb(OLD) - 'message' - 'salt' THEN RETURN NEW; END IF; RAISE EXCEPTION 'rows of audit cannot be changed or deleted'; END $$;

CREATE FUNCTION public.plan_adapter_refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN RAISE EXCEPTION 'rows of % cannot be changed or deleted', TG_TABLE_NAME; END $$;

CREATE TABLE public.approvals (
    id text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    approval_digest text NOT NULL,
    decision text NOT NULL,
    by text NOT NULL,
    known_by text NOT NULL,
    at timestamp with time zone NOT NULL,
    note text NOT NULL,
    expires_at timestamp with time zone,
    run_id text,
    used_at timestamp with time zone,
    step_id text,
    item integer NOT NULL,
    gate_id text,
    standing_id text,
    signature text,
    result text,
    salt text
);

CREATE TABLE public.attempts (
    run_id text NOT NULL,
    step_id text NOT NULL,
    kind text NOT NULL,
    item integer NOT NULL,
    number integer NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    id text NOT NULL,
    tool_name text NOT NULL,
    effect text NOT NULL,
    parameters text NOT NULL,
    idempotency_key text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    approval_id text,
    approval_digest text,
    code_digest text,
    label text,
    salt text
);

CREATE TABLE public.audit (
    run_id text NOT NULL,
    number integer NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    at timestamp with time zone NOT NULL,
    kind text NOT NULL,
    step_id text,
    item integer NOT NULL,
    attempt integer,
    call_kind text,
    by text,
    known_by text,
    message text,
    row_id text,
    row_digest text,
    salt text,
    digest text NOT NULL
);

CREATE TABLE public.commands (
    run_id text NOT NULL,
    step_id text NOT NULL,
    kind text NOT NULL,
    item integer NOT NULL,
    number integer NOT NULL,
    process text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    attempt_id text NOT NULL
);

CREATE TABLE public.concurrency_keys (
    run_id text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    key text NOT NULL,
    since timestamp with time zone NOT NULL,
    is_held boolean NOT NULL
);

CREATE TABLE public.drafts (
    id text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    task text NOT NULL,
    request text NOT NULL,
    model text NOT NULL,
    digest text,
    failure text,
    result text,
    created_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone
);

CREATE TABLE public.gates (
    id text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    run_id text NOT NULL,
    step_id text NOT NULL,
    item integer NOT NULL,
    approval_digest text NOT NULL,
    name text NOT NULL,
    description text NOT NULL,
    rules text NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    closed_at timestamp with time zone,
    "end" text,
    flow_run_id text,
    keyset text,
    openings integer NOT NULL,
    owner text,
    kind text NOT NULL,
    call_kind text NOT NULL,
    label text,
    fields text,
    salt text,
    text text NOT NULL
);

CREATE TABLE public.implied_dependencies (
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    digest text NOT NULL,
    steps text NOT NULL
);

CREATE TABLE public.leases (
    run_id text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    epoch integer NOT NULL,
    owner text,
    until timestamp with time zone
);

CREATE TABLE public.model_calls (
    draft_id text NOT NULL,
    number integer NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    model text NOT NULL,
    rung text NOT NULL,
    phase text NOT NULL,
    prompt_digest text NOT NULL,
    prompt_tokens integer NOT NULL,
    completion_tokens integer NOT NULL,
    milliseconds integer NOT NULL,
    problems text NOT NULL,
    is_whole boolean NOT NULL,
    at timestamp with time zone NOT NULL,
    prompt text NOT NULL,
    answer text NOT NULL
);

CREATE TABLE public.plan_adapter_revision (
    version_num character varying(32) NOT NULL
);

CREATE TABLE public.plans (
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    digest text NOT NULL,
    name text NOT NULL,
    description text NOT NULL,
    document text NOT NULL,
    created_at timestamp with time zone NOT NULL
);

CREATE TABLE public.policy_history (
    number integer NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    document text NOT NULL,
    by text NOT NULL,
    known_by text NOT NULL,
    at timestamp with time zone NOT NULL,
    signature text,
    digest text NOT NULL
);

CREATE TABLE public.receipts (
    run_id text NOT NULL,
    step_id text NOT NULL,
    kind text NOT NULL,
    item integer NOT NULL,
    number integer NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    attempt_id text NOT NULL,
    outcome text NOT NULL,
    result text NOT NULL,
    error text,
    ended_at timestamp with time zone NOT NULL,
    duration_ms bigint NOT NULL,
    by text,
    known_by text,
    note text,
    salt text
);

CREATE TABLE public.revisions (
    run_id text NOT NULL,
    number integer NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    digest text NOT NULL,
    approval_digest text NOT NULL,
    by text NOT NULL,
    note text NOT NULL,
    at timestamp with time zone NOT NULL,
    definitions text NOT NULL,
    folder text,
    salt text
);

CREATE TABLE public.runs (
    id text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    plan_id text NOT NULL,
    name text NOT NULL,
    description text NOT NULL,
    digest text NOT NULL,
    approval_digest text NOT NULL,
    inputs text NOT NULL,
    implied_dependencies_digest text NOT NULL,
    definitions text NOT NULL,
    metadata text NOT NULL,
    status text NOT NULL,
    reason text,
    message text,
    outputs text NOT NULL,
    flow_run_id text,
    requested_by text,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    total_duration_ms bigint NOT NULL,
    approved_at timestamp with time zone,
    approved_by text,
    rejection_note text,
    claimed_at timestamp with time zone,
    cancel_reason text,
    cancel_requested_at timestamp with time zone,
    cancel_rollback boolean,
    folder text,
    rollback text,
    salt text
);

CREATE TABLE public.standing_approvals (
    id text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    runbook_digest text NOT NULL,
    name text NOT NULL,
    by text NOT NULL,
    known_by text NOT NULL,
    at timestamp with time zone NOT NULL,
    inputs text NOT NULL,
    schedules text NOT NULL,
    steps text NOT NULL,
    until timestamp with time zone,
    max_runs integer,
    runs integer NOT NULL,
    note text NOT NULL,
    signature text,
    source text,
    revoked_at timestamp with time zone,
    revoked_by text
);

CREATE TABLE public.step_runs (
    run_id text NOT NULL,
    step_id text NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    index integer NOT NULL,
    status text NOT NULL,
    outcome text,
    error text,
    reason text,
    retry_count integer NOT NULL,
    attempts integer NOT NULL,
    carried boolean NOT NULL,
    rolled_back boolean NOT NULL,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    duration_ms bigint NOT NULL,
    items text,
    outputs text,
    salt text
);

CREATE TABLE public.tombstone_signatures (
    number integer NOT NULL,
    by text NOT NULL,
    signature text NOT NULL,
    at timestamp with time zone NOT NULL
);

CREATE TABLE public.tombstones (
    number integer NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    run_id text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    plan_digest text NOT NULL,
    status text NOT NULL,
    completed_at timestamp with time zone,
    entries integer NOT NULL,
    first_digest text NOT NULL,
    last_digest text NOT NULL,
    fields text NOT NULL,
    replaced text NOT NULL,
    by text NOT NULL,
    known_by text NOT NULL,
    at timestamp with time zone NOT NULL,
    digest text NOT NULL
);

CREATE TABLE public.totp_history (
    name text NOT NULL,
    number integer NOT NULL,
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    seed text NOT NULL,
    by text NOT NULL,
    known_by text NOT NULL,
    at timestamp with time zone NOT NULL
);

CREATE TABLE public.used_codes (
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    name text NOT NULL,
    counter bigint NOT NULL,
    used_at timestamp with time zone NOT NULL
);

CREATE TABLE public.versions (
    tenant_id text NOT NULL,
    agent_id text,
    org_id text,
    task_id text,
    name text NOT NULL,
    version integer NOT NULL,
    digest text NOT NULL,
    author text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    row_digest text NOT NULL
);

INSERT INTO public.plan_adapter_revision VALUES ('0001');

ALTER TABLE ONLY public.approvals
    ADD CONSTRAINT pk_approvals PRIMARY KEY (id);

ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (run_id, step_id, kind, item, number);

ALTER TABLE ONLY public.audit
    ADD CONSTRAINT pk_audit PRIMARY KEY (run_id, number);

ALTER TABLE ONLY public.commands
    ADD CONSTRAINT pk_commands PRIMARY KEY (run_id, step_id, kind, item, number, process);

ALTER TABLE ONLY public.concurrency_keys
    ADD CONSTRAINT pk_concurrency_keys PRIMARY KEY (run_id);

ALTER TABLE ONLY public.drafts
    ADD CONSTRAINT pk_drafts PRIMARY KEY (id);

ALTER TABLE ONLY public.gates
    ADD CONSTRAINT pk_gates PRIMARY KEY (id);

ALTER TABLE ONLY public.implied_dependencies
    ADD CONSTRAINT pk_implied_dependencies PRIMARY KEY (tenant_id, digest);

ALTER TABLE ONLY public.leases
    ADD CONSTRAINT pk_leases PRIMARY KEY (run_id);

ALTER TABLE ONLY public.model_calls
    ADD CONSTRAINT pk_model_calls PRIMARY KEY (draft_id, number);

ALTER TABLE ONLY public.plans
    ADD CONSTRAINT pk_plans PRIMARY KEY (tenant_id, digest);

ALTER TABLE ONLY public.policy_history
    ADD CONSTRAINT pk_policy_history PRIMARY KEY (number);

ALTER TABLE ONLY public.receipts
    ADD CONSTRAINT pk_receipts PRIMARY KEY (run_id, step_id, kind, item, number);

ALTER TABLE ONLY public.revisions
    ADD CONSTRAINT pk_revisions PRIMARY KEY (run_id, number);

ALTER TABLE ONLY public.runs
    ADD CONSTRAINT pk_runs PRIMARY KEY (id);

ALTER TABLE ONLY public.standing_approvals
    ADD CONSTRAINT pk_standing_approvals PRIMARY KEY (id);

ALTER TABLE ONLY public.step_runs
    ADD CONSTRAINT pk_step_runs PRIMARY KEY (run_id, step_id);

ALTER TABLE ONLY public.tombstone_signatures
    ADD CONSTRAINT pk_tombstone_signatures PRIMARY KEY (number);

ALTER TABLE ONLY public.tombstones
    ADD CONSTRAINT pk_tombstones PRIMARY KEY (number);

ALTER TABLE ONLY public.totp_history
    ADD CONSTRAINT pk_totp_history PRIMARY KEY (name, number);

ALTER TABLE ONLY public.used_codes
    ADD CONSTRAINT pk_used_codes PRIMARY KEY (name, counter);

ALTER TABLE ONLY public.versions
    ADD CONSTRAINT pk_versions PRIMARY KEY (tenant_id, name, version);

ALTER TABLE ONLY public.plan_adapter_revision
    ADD CONSTRAINT plan_adapter_revision_pkc PRIMARY KEY (version_num);

CREATE INDEX ix_approvals_approval_digest ON public.approvals USING btree (approval_digest);

CREATE UNIQUE INDEX ix_approvals_gate_id ON public.approvals USING btree (gate_id);

CREATE INDEX ix_approvals_run_id ON public.approvals USING btree (run_id);

CREATE INDEX ix_audit_operator_requests ON public.audit USING btree (run_id, kind) WHERE (kind = ANY (ARRAY['skip_requested'::text, 'run_from_requested'::text]));

CREATE INDEX ix_concurrency_keys_tenant_id_key ON public.concurrency_keys USING btree (tenant_id, key);

CREATE UNIQUE INDEX ix_gates_open ON public.gates USING btree (run_id, step_id, call_kind, item) WHERE (closed_at IS NULL);

CREATE INDEX ix_gates_run_id ON public.gates USING btree (run_id);

CREATE INDEX ix_runs_created_at ON public.runs USING btree (created_at);

CREATE INDEX ix_runs_flow_run_id ON public.runs USING btree (flow_run_id);

CREATE INDEX ix_tombstones_run_id ON public.tombstones USING btree (run_id);

CREATE TRIGGER approvals_guards_erasing BEFORE UPDATE ON public.approvals FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_guard_approvals();

CREATE TRIGGER attempts_guards_erasing BEFORE UPDATE ON public.attempts FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_guard_attempts();

CREATE TRIGGER audit_guards_erasing BEFORE INSERT ON public.audit FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_guard_audit();

CREATE TRIGGER audit_refuses_changes BEFORE DELETE OR UPDATE ON public.audit FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_refuse_audit_change();

CREATE TRIGGER gates_guards_erasing BEFORE UPDATE ON public.gates FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_guard_gates();

CREATE TRIGGER policy_history_refuses_changes BEFORE DELETE OR UPDATE ON public.policy_history FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_refuse_change();

CREATE TRIGGER receipts_guards_erasing BEFORE UPDATE ON public.receipts FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_guard_receipts();

CREATE TRIGGER revisions_guards_erasing BEFORE UPDATE ON public.revisions FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_guard_revisions();

CREATE TRIGGER runs_guards_erasing BEFORE UPDATE ON public.runs FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_guard_runs();

CREATE TRIGGER step_runs_guards_erasing BEFORE UPDATE ON public.step_runs FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_guard_step_runs();

CREATE TRIGGER tombstone_signatures_refuses_changes BEFORE DELETE OR UPDATE ON public.tombstone_signatures FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_refuse_change();

CREATE TRIGGER tombstones_refuses_changes BEFORE DELETE OR UPDATE ON public.tombstones FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_refuse_change();

CREATE TRIGGER totp_history_refuses_changes BEFORE DELETE OR UPDATE ON public.totp_history FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_refuse_change();

CREATE TRIGGER versions_refuses_changes BEFORE DELETE OR UPDATE ON public.versions FOR EACH ROW EXECUTE FUNCTION public.plan_adapter_refuse_change();

ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT fk_attempts_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);

ALTER TABLE ONLY public.audit
    ADD CONSTRAINT fk_audit_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);

ALTER TABLE ONLY public.commands
    ADD CONSTRAINT fk_commands_attempts FOREIGN KEY (run_id, step_id, kind, item, number) REFERENCES public.attempts(run_id, step_id, kind, item, number);

ALTER TABLE ONLY public.concurrency_keys
    ADD CONSTRAINT fk_concurrency_keys_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);

ALTER TABLE ONLY public.gates
    ADD CONSTRAINT fk_gates_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);

ALTER TABLE ONLY public.leases
    ADD CONSTRAINT fk_leases_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);

ALTER TABLE ONLY public.model_calls
    ADD CONSTRAINT fk_model_calls_drafts FOREIGN KEY (draft_id) REFERENCES public.drafts(id);

ALTER TABLE ONLY public.receipts
    ADD CONSTRAINT fk_receipts_attempts FOREIGN KEY (run_id, step_id, kind, item, number) REFERENCES public.attempts(run_id, step_id, kind, item, number);

ALTER TABLE ONLY public.revisions
    ADD CONSTRAINT fk_revisions_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);

ALTER TABLE ONLY public.runs
    ADD CONSTRAINT fk_runs_plans FOREIGN KEY (tenant_id, digest) REFERENCES public.plans(tenant_id, digest);

ALTER TABLE ONLY public.step_runs
    ADD CONSTRAINT fk_step_runs_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);

ALTER TABLE ONLY public.tombstone_signatures
    ADD CONSTRAINT fk_tombstone_signatures_tombstones FOREIGN KEY (number) REFERENCES public.tombstones(number);

ALTER TABLE ONLY public.versions
    ADD CONSTRAINT fk_versions_plans FOREIGN KEY (tenant_id, digest) REFERENCES public.plans(tenant_id, digest);
