CREATE TABLE memory_meta (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
    CREATE TABLE memory_scopes (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        root text COLLATE "C" NOT NULL,
        namespace text COLLATE "C" NOT NULL UNIQUE,
        seq bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE INDEX memory_scopes_by_root ON memory_scopes (root);
    CREATE TABLE memory_rows (
        scope bigint NOT NULL REFERENCES memory_scopes (id),
        key text COLLATE "C" NOT NULL,
        seq bigint NOT NULL,
        version bigint NOT NULL,
        created bigint NOT NULL,
        updated bigint NOT NULL,
        kind text COLLATE "C" NOT NULL,
        value text,
        text text,
        terms text,
        analyzer text,
        session text NOT NULL DEFAULT '',
        by_assistant boolean NOT NULL DEFAULT false,
        happened double precision,
        importance double precision NOT NULL DEFAULT 0.5,
        model text COLLATE "C" NOT NULL DEFAULT '',
        vector bytea,
        tokens bytea,
        expires bigint,
        ttl bigint,
        PRIMARY KEY (scope, key)
    );
    ALTER TABLE memory_rows ALTER COLUMN vector SET STORAGE MAIN, ALTER COLUMN tokens SET STORAGE EXTERNAL;
    CREATE UNIQUE INDEX memory_rows_by_seq ON memory_rows (scope, seq);
    CREATE INDEX memory_rows_by_age ON memory_rows (scope, created DESC, key) WHERE value IS NOT NULL;
    CREATE INDEX memory_rows_by_model ON memory_rows (model) WHERE text IS NOT NULL;
    CREATE INDEX memory_rows_by_expiry ON memory_rows (expires) WHERE expires IS NOT NULL;
CREATE INDEX memory_rows_by_kind ON memory_rows (scope, kind, created DESC, key) INCLUDE (expires)
        WHERE value IS NOT NULL;
DROP INDEX memory_rows_by_kind;
    DROP INDEX memory_rows_by_age;
    CREATE INDEX memory_rows_by_age ON memory_rows (scope, created DESC, key, kind) INCLUDE (expires)
        WHERE value IS NOT NULL;
INSERT INTO memory_meta OVERRIDING SYSTEM VALUE VALUES ('audit', 'off');
INSERT INTO memory_meta OVERRIDING SYSTEM VALUE VALUES ('schema_version', '3');
INSERT INTO memory_scopes OVERRIDING SYSTEM VALUE VALUES (1, '["~ada~40example~2ecom"]', '["~ada~40example~2ecom","semantic"]', 3);
INSERT INTO memory_scopes OVERRIDING SYSTEM VALUE VALUES (7, '["~ada~40example~2ecom"]', '["~ada~40example~2ecom","procedural","planner"]', 1);
INSERT INTO memory_scopes OVERRIDING SYSTEM VALUE VALUES (13, '["~ada~40example~2ecom"]', '["~ada~40example~2ecom","episodic","planner"]', 1);
INSERT INTO memory_scopes OVERRIDING SYSTEM VALUE VALUES (24, '["~ada~40example~2ecom"]', '["~ada~40example~2ecom","forgotten","semantic"]', 1);
INSERT INTO memory_scopes OVERRIDING SYSTEM VALUE VALUES (25, '["~ada~40example~2ecom"]', '["~ada~40example~2ecom","~versions","semantic"]', 1);
INSERT INTO memory_scopes OVERRIDING SYSTEM VALUE VALUES (26, '["bob"]', '["bob","semantic"]', 2);
INSERT INTO memory_scopes OVERRIDING SYSTEM VALUE VALUES (32, '["bob"]', '["bob","~versions","semantic"]', 1);
INSERT INTO memory_rows OVERRIDING SYSTEM VALUE VALUES (1, 'tea', 1, 1, 1768478400000000, 1768478400000000, 'preferences', '{"content":"Likes green tea ☕","memory_type":"preferences","memory_category":"semantic","session_id":null,"topic":"drinks","agent_name":"planner","extra_metadata":{"n":[1,null,"ü"]},"created_at":"2026-01-15T12:00:00+00:00","source":{"origin":"application"},"trust":2,"schema_version":1,"importance":0.9,"tags":["a"]}', 'drinks: Likes green tea ☕', 'drink like green tea ☕', 'snowball-5', '', false, 1768478400.0, 0.9, '', NULL, NULL, NULL, NULL);
INSERT INTO memory_rows OVERRIDING SYSTEM VALUE VALUES (1, 'gone', 3, 2, 1768478400000000, 1768478400000000, '', NULL, NULL, NULL, NULL, '', false, NULL, 0.5, '', NULL, NULL, NULL, NULL);
INSERT INTO memory_rows OVERRIDING SYSTEM VALUE VALUES (7, 'bullets', 1, 1, 1768478400000000, 1768478400000000, 'instructions', '{"content":"Answer in bullet points","memory_type":"instructions","memory_category":"procedural","session_id":null,"topic":null,"agent_name":"planner","extra_metadata":{},"created_at":"2026-01-15T12:00:00+00:00","source":{"origin":"application"},"trust":2,"schema_version":1,"pinned":true}', 'Answer in bullet points', 'answer bullet point', 'snowball-5', '', false, 1768478400.0, 1.0, '', NULL, NULL, NULL, NULL);
INSERT INTO memory_rows OVERRIDING SYSTEM VALUE VALUES (13, 'kyoto', 1, 1, 1768478400000000, 1768478400000000, 'interaction', '{"content":"Talked about Kyoto","memory_type":"interaction","memory_category":"episodic","session_id":"s1","topic":null,"agent_name":"planner","extra_metadata":{},"created_at":"2026-01-15T12:00:00+00:00","source":{"origin":"application"},"trust":2,"schema_version":1}', 'Talked about Kyoto', 'talk kyoto', 'snowball-5', 's1', false, 1768478400.0, 0.5, '', NULL, NULL, NULL, NULL);
INSERT INTO memory_rows OVERRIDING SYSTEM VALUE VALUES (24, 'gone', 1, 1, 1768478400000000, 1768478400000000, 'facts', '{"content":"Soon gone","memory_type":"facts","memory_category":"semantic","session_id":null,"topic":null,"agent_name":"planner","extra_metadata":{},"created_at":"2026-01-15T12:00:00+00:00","source":{"origin":"application"},"trust":2,"schema_version":1,"_forgotten":{"at":"2026-01-15T12:00:00+00:00","reason":"deleted","updated_at":"2026-01-15T12:00:00+00:00","count":0,"until":"2026-01-22T12:00:00+00:00"}}', NULL, NULL, NULL, '', false, NULL, 0.5, '', NULL, NULL, 1769083200000000, 604800000000);
INSERT INTO memory_rows OVERRIDING SYSTEM VALUE VALUES (25, 'gone', 1, 1, 1768478400000000, 1768478400000000, '', '{"versions":[{"value":{"content":"Soon gone","memory_type":"facts","memory_category":"semantic","session_id":null,"topic":null,"agent_name":"planner","extra_metadata":{},"created_at":"2026-01-15T12:00:00+00:00","source":{"origin":"application"},"trust":2,"schema_version":1},"version":1,"created_at":"2026-01-15T12:00:00+00:00","updated_at":"2026-01-15T12:00:00+00:00","until":"2026-01-22T12:00:00+00:00","kind":"facts"}]}', NULL, NULL, NULL, '', false, NULL, 0.5, '', NULL, NULL, 1769083200000000, 604800000000);
INSERT INTO memory_rows OVERRIDING SYSTEM VALUE VALUES (26, 'coffee', 2, 2, 1768478400000000, 1768478400000000, 'preferences', '{"content":"Likes black coffee","memory_type":"preferences","memory_category":"semantic","session_id":null,"topic":null,"agent_name":"planner","extra_metadata":{},"created_at":"2026-01-15T12:00:00+00:00","source":{"origin":"application"},"trust":2,"schema_version":1}', 'Likes black coffee', 'like black coffe', 'snowball-5', '', false, 1768478400.0, 0.5, '', NULL, NULL, NULL, NULL);
INSERT INTO memory_rows OVERRIDING SYSTEM VALUE VALUES (32, 'coffee', 1, 1, 1768478400000000, 1768478400000000, '', '{"versions":[{"value":{"content":"Likes coffee","memory_type":"preferences","memory_category":"semantic","session_id":null,"topic":null,"agent_name":"planner","extra_metadata":{},"created_at":"2026-01-15T12:00:00+00:00","source":{"origin":"application"},"trust":2,"schema_version":1},"version":1,"created_at":"2026-01-15T12:00:00+00:00","updated_at":"2026-01-15T12:00:00+00:00","until":"2026-01-22T12:00:00+00:00","kind":"preferences"}]}', NULL, NULL, NULL, '', false, NULL, 0.5, '', NULL, NULL, 1769083200000000, 604800000000);
ALTER TABLE memory_scopes ALTER COLUMN id RESTART WITH 33;
