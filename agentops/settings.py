"""The one settings module. Every value comes from the environment or from the instance's data folder.

`manage.py up` writes `<data folder>/instance.json` (the addresses of what it started, where its agents are), so that
every other command finds the instance through `AGENTOPS_DATA_DIR` alone. `docs/settings.md` lists every variable.
"""

import json
import os
import secrets
from importlib import import_module
from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF

from agentops import __version__, env, quick_start  # noqa: F401  before whatever imports structlog
from agentops.logs import configure_structlog
from quotas import masking

AGENTOPS_VERSION = __version__
AGENTOPS_RELEASE = env.text("AGENTOPS_RELEASE") or __version__
BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.text("AGENTOPS_DATA_DIR", "data")).absolute()


def _instance() -> dict[str, Any]:
    """Return what a running `up` wrote about itself, or {} where nothing was started here."""
    try:
        return dict(json.loads((DATA_DIR / "instance.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _secret_key() -> str:
    """Return the configured key, the data folder's key, or one for this process only (check W001)."""
    given = env.text("AGENTOPS_SECRET_KEY")
    if given:
        return given
    try:
        return (DATA_DIR / "secret_key").read_text(encoding="utf-8").strip()
    except OSError:
        return "ephemeral-" + secrets.token_urlsafe(50)


INSTANCE = _instance()

# -- who we are -------------------------------------------------------------------------------------
SECRET_KEY = _secret_key()
DEBUG = env.boolean("AGENTOPS_DEBUG", default=False)
ALLOWED_HOSTS = env.words("AGENTOPS_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = env.words("AGENTOPS_CSRF_TRUSTED_ORIGINS")
AGENTOPS_ALLOWED_ORIGINS = env.words("AGENTOPS_ALLOWED_ORIGINS")
if env.boolean("AGENTOPS_BEHIND_HTTPS_PROXY", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = env.boolean("AGENTOPS_HTTPS_REDIRECT", default=False)
SECURE_HSTS_SECONDS = env.integer("AGENTOPS_HSTS_SECONDS", 0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = SECURE_HSTS_SECONDS > 0
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.boolean("AGENTOPS_SECURE_COOKIES", default=False)
SESSION_COOKIE_HTTPONLY = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# -- what is installed ------------------------------------------------------------------------------
AGENTOPS_APPS = env.words("AGENTOPS_APPS") or list(INSTANCE.get("apps") or [])
INSTALLED_APPS = [
    "agentops.console.apps.ConsoleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_prometheus",
    "axes",
    "csp",
    "quotas",
    "runs",
    "workers",
    "agentops.console",
    "agentops",
]
MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "agentops.middleware.request_id",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "agentops.middleware.cors",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]
ROOT_URLCONF = "agentops.urls"
ASGI_APPLICATION = "agentops.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# -- the database: the truth ------------------------------------------------------------------------
DATABASE_URL = env.text("DATABASE_URL") or INSTANCE.get("database_url") or f"sqlite:///{DATA_DIR}/agentops.sqlite3"
LEASE_SECONDS = env.seconds("AGENTOPS_LEASE_SECONDS", 15, least=0.5)
LOCK_WAIT_MS = 1000  # each try waits this long for a row lock (protocol 4.5)
STATEMENT_RETRIES = 3
DATABASE_POOL = env.boolean("AGENTOPS_DATABASE_POOL", default=False)  # `up` turns it on for web only


def _database() -> dict[str, Any]:
    entry = env.database(DATABASE_URL)
    if entry["ENGINE"].endswith("sqlite3"):
        # IMMEDIATE: a deferred read-modify-write fails at once on a stale snapshot, whatever the timeout.
        # FULL: an accepted run survives a power cut (protocol 1.7).
        entry["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            " PRAGMA journal_size_limit=27103364; PRAGMA foreign_keys=ON;",
        }
    elif entry["ENGINE"].endswith("postgresql"):
        patience = max(5, round(LEASE_SECONDS / 2))
        entry["OPTIONS"] |= {
            # A transaction that stands still (a stopped process, a forgotten console) must not hold its rows for ever.
            "options": f"-c lock_timeout={LOCK_WAIT_MS} -c idle_in_transaction_session_timeout={patience * 4000}",
            # A server that vanished without a word must not hold a thread for hours.
            "connect_timeout": 5,
            "keepalives_idle": patience,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": patience * 1000,
        }
        if DATABASE_POOL:
            entry["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 16, "timeout": 10}
    else:
        import_module("pymysql").install_as_MySQLdb()  # the pure-Python driver, under the name Django asks for
        entry["OPTIONS"] |= {
            "connect_timeout": 5,
            "read_timeout": 120,
            "write_timeout": 30,
            "charset": "utf8mb4",
            "isolation_level": "read committed",
            "init_command": f"SET time_zone='+00:00', innodb_lock_wait_timeout={max(1, LOCK_WAIT_MS // 1000)}",
        }
    entry["CONN_MAX_AGE"] = 0  # a worker keeps its own open: workers.units.keep_connections
    entry["CONN_HEALTH_CHECKS"] = True
    return entry


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SILENCED_SYSTEM_CHECKS = ["models.W037"]  # that MariaDB and MySQL leave out an index with a condition is meant

# -- Redis: the transport ---------------------------------------------------------------------------
REDIS_URL = env.text("REDIS_URL") or INSTANCE.get("redis_url") or f"unix://{DATA_DIR}/valkey.sock"
AGENTOPS_PREFIX = env.text("AGENTOPS_PREFIX", "agentops")
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            # redis-py's default of 5 s would end every idle socket after 5 s.
            "hosts": [{"address": REDIS_URL, "socket_timeout": 30}],
            "prefix": f"{AGENTOPS_PREFIX}:ops",
        },
    },
}
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": f"{AGENTOPS_PREFIX}:cache",
        "OPTIONS": {"socket_timeout": 5, "socket_connect_timeout": 2},
    },
}

# -- people -----------------------------------------------------------------------------------------
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "admin:login"
AXES_FAILURE_LIMIT = env.integer("AGENTOPS_LOGIN_FAILURES", 10, least=1)
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_VERBOSE = False

# -- pages and files --------------------------------------------------------------------------------
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = ["agentops.formats"]
STATIC_URL = "/static/"
STATIC_ROOT = Path(env.text("AGENTOPS_STATIC_ROOT", str(DATA_DIR / "static")))
MEDIA_ROOT = Path(env.text("AGENTOPS_FILES_DIR", str(DATA_DIR / "files")))
WHITENOISE_USE_FINDERS = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    # One alias for web and workers: uploads and artifacts.
    "artifacts": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": MEDIA_ROOT},
    },
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
BODY_LIMIT = 1024 * 1024
UPLOAD_LIMIT = 50 * 1024 * 1024
DATA_UPLOAD_MAX_MEMORY_SIZE = BODY_LIMIT
FILE_UPLOAD_HANDLERS = [
    "runs.uploads.UploadLimit",
    "django.core.files.uploadhandler.MemoryFileUploadHandler",
    "django.core.files.uploadhandler.TemporaryFileUploadHandler",
]
# The console shows untrusted model output: nothing inline, nothing from elsewhere.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "object-src": [NONE],
    },
}

# -- API --------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "quotas.authentication.ApiKeyAuthentication",
        "quotas.authentication.AccountSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["quotas.authentication.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["quotas.strict_json.StrictJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "agentops.api_errors.problem",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "AgentOps",
    "DESCRIPTION": "Submit, watch, cancel and account for LLM-agent runs.",
    "VERSION": "v1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "OnLostEnum": "runs.models.OnLost",
        "RunStateEnum": "runs.states.RunState",
        "CaseStateEnum": "workers.models.Case.State",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "runs.openapi.add_event_streams",
    ],
}

# -- runs -------------------------------------------------------------------------------------------
AGENTOPS_PROBE_AGENTS = env.boolean("AGENTOPS_PROBE_AGENTS", default=bool(INSTANCE.get("probe_agents")))
AGENTOPS_PROBE_LOG = env.text("AGENTOPS_PROBE_LOG")
AGENTOPS_PRICES = env.text("AGENTOPS_PRICES")
SWEEP_SECONDS = env.seconds("AGENTOPS_SWEEP_SECONDS", 2)
WAKE_WAIT_SECONDS = env.seconds("AGENTOPS_WAKE_WAIT_SECONDS", 2)
HEARTBEAT_SECONDS = env.seconds("AGENTOPS_HEARTBEAT_SECONDS", 10)
WORKER_CONCURRENCY = env.integer("AGENTOPS_CONCURRENCY", 16, least=1)
GLOBAL_SLOTS = env.integer("AGENTOPS_GLOBAL_SLOTS", 0)  # per queue; 0 = off
QUEUES = env.words("AGENTOPS_QUEUES", "default")
EXTRA_STREAMS = env.words("AGENTOPS_EXTRA_STREAMS")
QUEUE_WAIT_SECONDS = env.seconds("AGENTOPS_QUEUE_WAIT_SECONDS", 30 * 60)
WALL_CLOCK_SECONDS = env.seconds("AGENTOPS_WALL_CLOCK_SECONDS", 30 * 60)
BACKLOG_LIMIT = env.integer("AGENTOPS_BACKLOG_LIMIT", 10_000, least=1)
# The longest time limit of the shipped agents, and 30 s.
DRAIN_GRACE_SECONDS = env.seconds("AGENTOPS_DRAIN_GRACE_SECONDS", 1830)
DRAIN_POLICY = env.choice("AGENTOPS_DRAIN_POLICY", "interrupt", of=("interrupt", "hand_back"))
HANDLER_GRACE_SECONDS = env.seconds("AGENTOPS_HANDLER_GRACE_SECONDS", 10)
EVENT_CAP = env.integer("AGENTOPS_EVENT_CAP", 10_000, least=100)
EVENT_CAP_BYTES = 8 * 1024 * 1024
EVENT_BYTES = 16 * 1024
EVENT_TTL_SECONDS = 24 * 3600
EVENT_CLOSED_TTL_SECONDS = 600
RESULT_INLINE_BYTES = 256 * 1024
IDEMPOTENCY_SECONDS = 24 * 3600
RETAIN_RUNS_DAYS = env.integer("AGENTOPS_RETAIN_RUNS_DAYS", 90)  # 0 = for ever
RETAIN_PAYLOADS_DAYS = env.integer("AGENTOPS_RETAIN_PAYLOADS_DAYS", 30)
WORKER_PORT = env.integer("AGENTOPS_WORKER_PORT", 0)  # 0 = any free port

# -- model ------------------------------------------------------------------------------------------
OPENAI_BASE_URL = env.text("OPENAI_BASE_URL") or INSTANCE.get("openai_base_url") or ""
OPENAI_API_KEY = env.text("OPENAI_API_KEY") or ("embedded" if INSTANCE.get("openai_base_url") else "")
AGENTOPS_MODEL = env.text("AGENTOPS_MODEL") or INSTANCE.get("model") or "smollm2-135m-instruct"
AGENTOPS_EMBEDDING_MODEL = env.text("AGENTOPS_EMBEDDING_MODEL") or AGENTOPS_MODEL
AGENTOPS_MODEL_WINDOW = env.integer("AGENTOPS_MODEL_WINDOW", 2048, least=256)  # tokens per request

# -- secrets, as errors and logs must not show them -------------------------------------------------
masking.configure(
    [SECRET_KEY, OPENAI_API_KEY, masking.password_of(DATABASE_URL), masking.password_of(REDIS_URL)],
    os.environ,
    env.text("AGENTOPS_MASK").split(),
)

# -- logs -------------------------------------------------------------------------------------------
LOG_FORMAT = env.text("AGENTOPS_LOG_FORMAT", "json")
LOG_LEVEL = env.text("AGENTOPS_LOG_LEVEL", "INFO").upper()
LOGGING_CONFIG = None
configure_structlog(LOG_FORMAT, LOG_LEVEL)
