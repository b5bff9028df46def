"""The only writer of holds, ledger and account counters. Callers hold the account's row lock first (protocol 1.4).

The counters move in the transaction that writes the rows they cache. Sums over several runs take one statement a
table: one settlement of sixteen runs costs what one of one run costs.
"""

from quotas.services.accounts import check_in_flight, ensure_account, lock_account, lock_accounts
from quotas.services.holds import (
    accounts_with_lapsed_holds,
    check_available,
    expire_holds_of,
    expire_lapsed,
    extend_hold,
    forget_holds,
    lapse_from_now,
    pin_holds,
    place_hold,
    quota_facts,
    rearm_hold,
)
from quotas.services.manual import adjust, grant, write_off
from quotas.services.reconciling import check_counters, close_leaked, repair_counters
from quotas.services.settling import Bill, close_holds, forget_who_and_why

__all__ = [
    "Bill",
    "accounts_with_lapsed_holds",
    "adjust",
    "check_available",
    "check_counters",
    "check_in_flight",
    "close_holds",
    "close_leaked",
    "ensure_account",
    "expire_holds_of",
    "expire_lapsed",
    "extend_hold",
    "forget_holds",
    "forget_who_and_why",
    "grant",
    "lapse_from_now",
    "lock_account",
    "lock_accounts",
    "pin_holds",
    "place_hold",
    "quota_facts",
    "rearm_hold",
    "repair_counters",
    "write_off",
]
