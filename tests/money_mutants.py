"""The mutants of the rules of docs/money.md."""

from tests.mutant import Edit, Mutant, mutant

HOLDS, MANUAL, LEAKS = "quotas/services/holds.py", "quotas/services/manual.py", "runs/services/leaks.py"
ACCOUNTS, SETTLING = "quotas/services/accounts.py", "quotas/services/settling.py"
HELD, WRITTEN, TURNED = (
    "tests/quotas/test_holds.py", "tests/quotas/test_manual_entries.py", "tests/quotas/test_turning.py"
)  # fmt: skip
LEAKED, KEPT = "tests/runs/test_leaks.py", "tests/quotas/test_append_only.py"

MONEY = (
    mutant(
        "room at the extension", "money 6", "a hold grows, or counts again, whether or not there is room for it",
        HOLDS, "    has_room = amount <= available(account)\n", "    has_room = True\n",
        f"{HELD}::test_a_hold_is_not_extended_beyond_what_is_available",
        f"{HELD}::test_an_expired_hold_is_not_rearmed_beyond_the_limit",
    ),
    mutant(
        "an extension once", "money 6", "an extension that is sent again lowers the hold or is counted twice",
        HOLDS, "    if amount <= hold.amount:\n        return True\n", "",
        f"{HELD}::test_an_extension_may_be_repeated_and_never_lowers_a_hold",
    ),
    mutant(
        "others' lapsed holds", "money 4", "what lapsed meanwhile takes the room of an extension",
        HOLDS,
        "    expired = expire_lapsed(account)\n    has_room", "    expired = 0\n    has_room",
        f"{HELD}::test_the_room_of_others_lapsed_holds_is_there_for_an_extension_and_a_rearming",
    ),
    Mutant(
        "a leak's proof", "money 12", "open holds are closed whether or not their run is over",
        (
            Edit(LEAKS, "if run_id not in alive]", "]"),
            Edit(LEAKS, "    return run is None or run.is_terminal\n", "    return True\n"),
        ),
        (f"{LEAKED}::test_a_hold_of_a_run_that_goes_on_is_never_touched",),
    ),
    mutant(
        "a leak looked at again", "money 12", "a hold that its run closed between two looks is taken for a leak",
        LEAKS, "run_id__in=suspects, state__in=Hold.OPEN)", "run_id__in=suspects)",
        f"{LEAKED}::test_a_hold_that_was_closed_between_two_looks_is_no_leak",
    ),
    mutant(
        "a leak's settle line", "money 12", "a leak whose cost was booked is booked again",
        "quotas/services/reconciling.py", "if bill.run_id not in settled])", "])",
        f"{LEAKED}::test_a_hold_whose_run_ended_is_settled_at_what_the_run_cost",
    ),
    mutant(
        "append-only: change", "money", "a ledger line may be changed",
        "quotas/append_only.py", '"sqlite": "OLD.{0} IS NEW.{0}",', '"sqlite": "1",',
        f"{KEPT}::test_no_figure_of_a_line_can_be_changed",
    ),
    mutant(
        "append-only: delete", "money", "a ledger line may be deleted",
        "quotas/append_only.py",
        '            f"CREATE TRIGGER {delete} BEFORE DELETE ON {table} {refuse}",\n', "",
        f"{KEPT}::test_a_line_cannot_be_deleted",
    ),
    mutant(
        "write-off's bound", "money 10", "more is written off than was owed",
        MANUAL, "    if amount > allowed:\n", "    if amount < allowed:\n",
        f"{WRITTEN}::test_a_write_off_never_makes_spent_negative",
        f"{WRITTEN}::test_a_write_off_of_a_run_takes_at_most_what_is_booked_for_it",
    ),
    mutant(
        "a grant's sign", "money 10", "a grant below nothing takes money away",
        MANUAL, "_check(Kind.GRANT, amount, lowest=1)", "_check(Kind.GRANT, amount, lowest=-AMOUNT_MAX)",
        f"{WRITTEN}::test_odd_amounts_are_refused",
    ),
    mutant(
        "manual: turned first", "money 11", "a manual line is booked in a period that is over",
        MANUAL, "    turn_period(account, database_time(account))\n", "",
        f"{WRITTEN}::test_the_period_is_turned_before_the_entry_is_booked",
    ),
    mutant(
        "what is booked in a period", "money 11", "a period that comes back begins at nothing spent",
        ACCOUNTS, "booked_in([account.pk], key).get(account.pk, 0)", "sum(carried.values())",
        f"{TURNED}::test_going_back_to_a_period_finds_what_was_booked_in_it",
    ),
    mutant(
        "carried overdraft", "money 11", "overdraft is forgiven whatever the account's rule",
        ACCOUNTS, "    if carried:\n", "    if not account.pk:\n",
        f"{TURNED}::test_overdraft_is_carried_where_the_account_says_so",
    ),
    mutant(
        "a line's period", "money 11", "a settle line does not say in which period it is booked",
        SETTLING, "        amount=bill.cost,\n        period=account.spent_period,\n", "        amount=bill.cost,\n",
        f"{HELD}::test_a_settle_line_names_the_period_and_the_agent",
    ),
    mutant(
        "a waived cost", "money 10", "what is waived is charged all the same",
        SETTLING, "            if bill.waived_by and bill.cost:\n", "            if False:\n",
        f"{HELD}::test_a_waived_cost_is_settled_and_written_off_at_once",
    ),
)  # fmt: skip
