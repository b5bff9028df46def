"""The mutants of `make mutants`: each takes one rule of the protocol out, and names the tests that must fail then.

Every rule of sections 1-10 and 12 that docs/protocol.md marks † has at least one.
"""

from tests.money_mutants import MONEY
from tests.mutant import Edit, Mutant
from tests.mutant import mutant as _mutant

TRANSITIONS, ATTEMPTS, LEAVING = "runs/transitions.py", "runs/services/attempts.py", "runs/services/leaving.py"
CLAIMS, SESSIONS, SCHEDULE = "runs/services/claims.py", "runs/services/sessions.py", "runs/services/schedule.py"
DISPATCH, APPEND, ACK = "runs/lua/dispatch.lua", "runs/lua/append.lua", "workers/lua/ack.lua"
LEASES, TAKEOVER, DELIVERY = "workers/leases.py", "workers/takeover.py", "workers/delivery.py"
SWEEPER, FINALISER, TAKE = "workers/sweeper.py", "workers/finaliser.py", "workers/lua/take.lua"
STREAM, BUDGET = "workers/stream.py", "runs/services/budget.py"

MOVES, ENDS, RETRIES = "tests/runs/test_transitions.py", "tests/runs/test_attempts.py", "tests/runs/test_retries.py"
DAGGER, LOCKS, LOG = "tests/workers/test_dagger_rules.py", "tests/runs/test_lock_order.py", "tests/runs/test_log.py"
BEATS, LOOKS = "tests/workers/test_leases.py", "tests/workers/test_takeover.py"
ENTRIES, SWEEPS = "tests/runs/test_dispatch.py", "tests/workers/test_sweeper.py"
EXTENDS = "tests/runs/test_extension.py"
PAUSES, DRAINS = "tests/workers/test_pauses.py", "tests/workers/test_draining.py"
LINE, STARTS = "tests/runs/test_handing_on.py", "tests/workers/test_deliveries.py"
LOCK_ORDER = f"{LOCKS}::test_the_account_is_locked_first_and_nothing_is_written_before_the_run_is"

OWNERS = (
    _mutant(
        "fence check", "3.1", "a move does not repeat the fence it was read at",
        TRANSITIONS, "Q(pk=move.run.pk, fence=move.run.fence, state__in=", "Q(pk=move.run.pk, state__in=",
        f"{MOVES}::test_an_edge_does_not_move_a_row_of_another_fence",
    ),
    _mutant(
        "fence raised", "3.1", "a change of state keeps the fence",
        TRANSITIONS, "return max(self.run.fence, self.above) + 1", "return max(self.run.fence, self.above)",
        f"{MOVES}::test_a_set_moves_each_run_its_own_way",
        f"{MOVES}::test_an_edge_moves_from_its_sources_and_from_nowhere_else",
    ),
    _mutant(
        "token check", "3.1", "what leaves running does not repeat the claim's token",
        TRANSITIONS, "guard &= Q(claim_token=move.run.claim_token)", "pass",
        f"{MOVES}::test_what_leaves_running_repeats_the_owners_token",
    ),
    _mutant(
        "row count", "1.1", "a set that hit fewer rows than it has moves passes",
        TRANSITIONS, "if moved != len(moves):", "if not moves:",
        f"{MOVES}::test_a_set_of_which_one_cannot_move_does_not_move_at_all",
    ),
    _mutant(
        "cancel mark", "12.1", "a run marked for cancel may end otherwise",
        TRANSITIONS, "guard &= Q(cancel_requested_at=None)", "pass",
        f"{MOVES}::test_a_cancel_mark_lets_nothing_pass_but_the_cancel",
    ),
    _mutant(
        "cancel decides", "12.1", "an outcome that comes after the mark is not turned into the cancel",
        ATTEMPTS, "if run.cancel_requested_at is not None and edge is not CONFIRM_CANCEL:", "if run is None:",
        "tests/runs/test_cancel.py::test_a_failure_that_comes_after_the_mark_is_no_failure_of_the_run",
    ),
    _mutant(
        "owner's fence", "1.5", "an attempt of an older fence may end the run",
        ATTEMPTS, "        and row.fence == finish.fence\n", "",
        f"{ENDS}::test_whoever_is_not_the_owner_ends_nothing",
    ),
    _mutant(
        "owner's token", "1.5", "an attempt with another claim's token may end the run",
        ATTEMPTS, "        and row.claim_token == finish.token\n", "",
        f"{ENDS}::test_whoever_is_not_the_owner_ends_nothing",
    ),
    _mutant(
        "owner's files", "1.5", "a fenced attempt may replace what the owner made",
        "runs/services/files.py",
        "pk=run_id, fence=fence, claim_token=claim_token, state=RunState.RUNNING", "pk=run_id",
        "tests/runs/test_artifacts.py::test_a_fenced_attempt_leaves_neither_row_nor_bytes",
    ),
    _mutant(
        "attempt raised", "2.3", "a retry does not raise the attempt",
        ATTEMPTS, '{"attempt": run.attempt + 1, **queued, **columns}', "{**queued, **columns}",
        f"{RETRIES}::test_a_failed_attempt_is_scheduled_for_the_next_one",
    ),
    _mutant(
        "lost answer of an end", "1.8", "an end that was committed before is taken for somebody else's",
        FINALISER, "    if finished.lost:\n", "    if finished is None:\n",
        f"{DAGGER}::test_an_ending_that_is_sent_again_finds_what_its_first_sending_did",
    ),
    _mutant(
        "set operations", "6.5", "one run that cannot be claimed holds back the others",
        "workers/claimer.py",
        "            # A row that somebody holds, or data that breaks the set: none", "            raise  #",
        "tests/races/test_sets.py::test_a_run_whose_data_breaks_the_claim_holds_back_no_other",
    ),
)  # fmt: skip

MONEY_AND_LINES = (
    Mutant(
        "settle", "9", "a hold is settled whatever its state",
        (
            Edit(
                "quotas/services/settling.py",
                "            run_id__in=[bill.run_id for bill in bills],\n"
                "            state__in=Hold.OPEN,\n",
                "            run_id__in=[bill.run_id for bill in bills],\n",
            ),
            Edit(
                "quotas/services/settling.py",
                "        Q(run_id__in=[bill.run_id for bill in due]),\n"
                "        state__in=Hold.OPEN,\n",
                "        Q(run_id__in=[bill.run_id for bill in due]),\n",
            ),
        ),
        (
            "tests/quotas/test_holds.py::test_a_settlement_happens_once",
            "tests/quotas/test_holds.py::test_of_a_set_only_the_open_holds_are_closed",
        ),
    ),
    _mutant(
        "account first", "1.4", "a run that waits is refused, or claimed after its hold lapsed, run first",
        CLAIMS,
        "    account = money.lock_account(account_id)\n    rows = lock_runs([run_id], bulky=True)\n",
        "    rows = lock_runs([run_id], bulky=True)\n    account = money.lock_account(account_id)\n",
        f"{LOCK_ORDER}[refused]", f"{LOCK_ORDER}[rearmed]",
    ),
    _mutant(
        "account first in a requeue", "1.4", "a requeue locks the old run before the account",
        "runs/services/requeue.py",
        "    account = money.lock_account(new.account_id)\n    old = next(iter(lock_runs([old_id])), None)\n",
        "    old = next(iter(lock_runs([old_id])), None)\n    account = money.lock_account(new.account_id)\n",
        f"{LOCK_ORDER}[requeued]",
    ),
    _mutant(
        "account first in an extension", "1.4", "an extension locks its run before the account",
        BUDGET,
        "        account = money.lock_account(account_id)\n        run = next(iter(lock_runs([run_id])), None)\n",
        "        run = next(iter(lock_runs([run_id])), None)\n        account = money.lock_account(account_id)\n",
        f"{LOCK_ORDER}[extended]",
    ),
    _mutant(
        "extension's state", "1.5", "a run that left running may be given more",
        BUDGET, "run.state != RunState.RUNNING or run.fence", "run.fence",
        f"{EXTENDS}::test_whoever_is_not_the_owner_extends_nothing",
    ),
    _mutant(
        "extension's fence", "1.5", "an attempt of another fence may have more reserved",
        BUDGET, " or run.fence != fence", "",
        f"{EXTENDS}::test_whoever_is_not_the_owner_extends_nothing",
    ),
    _mutant(
        "extension's token", "1.5", "an attempt with another claim's token may have more reserved",
        BUDGET, " or run.claim_token != claim_token", "",
        f"{EXTENDS}::test_whoever_is_not_the_owner_extends_nothing",
    ),
    _mutant(
        "extension's mark", "12.1", "more is reserved for a run that is to be cancelled",
        BUDGET, "        if run.cancel_requested_at is not None:\n", "        if run is None:\n",
        f"{EXTENDS}::test_a_run_that_is_to_be_cancelled_gets_no_more",
    ),
    _mutant(
        "extension's lost answer", "1.8", "an extension that is asked for again is made again",
        BUDGET, "        if run.budget >= spent:\n", "        if run is None:\n",
        f"{EXTENDS}::test_what_is_reserved_already_is_not_reserved_again",
    ),
    _mutant(
        "hand-on", "4.3", "whoever empties a session's slot leaves it empty",
        SESSIONS,
        "    heirs = [by_slot[slot] for slot in dict.fromkeys(emptied) if slot in by_slot]\n", "    return []\n",
        f"{LINE}::test_whoever_ends_a_run_starts_the_next_in_line_in_the_same_transaction",
        f"{LINE}::test_the_line_moves_in_the_order_in_which_it_was_joined",
    ),
    Mutant(
        "promotion's clock", "10", "a scheduled run is queued before its time",
        (
            Edit(SCHEDULE, "not_before__lte=Now(), blocked_by_session=None", "blocked_by_session=None"),
            Edit(SCHEDULE, "        and row.not_before <= database_time(row)\n", ""),
        ),
        ("tests/runs/test_schedule.py::test_what_is_due_and_not_blocked_is_queued",),
    ),
)  # fmt: skip

LOGS = (
    _mutant(
        "append's fence", "3.3", "a writer of an older fence may append",
        APPEND, "if lf > fence then return {'FENCED', last} end\n", "",
        f"{LOG}::test_the_batch_of_a_fenced_writer_leaves_nothing_behind",
    ),
    _mutant(
        "append's holes", "3.2", "an event that is not the next one is stored",
        APPEND, "if not follows and not opening then return {'GAP', last} end", "",
        f"{LOG}::test_a_hole_is_refused_and_nothing_of_the_batch_is_stored",
    ),
    _mutant(
        "append's opening", "3.3", "any append makes a log that is not there",
        APPEND, "elseif not opening then\n  return {'NOKEY', ''}\nend", "end",
        f"{LOG}::test_without_a_log_only_an_opening_is_taken",
    ),
    _mutant(
        "store, then let go", "3.4", "a log's life is shortened before it is stored",
        "runs/archive.py",
        "        _store(complete)\n        _let_go(client, list(complete))\n",
        "        _let_go(client, list(complete))\n        _store(complete)\n",
        f"{DAGGER}::test_a_log_that_could_not_be_stored_keeps_its_time",
    ),
    _mutant(
        "close duty", "10", "nobody closes the log of a run whose worker died after its commit",
        SWEEPER, '("dead_letters", "close", "dead_entries",', '("dead_letters", "dead_entries",',
        f"{SWEEPS}::test_the_log_of_a_run_that_ended_a_while_ago_is_closed",
        f"{SWEEPS}::test_the_entry_of_a_worker_that_died_after_its_commit_is_acknowledged",
    ),
)  # fmt: skip

STREAMS = (
    _mutant(
        "dispatch's fence", "4.6", "an entry of an older fence counts as present",
        DISPATCH, "tonumber(fence) >= tonumber(ARGV[2]) and deliverable", "deliverable",
        f"{ENTRIES}::test_a_higher_fence_gets_an_entry_of_its_own_and_a_lower_one_none",
    ),
    _mutant(
        "dispatch's deliverable", "4.6", "an entry that nobody will get counts as present",
        DISPATCH, " and deliverable(stream, id) then return {0, id}", " then return {0, id}",
        f"{ENTRIES}::test_an_entry_that_nobody_will_get_is_replaced",
    ),
    _mutant(
        "one try a write", "4.6", "the client library repeats a write without an answer",
        "runs/broker.py", '        "retry": Retry(NoBackoff(), 0),\n', '        "retry": Retry(NoBackoff(), 2),\n',
        f"{DAGGER}::test_a_write_without_an_answer_is_sent_once",
    ),
    _mutant(
        "a reader's group", "5.1", "a reader makes the group behind what is there",
        TAKE, "'CREATE', stream, group, '0', 'MKSTREAM'", "'CREATE', stream, group, '$', 'MKSTREAM'",
        f"{DAGGER}::test_groups_are_made_before_the_first_entry_by_the_sweeper_and_by_a_reader",
    ),
    _mutant(
        "the sweeper's group", "5.1", "the sweeper makes the group behind what is there",
        SWEEPER, 'keys.GROUP, id="0", mkstream=True)', 'keys.GROUP, id="$", mkstream=True)',
        f"{DAGGER}::test_groups_are_made_before_the_first_entry_by_the_sweeper_and_by_a_reader",
    ),
    _mutant(
        "stored cursor", "6.1", "every take looks for stale entries from the beginning",
        STREAM, "        self._cursors[queue] = [cursor.decode() for cursor in cursors]\n", "",
        f"{DAGGER}::test_a_stale_entry_behind_many_fresh_ones_is_found",
    ),
    _mutant(
        "a young server's slots", "6.2", "a server that came back empty grants slots at once",
        TAKE, "if not made or now - tonumber(made) < tonumber(ARGV[6]) then return {granted, entries, cursors} end", "",
        "tests/workers/test_take.py::test_a_server_that_came_back_empty_grants_no_slot_until_all_owners_had_a_beat",
    ),
    _mutant(
        "consumer names", "6.3", "a worker that starts again looks like its predecessor",
        "workers/config.py", 'f"{self.name}-{os.getpid()}-{secrets.token_hex(4)}"', 'f"{self.name}-{os.getpid()}"',
        f"{DAGGER}::test_two_starts_of_one_worker_are_two_consumers",
    ),
    _mutant(
        "history", "6.3", "every take reads the consumer's history",
        STREAM, "        if self._unsure:\n", "        if places:\n",
        f"{DAGGER}::test_history_is_not_read_while_every_read_succeeds",
    ),
    _mutant(
        "log ahead of the row", "6.6", "a run is handed back below the fence its log remembers",
        DELIVERY, "reason=reason, above=log_fence", "reason=reason",
        f"{DAGGER}::test_a_run_whose_log_is_ahead_of_its_row_starts_above_it",
    ),
    _mutant(
        "half a lease", "6.6", "a claim that took most of its lease starts its handler",
        DELIVERY, "elif time.monotonic() - claimed_at > self._config.lease / 2:", "elif claimed_at < 0:",
        f"{STARTS}::test_a_claim_that_took_half_a_lease_is_handed_back",
    ),
    _mutant(
        "ack's index", "6.7", "an acknowledgement takes the index from the run's newer entry",
        ACK, "if is_named and named then redis.call('HDEL'", "if named then redis.call('HDEL'",
        f"{DAGGER}::test_an_old_entry_that_is_acknowledged_leaves_the_index_to_the_new_one",
    ),
    _mutant(
        "hand-over", "6.7", "a run goes back by an acknowledgement and then a dispatch",
        FINALISER,
        "                stream.hand_over(pipe, run, ending.entry.slot)\n",
        "                stream.ack(pipe, ending.entry, run.pk)\n"
        "                announcing.ready.dispatch(pipe, run)\n",
        f"{DAGGER}::test_a_run_that_is_handed_over_is_named_by_the_index_at_every_moment",
    ),
)  # fmt: skip

LEASES_AND_TAKEOVER = (
    _mutant(
        "absence is no loss", "7.2", "a run whose row is being decided on counts as lost",
        LEASES, "for owned in _gone(missing):", "for owned in missing:",
        f"{BEATS}::test_a_row_that_is_being_decided_on_is_passed_over_and_not_lost",
        database="postgres",
    ),
    _mutant(
        "entries follow rows", "7.3", "the beat keeps entries young of rows it did not get",
        LEASES, "self._follow([owned for owned in held if owned.run_id in renewed])", "self._follow(held)",
        f"{BEATS}::test_the_entries_of_renewed_rows_stay_young_without_a_delivery_counted",
    ),
    _mutant(
        "rows, then entries", "7.3", "the beat keeps entries young before it renews the rows",
        LEASES,
        "            sent = time.monotonic()\n",
        "            sent = time.monotonic()\n            self._follow(held)\n",
        f"{DAGGER}::test_a_beat_that_the_database_refused_leaves_the_entries_as_they_are",
    ),
    _mutant(
        "usage of rows it got", "1.5", "the beat stores what a fenced attempt cost",
        LEASES, "news = _store_usage([owned for owned in held if owned.run_id in rows])", "news = _store_usage(held)",
        f"{DAGGER}::test_what_a_fenced_attempt_cost_is_not_stored_by_the_beat",
    ),
    _mutant(
        "stops in time", "7.4", "a run that was not renewed goes on",
        "workers/owned.py", "if now - owned.renewed_at > seconds]", "if now < 0]",
        "tests/workers/test_losing.py::test_what_is_overdue_is_measured_from_the_last_renewal",
    ),
    _mutant(
        "says nothing more", "7.4", "a run that was not renewed goes on appending",
        "workers/worker.py", "            owned.fenced = True\n            owned.buffer.close()\n", "",
        "tests/workers/test_losing.py::test_a_run_that_was_not_renewed_in_time_is_stopped_and_its_neighbour_is_not",
    ),
    _mutant(
        "takeover's memory", "8.2", "a lapsed lease is taken over at the first look",
        TAKEOVER, " and now - self._remembered[run_id, fence, expires] >= self._lease / 2", "",
        f"{LOOKS}::test_a_lapsed_lease_is_remembered_first_and_taken_over_after_half_a_lease",
    ),
    _mutant(
        "memory of a failed look", "8.2", "a look that failed does not empty the memory",
        TAKEOVER,
        "            rows = self._lapsing()\n        except DatabaseError:\n            self._remembered.clear()\n",
        "            rows = self._lapsing()\n        except DatabaseError:\n",
        f"{LOOKS}::test_a_failed_look_empties_the_memory",
    ),
    _mutant(
        "a clock that jumps", "8.2", "a step of the database's clock does not empty the memory",
        TAKEOVER, "if abs(step) > CLOCK_STEP_SECONDS:", "if step is None:",
        f"{LOOKS}::test_a_step_of_the_databases_clock_empties_the_memory",
    ),
    _mutant(
        "looks far apart", "8.2", "what was remembered before a long pause still counts",
        TAKEOVER, "if now - self._looked_at > max(2 * self._lease, LOOKS_APART_SECONDS):", "if now < 0:",
        f"{LOOKS}::test_what_was_remembered_long_ago_counts_for_nothing",
    ),
    _mutant(
        "the lease as seen", "8.2", "a run is taken over whose lease was renewed since the look",
        LEAVING, "        and run.lease_expires_at == lost.lease_expires_at\n", "",
        f"{ENDS}::test_nothing_is_taken_over_that_is_not_as_it_was_seen",
    ),
    _mutant(
        "without Redis", "10", "no duty is done while Redis is away",
        SWEEPER, "names: tuple[str, ...] = ON_ROWS", "names: tuple[str, ...] = ()",
        f"{SWEEPS}::test_without_redis_the_duties_that_need_none_are_done",
    ),
)  # fmt: skip

HELD_BACK = (
    _mutant(
        "paused claim", "6.3.1", "a run of a paused queue is claimed by whoever took its entry before",
        CLAIMS, "        and not controls.is_held(row)\n", "",
        f"{PAUSES}::test_what_was_taken_before_the_pause_goes_back_and_no_delivery_is_counted",
        f"{PAUSES}::test_a_run_under_a_limit_is_neither_placed_nor_parked",
    ),
    _mutant(
        "the worker's last word", "12.2.1", "a worker leaves although its drain was recalled",
        "workers/heartbeat.py", "mine.filter(drain_requested_at__isnull=False).update(", "mine.update(",
        f"{DRAINS}::test_a_drain_that_was_recalled_is_left_by_nobody",
    ),
    _mutant(
        "the recall in time", "12.2.1", "a drain is recalled of a worker that leaves",
        "workers/drains.py", "filter(pk=row.pk, leaving_at=None, stopped_at=None)", "filter(pk=row.pk)",
        f"{DRAINS}::test_a_drain_that_is_asked_for_ends_with_the_workers_last_word",
    ),
)  # fmt: skip

MUTANTS = (*OWNERS, *MONEY_AND_LINES, *MONEY, *LOGS, *STREAMS, *LEASES_AND_TAKEOVER, *HELD_BACK)
