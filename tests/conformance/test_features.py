"""What a server can do is asked, not guessed, and asking costs no round trip (protocol 6.8)."""

import pytest

from agentops.counting import count
from runs import broker, features, keys, scripts
from workers import stream

pytestmark = pytest.mark.django_db


def send(client):
    def fill(pipe):
        stream.ACK.call(pipe, [keys.index("default"), keys.slots("default")], [keys.GROUP, "", "s", "1-1", "", 0])

    return scripts.execute(client, fill)


def test_the_question_rides_on_what_is_sent_anyway(own_redis, has_xackdel):
    client = broker.client()
    scripts.execute(client, lambda pipe: pipe.ping())
    send(client)  # loads the scripts
    with count() as plain:
        send(client)
    features._known.clear()
    assert (features.is_due(client), features.has(client, features.XACKDEL)) == (True, False)

    with count() as asking:
        assert send(client) == [0]

    assert (asking.round_trips, plain.round_trips) == (1, 1)
    assert (features.is_due(client), features.has(client, features.XACKDEL)) == (False, has_xackdel)


def test_a_server_is_asked_again_after_a_while(own_redis, monkeypatch):
    client = broker.client()
    send(client)
    assert not features.is_due(client)

    monkeypatch.setattr(features, "ASK_AGAIN_SECONDS", 0.0)

    assert features.is_due(client)


def test_a_server_that_lost_its_scripts_is_asked_at_once(own_redis, redis, has_xackdel):
    client = broker.client()
    send(client)
    features.learn(client, [])
    redis.script_flush()

    assert send(client) == [0]

    assert features.has(client, features.XACKDEL) is has_xackdel


def test_a_server_that_forbids_the_question_has_nothing_new(own_redis, redis):
    redis.execute_command("ACL", "SETUSER", "default", "-command")

    assert send(broker.client()) == [0]

    assert not features.has(broker.client(), features.XACKDEL)
    assert not features.is_due(broker.client())


def test_each_server_is_known_by_its_address(own_redis, redis):
    broker_client = broker.client()
    features.learn(broker_client, [["xackdel"]])

    assert features.has(broker_client, features.XACKDEL)
    assert features.has(redis, features.XACKDEL)  # the same address by another client
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(redis.connection_pool.connection_kwargs, "path", "/elsewhere")
        assert not features.has(redis, features.XACKDEL)
