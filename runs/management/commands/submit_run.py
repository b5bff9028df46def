"""`submit_run AGENT --input JSON|@FILE [--file FIELD=PATH] [--watch | --dry-run]`: submit a run, follow it if asked.

Exit codes: 0 accepted (with --watch: succeeded), 1 failed (with --dry-run: a limit is hit), 2 wrong usage or refused,
3 cancelled or interrupted, 4 no instance, 130 stopped watching (the run goes on). With `--json`: the run as one line;
with --watch, its events before it; with --dry-run what the API answers.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from quotas.command import DONE, FAILED, micro
from quotas.json_rules import parse
from quotas.models import Priority
from runs.agents import OVERRIDES, AgentSpec
from runs.command import RunCommand, run_facts
from runs.ids import new_run_id
from runs.models import OnLost
from runs.serializers import SubmitIn, body_digest
from runs.services.asking import find_spec
from runs.services.dry_run import Preview, preview_run
from runs.services.files import clean_name, store_upload
from runs.services.overrides import ON_BUSY
from runs.services.submit import submit_run
from runs.uploads import HEAD_BYTES, UploadTooLarge, type_of
from runs.watch import Watcher

PIECE_BYTES = 256 * 1024
# Options by the API's name of their field; None means that nothing was said.
FIELDS = ("priority", "session", "on_busy", "delay", "start_at", "deadline_seconds", *sorted(OVERRIDES))


class Command(RunCommand):
    help = "Submit a run and print its id."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("agent", help="the agent's name, as GET /api/v1/agents lists it")
        parser.add_argument("--input", help="JSON, @FILE, or - for stdin; {} where it is left out")
        parser.add_argument(
            "--file",
            action="append",
            default=[],
            metavar="[FIELD=]PATH",
            help="upload a file and put its id into the input's field; may be repeated",
        )
        parser.add_argument("--priority", choices=Priority.values)
        parser.add_argument("--session", help="one run at a time a session")
        parser.add_argument("--on-busy", choices=ON_BUSY, help="what to do when the session has a run (reject)")
        parser.add_argument("--delay", type=float, metavar="S", help="begin S seconds from now, or later")
        parser.add_argument("--start-at", metavar="TIME", help="begin then, or later: 2031-05-01T09:00:00+02:00")
        parser.add_argument(
            "--deadline", type=float, dest="deadline_seconds", metavar="S", help="be over S seconds from now"
        )
        may = "for agents that allow it"
        parser.add_argument("--time-limit", type=float, metavar="S", help=f"seconds for one attempt, {may}")
        parser.add_argument("--max-attempts", type=int, metavar="N", help=f"how often it is tried, {may}")
        parser.add_argument("--on-lost", choices=OnLost.values, help=f"what to do when its worker is lost, {may}")
        parser.add_argument("--idempotency-key", help="the same key and input answer the first run")
        then = parser.add_mutually_exclusive_group()
        then.add_argument("--watch", action="store_true", help="follow the run until it ends")
        then.add_argument("--dry-run", action="store_true", help="tell estimate and limits, and submit nothing")

    def run(self, options: dict[str, Any]) -> int:
        spec = find_spec(options["agent"])
        run_input = self._input(options["input"])
        for text in options["file"]:
            self._add_file(spec, run_input, text, is_kept=not options["dry_run"])
        body = self._body(options, run_input)
        if options["dry_run"]:
            files_follow = bool(options["file"])
            return self._tell(preview_run(account=self.account, actor=self.actor, files_follow=files_follow, **body))
        submitted = submit_run(
            account=self.account,
            actor=self.actor,
            idempotency_key=options["idempotency_key"],
            idempotency_digest=body_digest(body),
            **body,
        )
        run = submitted.run
        if not options["watch"]:
            if self.as_json:
                self.emit({**run_facts(run), "replayed": submitted.replayed})
            else:
                self.stdout.write(str(run.id))
            return DONE
        self.say(f"run {run.id}")
        watcher = Watcher(run.id, account=self.account, write=self.write_raw, as_json=self.as_json)
        return watcher.watch()

    def _tell(self, found: Preview) -> int:
        """Say what a submit would be answered. Returns the exit code."""
        if self.as_json:
            self.emit(found.facts)
        account, free = found.account, found.facts["available"]
        self.say(f"estimate: {micro(found.estimate)} credits ({found.estimate} micro-units)")
        self.say(f"account {account.name}: {micro(free)} of {micro(account.limit)} credits available")
        if found.is_allowed:
            place = "" if found.queue_position is None else f", as number {found.queue_position} of {found.run.queue}"
            self.say(f"It would be {found.state}{place}.")
            return DONE
        self.say("It would be refused:")
        for refusal in found.limits_hit:
            self.say(f"  {refusal.code}: {refusal.message}")
        return FAILED

    def _body(self, options: dict[str, Any], run_input: Any) -> dict[str, Any]:
        """Return the body that the API would have got, checked by the same rules."""
        key = options["idempotency_key"]
        if key is not None and not (1 <= len(key) <= 200 and key.isascii() and key.isprintable()):
            self.usage("--idempotency-key has 1 to 200 printable ASCII characters.")
        given = {"agent": options["agent"], "input": run_input}
        given |= {name: options[name] for name in FIELDS if options[name] is not None}
        serializer = SubmitIn(data=given)
        if not serializer.is_valid():
            self.usage("; ".join(f"{name}: {' '.join(map(str, said))}" for name, said in serializer.errors.items()))
        return dict(serializer.validated_data)

    def _input(self, given: str | None) -> Any:
        if given is None:
            return {}
        if given == "-":
            return parse(sys.stdin.buffer.read(settings.BODY_LIMIT + 1))
        if not given.startswith("@"):
            return parse(given.encode("utf-8", "surrogateescape"))
        try:
            return parse(Path(given[1:]).read_bytes())
        except OSError as error:
            self.usage(f"--input: cannot read {given[1:]}: {error.strerror}.")

    def _add_file(self, spec: AgentSpec, run_input: Any, text: str, *, is_kept: bool) -> None:
        """Upload a file and put its id into the input; one that is not kept is only looked at."""
        field, path = self._field_and_path(spec, text)
        if not isinstance(run_input, dict):
            self.usage("--file needs an input that is a JSON object.")
        try:
            size = path.stat().st_size
            with path.open("rb") as source:
                head = source.read(HEAD_BYTES)
        except OSError as error:
            self.usage(f"--file: cannot read {path}: {error.strerror}.")
        if size > settings.UPLOAD_LIMIT:
            raise UploadTooLarge(limit=settings.UPLOAD_LIMIT)
        name = clean_name(path.name)
        kind = type_of(name, "", head)
        file_id = new_run_id()
        if is_kept:
            file_id = store_upload(account=self.account, name=name, content_type=kind, chunks=_pieces(path)).pk
        run_input[field] = str(file_id)

    def _field_and_path(self, spec: AgentSpec, text: str) -> tuple[str, Path]:
        field, equals, path = text.partition("=")
        if equals and field in spec.input_schema.get("properties", {}):
            return field, Path(path)
        if len(spec.file_fields) != 1:
            fields = ", ".join(spec.file_fields) or "none"
            self.usage(f"--file {text}: write FIELD=PATH; file fields of {spec.name}: {fields}.")
        return spec.file_fields[0], Path(text)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        while piece := source.read(PIECE_BYTES):
            yield piece
