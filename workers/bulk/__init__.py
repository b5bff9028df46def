"""Bulk operations: one act on everything a filter matches, planned first, then done item by item by the workers."""
