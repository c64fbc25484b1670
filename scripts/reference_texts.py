"""The sentences of the reference pages that the code cannot say of itself."""

from __future__ import annotations

PRODUCTS = {
    "bigquery": "BigQuery",
    "delta_local": "Delta tables, local",
    "delta_s3": "Delta tables, S3",
    "duckdb": "DuckDB",
    "glue_schema_registry": "AWS Glue schema registry",
    "kafka": "Kafka",
    "kinesis": "Kinesis",
    "mysql": "MySQL, MariaDB",
    "object_store_local": "Local files: Parquet, CSV, ORC, JSON lines",
    "object_store_s3": "Files in S3",
    "postgres": "PostgreSQL",
    "pubsub": "Google Pub/Sub",
    "rabbitmq": "RabbitMQ",
    "redshift": "Redshift",
    "schema_registry": "Schema registry",
    "snowflake": "Snowflake",
    "sqlite": "SQLite",
}

_SCHEDULED = "there is no scheduler yet"

# Options that are checked and kept, but change nothing yet.
NO_EFFECT_YET = {
    "schedule": f"shown by `flow status`; {_SCHEDULED}",
    "timezone": f"shown by `flow status`; {_SCHEDULED}",
    "upstream_freshness_secs": f"kept; {_SCHEDULED}",
    "retry": f"kept; {_SCHEDULED}",
    "depends_on": "yes: `flow run` keeps the order",
}

OPTIONS = {
    "target": "The declared table that rows land in.",
    "targets": "Several tables at once, as `Target(…)` entries.",
    "target_connection": "Where the table is: a name or a connection. Without it: `default`.",
    "source_connection": "Where rows are read. Without it: the target's connection.",
    "source_table": "The table, file, folder or glob to read, instead of SQL.",
    "column_map": "Target column → source column, with `source_table=`.",
    "mode": "How rows land; see below.",
    "name": "The pipeline's name. Without it: the function's.",
    "schedule": "A cron expression of five fields.",
    "timezone": "The IANA time zone of the schedule. Without it: UTC.",
    "depends_on": "Pipelines, or their names, that have to succeed first.",
    "upstream_freshness_secs": "How old the last success of an upstream may be.",
    "retry": "`max_attempts`, `backoff_seconds`, `backoff_factor`, `max_backoff_seconds`.",
    "keys": "The columns that identify a row.",
    "update_columns": "The columns that a merge may change.",
    "compare_columns": "The columns that decide whether a row changed.",
    "event_timestamp_column": "When an scd2 event happened.",
    "ttl": "How long an scd2 version stays open, as a `timedelta`.",
    "ttl_seconds": "The same, in seconds.",
    "handle_deletes": '`"hard"` or `"soft"`: what happens to keys that the source lost.',
    "soft_delete_column": "The column that a soft delete sets.",
    "max_delete_fraction": "The largest share of rows that one run may delete.",
    "delete_when": "A condition on the source's columns, in Spark SQL, that marks a delete.",
    "duplicate_keys": '`"error"`, `"first"` or `"last"`: which of several rows of a key counts.',
    "order_by": "What decides between them: columns that are loaded.",
    "incremental": "Read only what is new since the last run.",
    "incremental_column": "Short for `incremental=True` and `watermark_column=`.",
    "watermark_column": "The column that tells what is new, with `incremental=True`.",
    "lookback": "How far behind the watermark to read again: a `timedelta`, or a number.",
    "null_watermark": '`"error"` or `"load"`: what happens to rows without a watermark.',
    "on_drift": '`"error"`, `"warn"` or `"evolve"` when the table differs; or a mapping by kind.',
    "allow": "Changes of a table that may lose data, by name.",
    "allow_empty": 'Let `mode="truncate"` or `handle_deletes=` empty the table.',
    "force_path": '`"same_db"` or `"spark"` instead of the automatic choice.',
    "transform_sql": "Spark SQL over `source`, between reading and landing.",
    "transforms_pre": "Steps of `ematix_flow.transforms` that change the rows before they land.",
    "transforms_post": "What runs after the commit.",
    "continue_on_failure_post": "Whether a failure there leaves the run succeeded.",
    "continue_on_target_failure": "Whether the other targets go on when one fails.",
    "prefix": "The folder of a target made of files, instead of `schema/name`.",
    "engine": "Which engine runs it: `auto`, `local`, `sail` or `distributed`, as "
    "`EMATIX_FLOW_ENGINE`.",
    "peers": "`flow-worker` processes to spread the run over: `https://host:port`, "
    "`dns://host:port`, `k8s://service.namespace:port`.",
    "master": "An existing cluster: `spark://…`, `sc://…`, `k8s://https://…`; untested: `yarn`.",
}

_SERVER = "Where the server is, when there is no `url`."
FIELDS = {
    ("", "url"): "Address in one text; `dsn` is another spelling. May hold `${…}` references.",
    ("", "host"): _SERVER,
    ("", "port"): _SERVER,
    ("", "database"): "The database.",
    ("", "user"): "The user.",
    ("", "password"): "The password; write a `${…}` reference.",
    ("", "path"): "File or folder, relative to where `flow` runs.",
    ("", "shared"): "Whether every machine of a cluster has the same storage at this path.",
    ("", "format"): "`parquet`, `csv`, `orc` or `json_lines`.",
    ("", "parquet_compression"): "`uncompressed`, `snappy`, `gzip` or `zstd`.",
    ("", "csv_delimiter"): "The character between fields.",
    ("", "csv_header"): "Whether the first line names the columns.",
    ("", "csv_quote"): "The character around fields.",
    ("", "csv_escape"): "The character before a quote inside a field; doubled quotes without it.",
    ("", "csv_null_value"): "How NULL is written.",
    ("", "csv_read_options"): "How to read CSV that differs from what is written.",
    ("", "json_read_options"): "How to read JSON lines.",
    ("", "bucket"): "The bucket.",
    ("", "prefix"): "A folder inside the bucket.",
    ("", "region"): "The region.",
    ("", "endpoint"): "Another address than the provider's own.",
    ("", "access_key_id"): "The key's id.",
    ("", "secret_access_key"): "The key.",
    ("", "account"): "The account.",
    ("", "amqp_url"): "The broker's address; `url` is another spelling.",
    ("", "anonymous_auth"): "Whether to connect without credentials, as emulators want it.",
    ("", "auto_offset_reset"): "`earliest` or `latest`.",
    ("", "aws_access_key_id"): "The key's id.",
    ("", "aws_profile"): "A profile of your AWS configuration.",
    ("", "aws_secret_access_key"): "The key.",
    ("", "basic_auth_password"): "The password.",
    ("", "basic_auth_user"): "The user.",
    ("", "bootstrap_servers"): "`host:port`, several separated by commas.",
    ("", "consumer_tag"): "The consumer's name at the broker.",
    ("", "credentials_path"): "A file of credentials.",
    ("", "dataset"): "The dataset.",
    ("", "group_id"): "The consumer group.",
    ("", "iam_role"): "The role that loads staged files.",
    ("", "location"): "The location of the data.",
    ("", "msk_iam_region"): "The region, for IAM authentication at MSK.",
    ("", "payload_format"): "`json`, `raw_bytes`, `avro` or `protobuf`.",
    ("", "private_key"): "The private key, for key-pair authentication.",
    ("", "project"): "The project.",
    ("", "project_id"): "The project.",
    ("", "registry_name"): "The registry.",
    ("", "role"): "The role.",
    ("", "s3_staging_dir"): "Where files are staged.",
    ("", "sasl_plain_password"): "The password, for SASL/PLAIN.",
    ("", "sasl_plain_username"): "The user, for SASL/PLAIN.",
    ("", "sasl_scram_mechanism"): "`sha-256` or `sha-512`.",
    ("", "sasl_scram_password"): "The password, for SASL/SCRAM.",
    ("", "sasl_scram_username"): "The user, for SASL/SCRAM.",
    ("", "schema"): "The schema.",
    ("", "schema_registry"): "The schema registry: a connection or its name.",
    ("", "schema_registry_url"): "The schema registry's address.",
    ("", "stream_name"): "The stream.",
    ("", "warehouse"): "The warehouse.",
}

SETTINGS = {
    "EMATIX_FLOW_DSN_<NAME>": "The URL of connection `<name>`; wins over every file.",
    "EMATIX_FLOW_DSN": "The URL of the connection `default`.",
    "EMATIX_FLOW_HOME": "Your own folder instead of `~/.ematix-flow`.",
    "EMATIX_FLOW_RUN_LOG_URL": "Another run log: `sqlite://path`, `memory://`.",
    "EMATIX_FLOW_RUN_LOG_PATH": "The same, as a file.",
    "EMATIX_FLOW_ENGINE": "`local`: Spark in this process, whatever else is up; `auto`: the warm "
    "engine of this folder when there is one that fits (the default); `sail`: Sail, for what it "
    "does as Spark does (see the how-to *Run without Java*); `distributed`: on peers or a master.",
    "EMATIX_FLOW_PEERS": "Addresses of peers, with commas between them; wins over declarations.",
    "EMATIX_FLOW_MASTER": "An existing Spark cluster, `spark://…` or `k8s://https://…`, or "
    "Spark Connect server, `sc://…`; wins over declarations.",
    "EMATIX_FLOW_MASTER_SECRET": "The secret that a standalone cluster asks for, or the token of a "
    "Spark Connect server.",
    "EMATIX_FLOW_PEER_TIMEOUT": "Seconds that a silent peer, or a silent driver, is waited for: "
    "30 if not set.",
    "EMATIX_FLOW_POD_TIMEOUT": "Seconds that executor pods may take to come up on Kubernetes, and "
    "that a run may be without any: 300 if not set.",
    "EMATIX_FLOW_DRIVER_HOST": "The address by which peers or pods reach this machine, if it is "
    "not that of the route to the first of them.",
    "EMATIX_FLOW_TLS_CERT": "The certificate that a driver or a `flow-worker` shows, PEM.",
    "EMATIX_FLOW_TLS_KEY": "The key of that certificate, PEM, without a passphrase.",
    "EMATIX_FLOW_TLS_CA": "The authority that must have signed the certificate of the other side.",
    "EMATIX_FLOW_CACHE_DIR": "Where jars and the class archive are kept.",
    "JAVA_HOME": "A Java 17 or newer to use; without one, the bundled Java is used.",
    "PYSPARK_PYTHON": "The Python of Spark's workers; without it, the one that runs `flow`.",
}

TOML_KEYS = {
    "project.modules": "Modules, files or folders that declare pipelines.",
    "project.run_log": "The run log of this project, a path or a URL.",
    "project.engine": "`auto`, `local`, `sail` or `distributed`, as `EMATIX_FLOW_ENGINE`.",
    "project.peers": "A list of addresses of peers.",
    "project.master": "An existing Spark cluster or Spark Connect server.",
    "project.master_secret": "Its secret or token, best as a reference: `${SPARK_SECRET}`.",
    "project.tls": "`cert`, `key` and `ca`: files for mutual TLS with peers.",
    "transform": "`engine`, `peers`, `master` and `master_secret`, as in `project`, over which it "
    "wins.",
    "pipelines.<name>": "`engine`, `peers`, `master` and `master_secret` of one pipeline, over "
    "whose declaration it wins.",
    "spark": "Settings of Spark on a cluster that `master` names by `spark://` or `k8s://`, "
    "without the `spark.` in front: "
    '`executor.memory = "4g"`.',
    "connections.<name>": "A connection: its `kind` and fields, or just `url`.",
}
