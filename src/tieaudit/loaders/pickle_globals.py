"""This file holds what the names in a pickle would do when the file is loaded by torch.load(weights_only=False).

Whoever can call one function of his choice runs any code, so everything is denied that is not listed: a function that is
called, a class that is called and not from a package known to ML. The lists follow torch/_weights_only_unpickler.py; what is
added to them was read in its own source: it makes an object, and neither calls nor imports what it is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..checkpoint import PickleGlobal
from .pickle_machine import BUILT, CALLED, MADE, PATCHED, Global, Made, PickleMachine, describe
from .torch_tensors import DTYPES_BY_NAME, STORAGE_DTYPES

# Names that Python 2 and old torch gave to modules (Lib/_compat_pickle.py; torch/serialization.py, load_module_mapping).
RENAMED_MODULES: Mapping[str, str] = {"__builtin__": "builtins", "copy_reg": "copyreg", "torch.tensor": "torch._tensor"}
RENAMED: Mapping[str, str] = {
    "builtins.unicode": "builtins.str",
    "builtins.long": "builtins.int",
    "builtins.xrange": "builtins.range",
}

CONSTANTS = frozenset(
    [f"torch.{name}" for name in DTYPES_BY_NAME]
    + [f"torch.{name}" for name in ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric")]
    + [f"torch.{name}" for name in ("per_channel_affine_float_qparams", "strided", "contiguous_format", "preserve_format")]
)
STORAGES = frozenset(f"{module}.{name}" for module in ("torch", "torch.cuda", "torch.storage", "torch.sparse") for name in STORAGE_DTYPES)
TENSOR_CLASSES = frozenset(
    f"{module}.{kind}Tensor"
    for module in ("torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse")
    for kind in "Double Float Half BFloat16 Long Int Short Char Byte Bool".split()
)
# May be called with any arguments: makes a tensor, a container or a plain value.
INERT_CALLS = frozenset(
    """
    torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2 torch._utils._rebuild_tensor_v3
    torch._utils._rebuild_parameter torch._utils._rebuild_parameter_with_state torch._utils._rebuild_qtensor
    torch._utils._rebuild_sparse_tensor torch._utils._rebuild_nested_tensor torch._utils._rebuild_wrapper_subclass
    torch._utils._rebuild_meta_tensor_no_storage torch._utils._rebuild_device_tensor_from_numpy
    torch._utils._rebuild_device_tensor_from_cpu_tensor torch._utils._rebuild_xla_tensor
    torch._tensor._rebuild_from_type torch._tensor._rebuild_from_type_v2 torch.serialization._get_layout
    torch.nn.parameter.Parameter torch.nn.parameter.Buffer torch.Size torch.Tensor torch.device torch.dtype
    torch.jit._pickle.build_intlist torch.jit._pickle.build_tensorlist torch.jit._pickle.build_doublelist
    torch.jit._pickle.build_boollist torch.jit._pickle.build_tensor_from_id torch.jit._pickle.restore_type_tag
    collections.OrderedDict collections.Counter collections.defaultdict collections.deque
    copyreg._reconstructor copyreg.__newobj__ copyreg.__newobj_ex__ _codecs.encode
    builtins.bytearray builtins.bytes builtins.complex builtins.set builtins.frozenset builtins.list builtins.dict
    builtins.tuple builtins.int builtins.float builtins.str builtins.bool builtins.object builtins.slice builtins.range
    numpy.ndarray numpy.dtype numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct
    numpy.core.multiarray.scalar numpy._core.multiarray.scalar numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer
    argparse.Namespace types.SimpleNamespace datetime.datetime datetime.date datetime.time datetime.timedelta datetime.timezone
    decimal.Decimal fractions.Fraction uuid.UUID random.Random logging.getLogger re._compile
    io.BytesIO io.StringIO _io.BytesIO _io.StringIO
    pathlib.Path pathlib.PosixPath pathlib.WindowsPath pathlib.PurePath pathlib.PurePosixPath pathlib.PureWindowsPath
    pathlib._local.Path pathlib._local.PosixPath pathlib._local.WindowsPath
    """.split()
)
# May be made (`__new__`) and given their state, not called: a class whose name ends so in a module that begins so.
INERT_CLASSES = (
    r"torch\.nn\.modules(\.\w+)*\.[A-Z]\w*"
    r"|torch\.nn\.parallel\.data_parallel\.DataParallel"
    r"|torch\.optim(\.\w+)*\.[A-Z]\w*"
    r"|torch\.utils\.hooks\.RemovableHandle"
    r"|transformers\.models\.\w+\.configuration_\w+\.[A-Z]\w*Config"
    r"|omegaconf\.(dictconfig\.DictConfig|listconfig\.ListConfig|base\.(Container)?Metadata|nodes\.[A-Z][a-z]+Node)"
    r"|(pytorch_lightning|lightning\.pytorch)\.utilities\.parsing\.AttributeDict"
    r"|(lightning_fabric|lightning\.fabric)\.utilities\.data\.AttributeDict"
)
# Modules through which code runs, however the name is used. Also the top of any dotted path through another module.
DANGEROUS_MODULES = frozenset(
    """
    os posix nt posixpath ntpath subprocess sys importlib imp runpy pkgutil zipimport pty tty socket socketserver ssl http urllib
    urllib2 requests httpx aiohttp ftplib smtplib poplib imaplib telnetlib xmlrpc shutil tempfile ctypes _ctypes cffi pickle
    _pickle cPickle dill cloudpickle joblib marshal shelve code codeop _pyrepl bdb pdb cProfile profile timeit trace
    webbrowser antigravity this idlelib turtledemo operator _operator functools _functools itertools threading _thread
    multiprocessing _posixsubprocess concurrent asyncio signal atexit site sitecustomize usercustomize ensurepip pip setuptools
    distutils venv gc inspect types weakref builtins commands popen2 platform sched logging io _io fileinput glob linecache
    tokenize compileall py_compile doctest unittest pytest test lib2to3 sqlite3 dbm resource fcntl mmap readline rlcompleter
    """.split()
)
DANGEROUS_PARTS = frozenset(
    """
    hub package cpp_extension _inductor _dynamo _appdirs testing testing_utils commands cli launch launcher launchers agents tools
    elastic distutils f2py multiprocessing subprocess rpc bottleneck collect_env dynamic_module_utils interpreter python_interpreter
    """.split()
)
DANGEROUS_CLASSES = frozenset(
    """
    Popen Process Pool ThreadPool Thread Timer CDLL PyDLL WinDLL OleDLL LibraryLoader FunctionType CodeType LambdaType MethodType
    ModuleType Unpickler InteractiveInterpreter InteractiveConsole Function PackageImporter CompilationUnit DataSource ExitStack
    """.split()
)
# A class of these that is called is "unknown", not "call": enums are pickled as a call with their value.
KNOWN_PACKAGES = frozenset(
    """
    transformers accelerate peft trl diffusers pytorch_lightning lightning lightning_fabric lightning_utilities torchmetrics
    omegaconf deepspeed megatron datasets tokenizers sentence_transformers timm torchvision torchaudio fairseq nemo argparse
    pathlib datetime enum collections decimal fractions uuid
    """.split()
)
# torch and numpy are large, and parts of them run programs; these parts are known not to.
KNOWN_MODULES = (
    r"torch\.(nn|optim|ao|quantization|distributed\.(fsdp|tensor|_tensor|checkpoint|_shard|device_mesh))(\.|$)"
    r"|torch\.(distributions|fx\.immutable_collections|torch_version|utils\.data\.(dataset|sampler|distributed))(\.|$)"
    r"|numpy\.random(\.|$)"
)
KNOWN_FUNCTIONS = frozenset(f"numpy.random._pickle.__{name}_ctor" for name in ("generator", "bit_generator", "randomstate"))
MAX_CHAIN = 10  # calls whose function and arguments are arguments of a call
CLASS_NAME = r"[A-Z]\w*(\.[A-Z]\w*)*"
PUBLIC_NAME = r"[A-Za-z]\w*"


def judge(machine: PickleMachine, *, torchscript: bool = False) -> Iterator[PickleGlobal]:
    """Every name that the pickle imports, in order of appearance, and what it could do."""
    only_members = _follow(machine)
    for found in machine.globals.values():
        danger = _danger(found, torchscript=torchscript)
        if only_members and found.name == "getattr" and not found.uses & PATCHED:
            danger = "unknown"
        yield PickleGlobal(name=found.full_name, danger=danger)
    for name in machine.result_calls:
        yield PickleGlobal(name=name, danger="call")


def _follow(machine: PickleMachine) -> bool:
    """Mark what is called through the arguments of others. True if getattr is called, and only for members of classes of known
    packages: Python 3.11 pickles an enum's member as getattr(Class, "NAME")."""
    members = []
    for first_callee, first_args in machine.indirect:
        callee, args = first_callee, first_args
        for _ in range(MAX_CHAIN):
            if not isinstance(args, tuple):
                callee.uses |= PATCHED  # the arguments are computed: nothing is known about them
                break
            match callee.name:
                case "getattr":
                    members.append(_is_member(args))
                case "_reconstructor":  # (cls, base, state): base.__new__(cls, state), base.__init__(obj, state)
                    _mark(machine, args[:1], MADE)
                    _mark(machine, tuple(base for base in args[1:2] if not _is_plain_base(base)), CALLED)
                case "_rebuild_wrapper_subclass" | "__newobj__" | "__newobj_ex__":
                    _mark(machine, args[:1], MADE)
                case _:  # defaultdict(factory), _rebuild_from_type_v2(function, class, arguments, state)
                    _mark(machine, args[1:2], MADE | BUILT)
                    if len(args) > 2 and isinstance(args[0], Global) and args[0].indirect:
                        args[0].uses |= CALLED
                        callee, args = args[0], args[2]
                        continue
                    _mark(machine, args[:1], CALLED)
            break
        else:
            callee.uses |= PATCHED
    return bool(members) and all(members)


def _mark(machine: PickleMachine, items: tuple[object, ...], uses: int) -> None:
    for item in items:
        if isinstance(item, Global):
            # getattr as a factory, say: with which arguments is not known
            item.uses |= uses | PATCHED if item.indirect else uses
        elif isinstance(item, Made):
            machine.result_calls[describe(item)] = None


def _is_plain_base(base: object) -> bool:
    return isinstance(base, Global) and _true_name(base) in INERT_CALLS and _true_name(base).startswith("builtins.")


def _is_member(args: tuple[object, ...]) -> bool:
    match args:
        case (Global() as owner, str() as name):
            return _danger(Global(owner.module, owner.name, CALLED)) == "unknown" and _fits(PUBLIC_NAME, name)
    return False


def _fits(pattern: str, name: str) -> bool:
    """Patterns are compiled when a name needs them: the names of most files do not."""
    return re.fullmatch(pattern, name, re.ASCII) is not None


def _true_name(found: Global) -> str:
    name = f"{RENAMED_MODULES.get(found.module, found.module)}.{found.name}"
    return RENAMED.get(name, name)


def _danger(found: Global, *, torchscript: bool = False) -> str:
    name = _true_name(found)
    if found.uses & PATCHED:
        return "call"
    if torchscript and name.startswith("__torch__.") and _fits(r"[\w.]+", name):
        return ""  # a class of the archive's own code, which is not Python
    if name in CONSTANTS or name in STORAGES or name in TENSOR_CLASSES or name in INERT_CALLS:
        return "" if "." not in found.name else "call"
    if name in KNOWN_FUNCTIONS:
        return "unknown"
    return "call" if _is_dangerous(found, name) else _default(found, name)


def _is_dangerous(found: Global, name: str) -> bool:
    parts = name.split(".")
    if not all(part.isidentifier() and part.isascii() for part in parts):
        return True
    if parts[0] in DANGEROUS_MODULES or parts[-1] in DANGEROUS_CLASSES or not DANGEROUS_PARTS.isdisjoint(parts[1:]):
        return True
    # A dotted name walks through attributes: torch._utils + "sys.modules", a class + "method.__globals__".
    inner = found.name.split(".")[:-1]
    if any(part in DANGEROUS_MODULES or not _fits(CLASS_NAME, part) for part in inner):
        return True
    return bool(inner) and parts[-1].startswith("_")


def _default(found: Global, name: str) -> str:
    """For a name that no list knows."""
    if not found.uses & CALLED:
        is_inert = found.uses and "." not in found.name and _fits(INERT_CLASSES, name)
        return "" if is_inert else "unknown"
    top = name.split(".", 1)[0]
    known = top in KNOWN_PACKAGES or re.match(KNOWN_MODULES, found.module, re.ASCII)
    return "unknown" if known and _fits(CLASS_NAME, found.name) else "call"
