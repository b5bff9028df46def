"""The OpenAPI schema: valid, without warnings, and with every address the API serves."""

import json
import re

import pytest
from django.core.management import call_command
from django.urls import get_resolver

from quotas.models import ApiKey


def routes() -> set[str]:
    """Return the paths under /api/v1 as the schema writes them."""
    patterns = next(entry for entry in get_resolver().url_patterns if str(entry.pattern) == "api/v1/").url_patterns
    found = [str(route.pattern) for part in patterns if hasattr(part, "url_patterns") for route in part.url_patterns]
    return {"/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route) for route in found}


def test_the_schema_is_valid_and_clean(tmp_path):
    out = tmp_path / "schema.yaml"
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(out))
    assert out.stat().st_size > 10_000


def test_every_route_is_in_the_schema(client):
    schema = client.get("/api/v1/schema/?format=json")
    assert schema.status_code == 200
    document = json.loads(schema.content)
    assert document["openapi"].startswith("3.1")
    paths = {path.removeprefix("/api/v1") for path in document["paths"]}
    assert paths == routes()
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            problem = operation["responses"]["401"]["content"]["application/problem+json"]
            assert problem["schema"]["$ref"].endswith("/Problem"), (path, verb)
            assert operation["description"], (path, verb)


@pytest.mark.django_db
def test_the_docs_page_keeps_the_content_security_policy(client):
    page = client.get("/api/v1/docs/")
    assert page.status_code == 200
    html = page.content.decode()
    assert "<style" not in html
    assert "style=" not in html
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)
    assert "script-src 'self'" in page["Content-Security-Policy"]
    script = client.get(re.findall(r'src="(/api/v1/docs/[^"]*)"', html)[0].replace("&amp;", "&"))
    assert script["Content-Type"].startswith("application/javascript")
    assert not ApiKey.objects.exists()
