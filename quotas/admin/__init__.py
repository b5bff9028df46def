"""Admin pages of money. What services write is read-only here; every act is audited in its transaction."""

from quotas.admin.accounts import AccountAdmin
from quotas.admin.audit_log import AuditEntryAdmin
from quotas.admin.keys import ApiKeyAdmin
from quotas.admin.ledger import LedgerEntryAdmin
from quotas.admin.members import MembershipAdmin
from quotas.admin.prices import PriceAdmin

__all__ = [
    "AccountAdmin",
    "ApiKeyAdmin",
    "AuditEntryAdmin",
    "LedgerEntryAdmin",
    "MembershipAdmin",
    "PriceAdmin",
]
