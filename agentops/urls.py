"""Where everything is mounted: the API, its schema and docs, the console, health and metrics."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from agentops import api_errors, gauges, health

api: list[URLPattern | URLResolver] = [
    path("", include("quotas.urls")),
    path("", include("runs.urls")),
    path("", include("workers.urls")),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
]

urlpatterns = [
    path("api/v1/", include(api)),
    re_path(r"^api(/.*)?$", api_errors.not_found),
    path("admin/", admin.site.urls),
    path("metrics", gauges.metrics, name="metrics"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
]

handler400 = api_errors.handler400
handler403 = api_errors.handler403
handler404 = api_errors.handler404
handler500 = api_errors.handler500
