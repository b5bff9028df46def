"""The console's two app configs: the admin with our site, and the app with pages, tags and static files."""

import importlib
import importlib.util

from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps


class ConsoleAdminConfig(admin_apps.SimpleAdminConfig):
    """Django's admin, served by AgentOpsAdminSite, which finds the pages by itself when they are first asked for.

    Workers and commands, which show none, start in two thirds of the time.
    """

    default = False  # named in full in INSTALLED_APPS; "agentops.console" means ConsoleConfig
    default_site = "agentops.console.site.AgentOpsAdminSite"


class ConsoleConfig(AppConfig):
    default = True
    name = "agentops.console"
    label = "console"
    verbose_name = "Console"

    def ready(self) -> None:
        """Register the system checks."""
        if importlib.util.find_spec("agentops.checks") is not None:
            importlib.import_module("agentops.checks").register()
