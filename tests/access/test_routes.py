"""Every route and socket has a stated rule. The lists come from the URL resolver and the socket routing."""

from django.http import HttpResponse
from django.urls import get_resolver, include, path

from agentops import urls
from agentops.asgi import socket_routes
from quotas.api import QuotaView
from tests.access import rules


class Writing(QuotaView):
    """A method more than the rule of its route speaks of."""

    def delete(self, request):
        return HttpResponse()


def test_every_route_has_a_rule_and_every_rule_a_route():
    patterns = get_resolver().url_patterns

    assert rules.unstated(patterns) == set(), "say in tests/access/rules.py who may call them"
    assert rules.unserved(patterns) == set()
    assert {str(route.pattern) for route in socket_routes} == set(rules.SOCKETS)


def test_a_new_route_or_method_without_a_rule_is_noticed():
    def view(request):
        return HttpResponse()

    new = [
        path("api/v1/", include([path("new", view), path("quota", Writing.as_view())])),
        path("admin/new/", view),
        path("new", view),
    ]

    missing = rules.unstated([*urls.urlpatterns, *new]) - rules.unstated(urls.urlpatterns)

    assert missing == {"GET api/v1/new", "api/v1/new", "DELETE api/v1/quota", "admin/new/", "GET new", "new"}
