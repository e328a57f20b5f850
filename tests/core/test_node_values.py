"""Nodes, cordons, pool tags and the line of a pool's description, as values."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_heteroflow.core.resources import Gpu, Node, Pool
from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.node_values import (
    MAX_VALUE_BYTES,
    Cordon,
    Holder,
    apply_cordon,
    cordon_to_value,
    node_to_value,
    node_variable_name,
    parse_cordon_value,
    parse_node_value,
    parse_pool_value,
    pool_to_value,
    variable_slug,
)
from prefect_heteroflow.orchestration.pool_line import pool_line, with_tag_line

steady = settings(deadline=None)  # the deadline of 200 ms is no claim, and fails on a busy machine
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
HOLDER = Holder(
    instance_id="0c8d", host="host-1", boot_id="b", pid_namespace="4026531836", pid=7, pid_started=9
)
NODE = Node(name="node-a", pool="gpu-24gb", memory_mb=65536)
A10 = Gpu(uuid="GPU-1", name="NVIDIA A10", memory_mb=24576, free_mb=24000, healthy=True)

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)
sizes = st.integers(0, 10**6)
gpus = st.builds(
    Gpu,
    uuid=texts,
    name=texts,
    memory_mb=sizes,
    free_mb=st.none() | sizes,
    healthy=st.none() | st.booleans(),
)
nodes = st.builds(
    Node,
    name=texts,
    pool=texts,
    memory_mb=sizes,
    gpus=st.lists(gpus, max_size=4).map(tuple),
    last_error=st.none() | texts.map(storable),
    docker=st.none() | st.booleans(),
    former_pools=st.lists(texts, max_size=3).map(tuple),
)


@steady
@given(st.lists(texts, min_size=2, max_size=2, unique=True))
@example(["node-a", "node_a"])
@example(["node-a", variable_slug("node-a")])
@example(["a", "A"])
@example(["x" * 150, "x" * 151])
@example(["ä", "ö"])
def test_slugs_of_different_names_differ(names: list[str]) -> None:
    """No node can overwrite another one's Variable."""
    first, second = map(variable_slug, names)
    assert first != second


@steady
@given(st.text(min_size=1, max_size=300))
def test_slug_is_a_name_that_prefect_takes(name: str) -> None:
    """Lower case letters, digits and underscores, short enough for a Variable's name."""
    assert re.fullmatch(r"heteroflow_node_[a-z0-9_]+", node_variable_name(name))
    assert len(node_variable_name(name)) <= 255


def test_slug_of_a_plain_name_is_the_name() -> None:
    """So that a person finds the Variable in the UI."""
    assert variable_slug("node_7") == "node_7"
    assert variable_slug("node-7").startswith("node_7_")


@steady
@given(nodes)
def test_node_read_back_is_the_node_written(node: Node) -> None:
    """The JSON value loses nothing of a node of usual size."""
    value = json.loads(json.dumps(node_to_value(node, holder=HOLDER, heartbeat_at=NOW)))
    record = parse_node_value(value)
    assert record.node == node
    assert record.holder == HOLDER
    assert record.heartbeat_at == NOW
    assert record.stopped is False


@pytest.mark.parametrize("gpu_count", [8, 30, 64, 200])
def test_node_with_very_many_gpus_fits_into_a_variable(gpu_count: int) -> None:
    """Eight GPUs keep all they have; where it gets too long, names go first."""
    uuid = "MIG-5fa7e0c1-5d5a-5f2b-8c6b-3b1d4c9a{:04}"
    gpus = tuple(replace(A10, uuid=uuid.format(index)) for index in range(gpu_count))
    node = replace(NODE, gpus=gpus, last_error="ä" * 5000)
    value = node_to_value(node, holder=HOLDER, heartbeat_at=NOW)
    assert len(json.dumps(value, ensure_ascii=False).encode()) <= MAX_VALUE_BYTES
    kept = parse_node_value(value).node.gpus
    assert kept
    assert {gpu.memory_mb for gpu in kept} == {24576}
    if gpu_count == 8:
        assert kept == gpus


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": ""}, "name is ''"),
        ({"pool": None}, "pool is None"),
        ({"memory_mb": "65536"}, "memory_mb is '65536'"),
        ({"memory_mb": True}, "memory_mb is True"),
        ({"memory_mb": -1}, "memory_mb is -1"),
        ({"gpus": "two"}, "gpus is 'two'"),
        ({"gpus": [7]}, "a GPU is 7"),
        ({"gpus": [{"uuid": "GPU-1"}]}, "memory_mb is None"),
        ({"worker": None}, "worker is None"),
        ({"updated": "yesterday"}, "updated is 'yesterday'"),
        ({"updated": 5}, "updated is 5"),
        ({"docker": "yes"}, "docker is 'yes'"),
    ],
)
def test_broken_node_value_is_refused_by_name(change: dict[str, object], complaint: str) -> None:
    """A foreign or broken value says which of its parts is wrong."""
    value = node_to_value(NODE, holder=HOLDER, heartbeat_at=NOW) | change
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_node_value(value)


@steady
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_value_is_parsed_or_refused(value: object) -> None:
    """Whatever stands in a Variable, no other error than `ValueError` comes of it."""
    for parse in (parse_node_value, parse_cordon_value, parse_pool_value):
        with pytest.raises(ValueError, match=" is "):
            parse(value)


def test_time_with_z_and_without_zone_is_utc() -> None:
    """A value that another program wrote may have either."""
    value = node_to_value(NODE, holder=HOLDER, heartbeat_at=NOW)
    for text in ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00"):
        assert parse_node_value(value | {"updated": text}).heartbeat_at == NOW
    east = timezone(timedelta(hours=9))
    value = node_to_value(NODE, holder=HOLDER, heartbeat_at=NOW.astimezone(east))
    assert value["updated"] == "2026-03-01T12:00:00+00:00"


def test_cordon_of_a_gpu_leaves_the_node_and_its_other_gpus_in_use() -> None:
    """A cordoned GPU counts as not healthy; the node is not cordoned."""
    cordon = Cordon(name="node-a", gpus={"GPU-1": "Xid 79"}, at=NOW)
    read = parse_cordon_value(json.loads(json.dumps(cordon_to_value(cordon, at=NOW))))
    assert read == cordon
    node = apply_cordon(replace(NODE, gpus=(A10, replace(A10, uuid="GPU-2"))), read)
    assert [gpu.healthy for gpu in node.gpus] == [False, True]
    assert not node.cordoned


def test_cordon_of_a_node_carries_its_reason() -> None:
    """Who looks at the node sees why."""
    cordon = parse_cordon_value(cordon_to_value(Cordon(name="n", reason="disk", gpus={}), at=NOW))
    node = apply_cordon(NODE, cordon)
    assert node.cordoned
    assert node.cordon_reason == "disk"
    assert apply_cordon(NODE, None) == NODE


def test_pool_read_back_is_the_pool_declared() -> None:
    """Undeclared values stay undeclared."""
    pool = Pool(name="gpu pool", gpu_memory_mb=24576)
    assert parse_pool_value(json.loads(json.dumps(pool_to_value(pool)))) == pool


def node(name: str, *gpus_mb: int, memory_mb: int = 65536, live: bool = True) -> Node:
    gpus = tuple(
        Gpu(uuid=f"{name}-{index}", name="A10", memory_mb=size)
        for index, size in enumerate(gpus_mb)
    )
    return Node(name=name, pool="p", memory_mb=memory_mb, gpus=gpus, live=live)


@pytest.mark.parametrize(
    ("pool", "nodes", "line"),
    [
        (
            Pool(name="p", gpu_memory_mb=24576, memory_mb=65536),
            [node("node-b", 24576), node("node-a", 24576)],
            "heteroflow: 24576 MB GPU memory, 65536 MB memory, 2 live nodes (node-a, node-b)",
        ),
        (
            Pool(name="p", gpu_memory_mb=81920, gpu_count=8),
            [],
            "heteroflow: 8 x 81920 MB GPU memory, no live node",
        ),
        (
            Pool(name="p"),
            [node("a", 8192, memory_mb=1000), node("b", 8192, 24576)],
            "heteroflow: 1 to 2 x 8192 to 24576 MB GPU memory, 1000 to 65536 MB memory,"
            " 2 live nodes (a, b)",
        ),
        (
            Pool(name="p"),
            [node("a")],
            "heteroflow: no GPU, 65536 MB memory, 1 live node (a)",
        ),
        (
            Pool(name="p", memory_mb=4096),
            [node("a", live=False)],
            "heteroflow: GPUs unknown, 4096 MB memory, no live node",
        ),
        (
            Pool(name="p"),
            [node(f"n{index}") for index in range(9)],
            "heteroflow: no GPU, 65536 MB memory, 9 live nodes (n0, n1, n2, n3, n4 and 4 more)",
        ),
        (Pool(name="p"), [node("a", live=False), replace(node("b"), pool="q")], None),
    ],
)
def test_pool_line_says_what_is_declared_or_what_live_nodes_have(
    pool: Pool, nodes: list[Node], line: str | None
) -> None:
    """Declared before observed; unequal nodes give a range; nothing known gives no line."""
    assert pool_line(pool, nodes) == line


pools = st.builds(
    Pool,
    name=st.just("p"),
    memory_mb=st.none() | st.integers(1, 10**6),
    gpu_memory_mb=st.none() | st.integers(1, 10**6),
    gpu_count=st.none() | st.integers(0, 16),
)
lines = st.builds(
    pool_line, pools, st.lists(st.builds(node, texts, st.just(8192)), max_size=7)
).filter(bool)
descriptions = st.lists(
    st.text() | st.sampled_from(["heteroflow: ask Bob, he knows", "\r", "", "* GPUs"])
).map("\n".join)


@steady
@given(descriptions, lines)
def test_line_put_in_and_taken_out_leaves_the_text_as_it_was(text: str, line: str) -> None:
    """The user's own text survives to the last character."""
    described = with_tag_line(text, line)
    assert described.split("\n").count(line) == 1
    assert with_tag_line(described, None) == text


@steady
@given(descriptions, lines, lines)
def test_line_is_replaced_and_never_doubled(text: str, first: str, second: str) -> None:
    """Only the newest line is there, and writing it again changes nothing."""
    described = with_tag_line(with_tag_line(text, first), second)
    assert described == with_tag_line(text, second)
    assert with_tag_line(described, second) == described


@steady
@given(descriptions, descriptions, lines, lines)
def test_line_keeps_its_place_between_the_users_lines(
    before: str, after: str, first: str, second: str
) -> None:
    """A user may write below our line, too."""
    text = f"{before}\n{first}\n{after}"
    assert with_tag_line(text, second) == f"{before}\n{second}\n{after}"
    assert with_tag_line(text.replace("\n", "\r\n"), second).count(second) == 1


def test_line_alone_fills_an_empty_description() -> None:
    """No description gives no empty line."""
    line = pool_line(Pool(name="p", memory_mb=1), [])
    assert with_tag_line(None, line) == with_tag_line("", line) == line
    assert with_tag_line(line, None) == ""
    assert with_tag_line(None, None) == ""


def test_several_lines_of_ours_become_one() -> None:
    """Whatever went wrong before: a copy of a description, two workers at once."""
    line = pool_line(Pool(name="p", memory_mb=1), [])
    assert with_tag_line(f"{line}\nmine\n{line}", line) == f"{line}\nmine"


def test_reason_of_a_cordon_is_one_line_of_valid_text() -> None:
    cordon = Cordon(name="n", reason="fan\n\x1b[2J\udcff", gpus={"GPU-1": "a\x00"})
    value = cordon_to_value(cordon, at=NOW)
    assert (value["reason"], value["gpus"]) == (r"fan\n\x1b[2J\xff", {"GPU-1": r"a\x00"})
