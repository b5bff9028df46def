"""Calling the API in tests as a client with a key does."""

from django.test import Client

RUNS = "/api/v1/runs"


class Api:
    """Django's test client with a key, JSON in and out."""

    def __init__(self, key: str) -> None:
        self.client = Client(headers={"authorization": f"Bearer {key}"})

    def get(self, path, **options):
        return self.client.get(path, **options)

    def post(self, path, body=None, **headers):
        return self.client.post(path, body or {}, content_type="application/json", headers=headers)

    def submit(self, value=1, **fields):
        key = fields.pop("key", None)
        headers = {"idempotency-key": key} if key else {}
        return self.post(RUNS, {"agent": "probe.ret", "input": {"value": value}, **fields}, **headers)


def problem(response, status, code):
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body = response.json()
    assert body["code"] == code
    assert body["status"] == status
    assert body["request_id"] == response["X-Request-ID"]
    return body
