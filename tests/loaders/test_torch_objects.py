"""The walk below an unpickled root, on records made by hand, and its budgets."""

from __future__ import annotations

import pytest
from torch_truth import run_limited

from tieaudit.errors import FormatError
from tieaudit.loaders.pickle_machine import Global, Made, Pairs
from tieaudit.loaders.torch_objects import MAX_DEPTH, ObjectWalk
from tieaudit.loaders.torch_tensors import Fault, StorageRef, View

REBUILD = Global("torch._utils", "_rebuild_tensor_v2")


def tensor(*args: object) -> Made:
    ref = StorageRef("0", "F32", 6, typed=True)
    return Made(REBUILD, args or (ref, 0, (2, 3), (3, 1), False, None))


def walk(root: object) -> ObjectWalk:
    found = ObjectWalk("x")
    found.run(root)
    return found


def paths(root: object) -> list[str]:
    return [".".join(leaf.path) for leaf in walk(root).leaves]


def test_a_key_set_twice_is_told_and_the_last_one_counts() -> None:
    first, second = tensor(), tensor(StorageRef("1", "F32", 6, typed=True), 0, (6,), (1,))
    found = walk(Pairs([("a", first), ("a", second)]))
    assert list(found.repeated) == ["a"]
    (leaf,) = found.leaves
    assert isinstance(leaf.view, View)
    assert leaf.view.shape == (6,)


def test_keys_of_other_types() -> None:
    pairs = Pairs([(1, tensor()), ("1", tensor()), (b"b", tensor()), (Global("m", "C"), tensor()), ((1, 2), tensor())])
    assert paths(pairs) == ["1", "1", "b", "m.C", "#4"]


def test_ordered_dict_of_python_2() -> None:
    assert paths(Made(Global("collections", "OrderedDict"), ([["a", tensor()], ["b", tensor()]],))) == ["a", "b"]


def test_depth_is_bounded() -> None:
    deep: object = tensor()
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    found = walk([deep, tensor()])
    assert len(found.leaves) == 1
    assert found.too_deep == 1


def test_loops_end() -> None:
    loop: list[object] = [tensor()]
    loop.append(loop)
    loop.append((loop, Pairs([("again", loop)])))
    made = Made(Global("builtins", "list"), (loop,))
    loop.append(made)
    assert paths(loop) == ["0"]


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("no storage", 0, (2,), (1,)),
        (StorageRef("0", "F32", 6, typed=True), -1, (2,), (1,)),
        (StorageRef("0", "F32", 6, typed=True), 0, (2,), (1, 1)),
        (StorageRef("0", "F32", 6, typed=True), 0, (1 << 63,), (1,)),
        (StorageRef("0", "F32", 6, typed=True), 0, (True,), (1,)),
        (StorageRef("0", "F32", 6, typed=True), 0, (-2,), (1,)),
        (StorageRef("0", "F32", 6, typed=True), 0, (1,) * 65, (1,) * 65),
        (StorageRef("0", "F32", 6, typed=True), 0, "ab", "ab"),
    ],
)
def test_what_cannot_be_a_tensor_is_a_fault(args: tuple[object, ...]) -> None:
    (leaf,) = walk([Made(REBUILD, args)]).leaves
    assert isinstance(leaf.view, Fault)


def test_pairs_of_four_bit_floats_count_single_ones() -> None:
    ref = StorageRef("0", "U8", 6, typed=False)
    args = (ref, 0, (2, 3), (3, 1), False, None, Global("torch", "float4_e2m1fn_x2"))
    (leaf,) = walk([Made(Global("torch._utils", "_rebuild_tensor_v3"), args)]).leaves
    assert isinstance(leaf.view, View)
    assert (leaf.view.dtype, leaf.view.shape, leaf.view.nbytes) == ("F4", (2, 6), 6)


def test_laughs_without_tensors_are_looked_at_once() -> None:
    laugh: object = ["ha"] * 10
    for _ in range(60):
        laugh = [laugh] * 10
    with pytest.raises(FormatError, match="repeats its objects"):
        walk(laugh)


def test_tensors_repeated_without_end_are_refused() -> None:
    laugh: object = tensor()
    for _ in range(60):
        laugh = [laugh] * 2
    with pytest.raises(FormatError, match="repeats its objects"):
        walk(laugh)


def test_long_names_are_bounded() -> None:
    row = Pairs((f"{i}", tensor()) for i in range(1000))
    with pytest.raises(FormatError, match="characters"):
        walk(Pairs([("k" * 1_000_000, row)]))


def test_a_billion_laughs_fit_in_memory() -> None:
    code = (
        "from tieaudit.errors import FormatError\n"
        "from tieaudit.loaders.torch_objects import ObjectWalk\n"
        "from tieaudit.loaders.pickle_machine import Global, Made\n"
        "from tieaudit.loaders.torch_tensors import StorageRef\n"
        "ref = StorageRef('0', 'F32', 6, True)\n"
        "laugh = Made(Global('torch._utils', '_rebuild_tensor_v2'), (ref, 0, (2, 3), (3, 1)))\n"
        "for _ in range(40):\n    laugh = [laugh] * 3\n"
        "try:\n    ObjectWalk('x').run(laugh)\nexcept FormatError:\n    print('refused')\n"
    )
    assert run_limited(code) == "refused\n"
