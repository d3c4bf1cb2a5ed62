"""What the names in a pickle are said to do. Default deny: what no list knows and is called would run code."""

from __future__ import annotations

import pytest

from tieaudit.loaders.pickle_globals import judge
from tieaudit.loaders.pickle_reader import PickleReader


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def name(path: str) -> bytes:
    """STACK_GLOBAL of `module:name`."""
    module, _, qualified = path.partition(":")
    return text(module) + text(qualified) + b"\x93"


def verdicts(raw: bytes, *, torchscript: bool = False) -> dict[str, str]:
    reader = PickleReader("x", b"\x80\x04" + raw + b".")
    reader.load()
    return {found.name: found.danger for found in judge(reader, torchscript=torchscript)}


CALL, NEW, ONLY = b")R", b")\x81", b""


@pytest.mark.parametrize(
    ("path", "use", "danger"),
    [
        ("torch._utils:_rebuild_tensor_v2", CALL, ""),
        ("torch._utils:_rebuild_parameter", CALL, ""),
        ("torch:FloatStorage", ONLY, ""),
        ("torch.storage:UntypedStorage", ONLY, ""),
        ("torch:bfloat16", ONLY, ""),
        ("collections:OrderedDict", CALL, ""),
        ("__builtin__:set", CALL, ""),
        ("_codecs:encode", CALL, ""),
        ("argparse:Namespace", NEW, ""),
        ("numpy._core.multiarray:scalar", CALL, ""),
        ("torch.nn.modules.linear:Linear", NEW, ""),
        ("torch.optim.adam:Adam", NEW, ""),
        ("transformers.models.llama.configuration_llama:LlamaConfig", NEW, ""),
        ("torch.nn.modules.linear:Linear", CALL, "unknown"),
        ("torch.nn.modules.linear:Linear", ONLY, "unknown"),
        ("transformers.training_args:TrainingArguments", NEW, "unknown"),
        ("transformers.trainer_utils:IntervalStrategy", CALL, "unknown"),
        ("__main__:Config", NEW, "unknown"),
        ("mymodel:activation", ONLY, "unknown"),
        ("numpy.random._pickle:__generator_ctor", CALL, "unknown"),
        # what runs code
        ("os:system", CALL, "call"),
        ("os:system", ONLY, "call"),
        ("posix:system", CALL, "call"),
        ("nt:system", CALL, "call"),
        ("os.path:os.system", CALL, "call"),
        ("subprocess:Popen", CALL, "call"),
        ("builtins:eval", CALL, "call"),
        ("builtins:exec", ONLY, "call"),
        ("__builtin__:eval", CALL, "call"),
        ("builtins:__import__", CALL, "call"),
        ("builtins:getattr", CALL, "call"),
        ("importlib:import_module", CALL, "call"),
        ("runpy:run_path", CALL, "call"),
        ("functools:partial", CALL, "call"),
        ("operator:attrgetter", CALL, "call"),
        ("torch.hub:load", CALL, "call"),
        ("torch:hub.load", CALL, "call"),
        ("torch:hub.load", ONLY, "call"),
        ("torch:load", CALL, "call"),
        ("torch.storage:_load_from_bytes", CALL, "call"),
        ("torch.serialization:load", CALL, "call"),
        ("torch._utils:_import_dotted_name", CALL, "call"),
        ("torch.utils.cpp_extension:load_inline", CALL, "call"),
        ("torch.package:PackageImporter", CALL, "call"),
        ("torch.jit:CompilationUnit", CALL, "call"),
        ("torch.fx.graph_module:reduce_graph_module", CALL, "call"),
        ("torch.distributed.elastic.multiprocessing.subprocess_handler:SubprocessHandler", CALL, "call"),
        ("torch._utils:sys.modules", ONLY, "call"),
        ("torch._utils:_rebuild_tensor.__globals__", ONLY, "call"),
        ("torch.nn.modules.linear:Linear.__init__.__globals__", ONLY, "call"),
        ("torch.nn.modules.linear:Linear.forward", CALL, "call"),
        ("torch:_utils._rebuild_tensor_v2", CALL, "call"),
        ("torch.nn.modules:module.Module", NEW, "call"),
        ("transformers.utils.hub:Popen", CALL, "call"),
        ("transformers:pipeline", CALL, "call"),
        ("numpy:load", CALL, "call"),
        ("numpy.testing._private.utils:runstring", CALL, "call"),
        ("__main__:Config", CALL, "call"),
        ("mymodel:activation", CALL, "call"),
        ("ｏs:system", CALL, "call"),  # NFKC would make it `os`
        ("os\n:system", CALL, "call"),
        ("", ONLY, "call"),
    ],
)
def test_verdict(path: str, use: bytes, danger: str) -> None:
    assert list(verdicts(name(path) + use).values()) == [danger]


@pytest.mark.parametrize("opcodes", [b"(imodule\nfunction\n", b"(cmodule\nfunction\no", b"cmodule\nfunction\n)R"])
def test_every_way_to_call_is_a_call(opcodes: bytes) -> None:
    assert verdicts(opcodes) == {"module.function": "call"}


def test_extension_codes_are_denied() -> None:
    assert verdicts(b"\x82\x01)R") == {"<extension registry>.1": "call"}


def test_what_was_computed_and_then_called_is_denied() -> None:
    found = verdicts(name("collections:OrderedDict") + b")R)R")
    assert found == {"collections.OrderedDict": "", "collections.OrderedDict()": "call"}


def test_getattr_of_a_known_class_is_an_enum_member() -> None:
    enum = name("transformers.trainer_utils:IntervalStrategy")
    getattr_ = name("builtins:getattr")
    assert verdicts(getattr_ + enum + text("STEPS") + b"\x86R")["builtins.getattr"] == "unknown"
    assert verdicts(getattr_ + enum + text("__init__") + b"\x86R")["builtins.getattr"] == "call"
    assert verdicts(getattr_ + name("os:path") + text("os") + b"\x86R")["builtins.getattr"] == "call"
    both = getattr_ + enum + text("STEPS") + b"\x86R0" + getattr_ + enum + text("__class__") + b"\x86R"
    assert verdicts(both)["builtins.getattr"] == "call"
    then_called = verdicts(getattr_ + enum + text("STEPS") + b"\x86R)R")
    assert then_called["builtins.getattr()"] == "call"


@pytest.mark.parametrize(
    "opcodes",
    [
        name("copyreg:_reconstructor") + name("builtins:object") + name("mine:Base") + b"N\x87R",
        name("collections:defaultdict") + name("mine:Base") + b"\x85R",
        name("torch._tensor:_rebuild_from_type_v2") + name("mine:Base") + name("torch:Tensor") + b")\x87R",
    ],
)
def test_functions_that_call_their_arguments(opcodes: bytes) -> None:
    assert verdicts(opcodes)["mine.Base"] == "call"


def test_calls_are_followed_through_other_calls() -> None:
    """_rebuild_from_type_v2(f, cls, args, state) calls f(*args), and f may be one that calls its own arguments."""
    through = name("torch._tensor:_rebuild_from_type_v2")
    inner = name("copyreg:_reconstructor") + name("torch:Tensor") + name("mine:Run") + name("mine:Base") + b"N\x87}tR"
    assert verdicts(through + b"(" + inner)["mine.Base"] == "call"
    fetch = name("builtins:getattr") + name("torch:Tensor") + name("mine:function") + text("x") + b"\x86}tR"
    assert verdicts(through + b"(" + fetch)["builtins.getattr"] == "call"
    computed = name("collections:OrderedDict") + b")R" + name("torch:Tensor") + b")}tR"
    assert verdicts(through + b"(" + computed)["collections.OrderedDict()"] == "call"


def test_getattr_that_is_only_handed_on_is_denied() -> None:
    assert verdicts(name("builtins:getattr"))["builtins.getattr"] == "call"
    handed_on = verdicts(name("collections:defaultdict") + name("builtins:getattr") + b"\x85R")
    assert handed_on["builtins.getattr"] == "call"


def test_reconstructor_of_a_plain_object_makes_it() -> None:
    raw = name("copy_reg:_reconstructor") + name("mine:Config") + name("__builtin__:object") + b"N\x87R"
    assert verdicts(raw) == {"copy_reg._reconstructor": "", "mine.Config": "unknown", "__builtin__.object": ""}


def test_arguments_that_are_computed_are_not_trusted() -> None:
    assert verdicts(name("collections:defaultdict") + b"]R")["collections.defaultdict"] == "call"


def test_state_set_on_a_class_patches_it() -> None:
    assert verdicts(name("torch.nn.modules.linear:Linear") + b"}b") == {"torch.nn.modules.linear.Linear": "call"}


def test_classes_of_a_torchscript_archive_are_its_own_code() -> None:
    raw = name("__torch__.torch.nn.modules.linear:Linear") + b")\x81"
    assert verdicts(raw, torchscript=True) == {"__torch__.torch.nn.modules.linear.Linear": ""}
    assert verdicts(raw) == {"__torch__.torch.nn.modules.linear.Linear": "unknown"}
