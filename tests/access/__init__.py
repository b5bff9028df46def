"""Who may what: every route and socket has a stated rule, and no account finds a trace of another one."""
