"""The first operator and the first API key of an instance, made once and shown once."""

import secrets

from django.contrib.auth import get_user_model
from django.db import transaction

from quotas import audit
from quotas.access import ALL_SCOPES
from quotas.api_keys import create_api_key
from quotas.services import ensure_account

ADMIN = "admin"


@transaction.atomic
def credentials() -> dict[str, str | None]:
    """Return {admin_user, admin_password, api_key}; the last two are None unless this is the first start."""
    users = get_user_model().objects
    known = users.filter(is_superuser=True).order_by("pk").first()
    if known is not None:
        return {"admin_user": known.get_username(), "admin_password": None, "api_key": None}
    password = secrets.token_urlsafe(15)
    user = users.create_superuser(ADMIN, email="", password=password)
    _, raw = create_api_key(
        account=ensure_account("default"),
        name="first key of up",
        scopes=sorted(ALL_SCOPES),
        actor="system",
        reason="first start",
    )
    audit.record(actor="system", action="user.create", target_type="user", target_id=user.pk, reason="first start")
    return {"admin_user": ADMIN, "admin_password": password, "api_key": raw}
