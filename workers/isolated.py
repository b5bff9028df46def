"""A handler in a process of its own: `python -m workers.isolated LINK_FD`, started by isolation.py under a warden.

Models can be imported only after Django is set up, and that needs the worker's import path, which comes with the
first message: so the work itself is in remote.py.
"""

import faulthandler
import io
import os
import sys
from contextlib import suppress
from socket import socket

import django
from django.conf import settings
from django.utils.module_loading import import_string

from workers.frames import READ_BYTES, Body, Reader

# The admin's models without its pages, which nobody looks at here: a quarter of the time to start.
PLAIN = {"agentops.console.apps.ConsoleAdminConfig": "django.contrib.admin.apps.SimpleAdminConfig"}


def main() -> None:
    faulthandler.enable(all_threads=False)  # what a segmentation fault says is the end of the output
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    link = socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    reader = Reader()
    start = _first_message(link, reader)
    _restore(start)
    settings.INSTALLED_APPS = [PLAIN.get(app, app) for app in settings.INSTALLED_APPS]
    django.setup()
    work = import_string("workers.remote.work")
    with suppress(BrokenPipeError, ConnectionResetError):  # the worker is gone, and the warden comes
        work(link, reader, start)


def _first_message(link: socket, reader: Reader) -> Body:
    while block := link.recv(READ_BYTES):
        for body, _ in reader.feed(block):
            return body
    sys.exit("The worker closed the connection before it said which handler to run.")


def _restore(start: Body) -> None:
    """Import from where the worker imports, and leave no trace of how we were started to programs that we start."""
    sys.path[:] = start["path"]
    if start["python_path"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = start["python_path"]


if __name__ == "__main__":
    main()
