"""prune: by age, and all of one account."""

import pytest
from django.core.files.storage import storages

from quotas import services as money
from quotas.models import ApiKey, AuditEntry, Hold, LedgerEntry, Membership
from runs import broker, keys, ready
from runs.models import FileUse, Run, StoredFile
from runs.services.cancel import cancel_run
from runs.services.files import store_upload
from tests import aged, builders, invariants, working
from tests.aged import old_run
from workers import dead_letters
from workers.models import DeadLetter, WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)


def counts(ran):
    assert ran.code == 0, ran.err
    return {name: ran.json[name] for name in ("keys", "payloads", "runs", "uploads", "workers")}


def test_it_prunes_by_the_settings_and_tells_how_much(manage, account):
    for days in (0.9, 40, 100):
        old_run("succeeded", days, account=account, idempotency_key=f"submit:{days}")
    builders.make_worker(stopped_at=aged.ago(40))
    store_upload(account=account, name="x", content_type="text/plain", chunks=[b"x"])
    StoredFile.objects.update(unused_since=aged.ago(8))
    expected = {"keys": 2, "payloads": 2, "runs": 1, "uploads": 1, "workers": 1}

    dry = manage("prune", "--dry-run", "--json")
    assert dry.json["dry_run"] is True
    assert counts(dry) == expected
    assert (Run.objects.filter(payload_pruned_at=None).count(), WorkerProcess.objects.count()) == (3, 1)

    assert counts(manage("prune", "--json")) == expected
    assert Run.objects.count() == 2
    assert counts(manage("prune", "--json")) == dict.fromkeys(expected, 0)


def test_other_ages_can_be_said(manage, account, other_account):
    mine, young = old_run("succeeded", 5, account=account), old_run("succeeded", 2, account=account)
    other = old_run("succeeded", 5, account=other_account)

    ran = manage("prune", "--older-than", 4, "--payloads-older-than", 1, "--account", account.name)

    assert ran.code == 0
    assert "runs deleted" in ran.out
    assert set(Run.objects.values_list("pk", flat=True)) == {young.pk, other.pk}
    assert [Run.objects.get(pk=run.pk).payload_pruned for run in (young, other)] == [True, False]
    assert mine.pk not in {young.pk, other.pk}


def test_it_needs_no_redis(manage, account, own_redis):
    old_run("succeeded", 100, account=account)
    own_redis.kill()

    assert counts(manage("prune", "--json"))["runs"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--older-than", "0"], "above 0"),
        (["--older-than", "-3"], "above 0"),
        (["--payloads-older-than", "nan"], "above 0"),
        (["--all"], "--all needs --account"),
        (["--account", "nobody"], "no account 'nobody'"),
        (["--account", "acme", "--all", "--dry-run"], "takes everything"),
        (["--account", "acme", "--all", "--older-than", "3"], "takes everything"),
    ],
)
def test_wrong_usage_deletes_nothing(manage, account, arguments, said):
    old_run("succeeded", 100, account=account)

    ran = manage("prune", *arguments)

    assert ran.code == 2
    assert said in ran.err
    assert Run.objects.filter(payload_pruned_at=None).count() == 1


# -- an account ------------------------------------------------------------------------------------------------------
@pytest.fixture
def full(account, other_account, redis):
    """An account with one of everything, and another one that has the same."""
    for one in (account, other_account):
        builders.make_api_key(one)
        builders.make_user(f"user-{one.pk}", account=one)
        with working.registered(
            "test.reads", input_schema={"properties": {"file": {"type": "string", "format": "file"}}}
        ):
            file = store_upload(account=one, name="x", content_type="text/plain", chunks=[b"x"])
            run = working.submit(one, agent="test.reads", input={"file": str(file.pk)})
        cancel_run(run_id=run.pk, actor="jane", account=one, reason="private words")
        ready.dispatch_all(broker.client(), [run])
        aged.make_artifact(builders.make_run("succeeded", account=one, cost=5, session="s"))
        builders.make_dead_letter(builders.make_run("failed", account=one, cost=3))
        for run in Run.objects.filter(account=one, state__in=("succeeded", "failed")):
            money.adjust(one, amount=-1, run_id=run.pk, actor="jane", reason="private words")
    dead_letters.publish_due(broker.client())
    return account


def of(account):
    return {
        "runs": Run.objects.filter(account=account).count(),
        "letters": DeadLetter.objects.filter(run__account=account).count(),
        "holds": Hold.objects.filter(account=account).count(),
        "members": Membership.objects.filter(account=account).count(),
        "live_keys": ApiKey.objects.filter(account=account, revoked_at=None).count(),
        "files": StoredFile.objects.filter(account=account).count(),
        "uses": FileUse.objects.filter(run__account=account).count(),
    }


def test_everything_of_an_account_goes_but_its_money(manage, full, other_account, redis):
    others = of(other_account)
    money = list(LedgerEntry.objects.order_by("pk").values_list("pk", "account", "run_id", "kind", "amount", "at"))
    runs = list(Run.objects.filter(account=full))
    assert redis.xlen(keys.dead_letters()) == 2

    ran = manage("prune", "--account", full.name, "--all", "--yes", "--json", "--reason", "asked for")

    assert ran.code == 0, ran.err
    assert (ran.json["runs"], ran.json["runs_left"], ran.json["published_letters"]) == (3, 0, 1)
    assert set(of(full).values()) == {0}
    assert of(other_account) == others
    lines = LedgerEntry.objects.order_by("pk")
    assert list(lines.values_list("pk", "account", "run_id", "kind", "amount", "at")) == money
    assert set(lines.filter(account=full).values_list("actor", "reason")) == {("", "")}
    told = lines.filter(account=other_account, kind="adjustment").values_list("actor", "reason")
    assert set(told) == {("jane", "private words")}
    assert [field[b"run_id"] for _, field in redis.xrange(keys.dead_letters())] != []
    assert redis.xlen(keys.dead_letters()) == 1
    for run in runs:
        assert not redis.exists(keys.log(run.pk))
        assert not redis.hexists(keys.index("default"), str(run.pk))
        assert aged.files_under(f"runs/{run.pk}") == []
    assert aged.files_under(f"uploads/{full.pk}") == []
    assert len(storages["artifacts"].listdir(f"uploads/{other_account.pk}")[1]) == 1
    invariants.check_money([full, other_account])


def test_the_audit_trail_says_who_did_what_and_not_in_which_words(manage, full, other_account):
    manage("prune", "--account", full.name, "--all", "--yes", "--reason", "asked for")

    entry = AuditEntry.objects.get(action="account.forget")
    assert (entry.target_id, entry.reason, entry.after["runs"]) == (str(full.pk), "asked for", 3)
    cancels = AuditEntry.objects.filter(action="run.cancel").order_by("pk")
    assert list(cancels.values_list("actor", "reason")) == [("jane", ""), ("jane", "private words")]


def test_it_is_refused_while_runs_are_open_and_says_how_to_cancel_them(manage, full):
    working.submit(full)
    before = of(full)

    ran = manage("prune", "--account", full.name, "--all", "--yes")

    assert ran.code == 2
    assert f"./run cancel_runs --account {full.name} --state queued --yes" in ran.err
    assert of(full) == before


def test_it_asks_first(manage, full):
    before = of(full)

    ran = manage("prune", "--account", full.name, "--all")

    assert ran.code == 2
    assert "3 runs and 1 files" in ran.err
    assert "Add --yes" in ran.err
    assert of(full) == before


def test_it_needs_redis_and_may_be_called_again(manage, full, own_redis):
    before = of(full)
    own_redis.kill()
    assert manage("prune", "--account", full.name, "--all", "--yes").code == 4
    assert of(full) == before

    own_redis.start()
    broker.reset()
    assert manage("prune", "--account", full.name, "--all", "--yes").code == 0
    assert manage("prune", "--account", full.name, "--all", "--yes", "--json").json["runs"] == 0
    assert set(of(full).values()) == {0}
