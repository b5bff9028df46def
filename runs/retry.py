"""Whether and when a run is tried again: exponential back-off with full jitter and a cap."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from runs.outcomes import ErrorClass

# What may pass by itself. Everything else is tried again only where the agent's `retry_on` names it.
MAY_PASS = frozenset(
    {ErrorClass.AGENT_BUG, ErrorClass.BAD_OUTPUT, ErrorClass.PROVIDER_TRANSIENT, ErrorClass.PROVIDER_LIMIT}
)

DELAY_MAX_SECONDS = 24 * 3600.0
DOUBLINGS_MAX = 60  # 2^60 is beyond every cap; a larger power would not be a float any more


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay between 0 and `base` · 2^(attempt - 1) seconds, at most `cap`: full jitter, so that no two meet."""

    base: float = 5.0
    cap: float = 300.0

    def __post_init__(self) -> None:
        if not (0 <= self.base <= DELAY_MAX_SECONDS and 0 <= self.cap <= DELAY_MAX_SECONDS):
            raise ValueError(
                f"Back-off takes 0 to {DELAY_MAX_SECONDS:.0f} seconds, not {self.base!r} and {self.cap!r}."
            )

    def delay(self, attempt: int, after: float | None = None) -> float:
        """Return the seconds to wait after this attempt failed. `after`: what somebody said instead, 0 = at once."""
        if after is not None:
            return min(DELAY_MAX_SECONDS, max(0.0, after)) if after == after else 0.0  # noqa: PLR0124  NaN
        most = min(self.cap, self.base * 2.0 ** min(attempt - 1, DOUBLINGS_MAX))
        return random.uniform(0.0, most)  # noqa: S311  spreading, not secrecy


def is_retryable(
    error_class: ErrorClass,
    error: BaseException | None = None,
    *,
    retry_on: Sequence[type[BaseException] | ErrorClass],
    fatal_on: Sequence[type[BaseException] | ErrorClass],
) -> bool:
    """Whether a failure may be tried again: not if `fatal_on` has it; if `retry_on` has it; else by its class."""
    if _has(fatal_on, error_class, error):
        return False
    return _has(retry_on, error_class, error) if retry_on else error_class in MAY_PASS


def _has(
    kinds: Sequence[type[BaseException] | ErrorClass], error_class: ErrorClass, error: BaseException | None
) -> bool:
    return any(kind == error_class if isinstance(kind, ErrorClass) else isinstance(error, kind) for kind in kinds)
