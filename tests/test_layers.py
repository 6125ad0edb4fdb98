"""Who may import whom, who may name jax and its versions, and what importing autoloop does not do."""

import ast
from pathlib import Path

import pytest

import autoloop

ROOT = Path(autoloop.__file__).parent

#: The house, from the ground up: a module imports only from rows above its own. A new module takes
#: the highest row that it can.
ROWS = (
    {"_json", "_signals", "_bound"},
    {"_records", "_disk", "_agree", "_inputs", "_machine", "_progress", "_together", "_mesh", "_pace"},
    {"_installed", "_choose", "_warning"},
    {"_config", "_jaxpr", "_timing", "_wisdom", "_listeners"},
    {"_outline", "_chain", "_canonical", "_atoms", "_processes", "_prints", "_store", "_specs", "_owned"},
    {"_loops", "_parts", "_signature", "_entries", "_stores"},
    {"_host", "_plan", "_estimate", "_carries", "_specfile", "_explain", "_kept"},
    {"_form", "_space", "_crew", "_runner", "_why"},
    {"_forms", "_legal", "_apply", "_foretell", "_trial", "_report"},
    {"_plans", "_lockstep", "_search", "_html", "_plot"},
    {"_function"},
    {"_program"},
    {"_options", "_call", "_variants"},
    {"_pinned", "_shorten", "_made", "_resume", "_offer"},
    {"_tune"},
    {"_decision", "_recheck", "_wanted"},
    {"_tuner", "_several", "_miss", "_tree"},
    {"_decide", "_watch"},
    {"_asked", "_demo"},
    {"_dispatch"},
    {"_decorate"},
    {"_forms_agree", "_cli", "_warm"},
    {"_doctor"},
    {"_cli_store", "_cli_wisdom", "_cli_warm"},
    {"__init__", "__main__", "testing"},
    {"_pytest"},
)
ROW = {name: number for number, row in enumerate(ROWS) for name in row}

#: Modules that do without these, so that tests can give them what they like.
WITHOUT = {
    "_records": {"jax", "numpy", "time", "os"},
    "_warning": {"jax", "numpy", "time", "os"},
    "_config": {"jax", "numpy"},
    "_choose": {"jax", "numpy", "time", "os", "diskcache"},
    "_foretell": {"jax", "numpy", "time", "os", "diskcache"},
    "_search": {"jax", "numpy", "time", "os", "diskcache"},
    "_space": {"jax", "numpy", "time", "os", "diskcache"},
    "_plan": {"jax", "numpy", "time", "os", "diskcache"},
    "_together": {"jax", "numpy", "os", "diskcache"},
    "_report": {"jax", "numpy"},
    "_html": {"jax", "numpy"},
    "_plot": {"jax", "numpy"},
    "_why": {"jax", "numpy", "time", "os", "diskcache"},
    "_store": {"jax", "numpy"},
    "_disk": {"jax", "numpy"},
    "_json": {"jax", "numpy"},
    "_wisdom": {"jax", "numpy"},
    "_listeners": {"jax", "numpy"},
}


def module_of(path):
    """The module at top level that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path):
    """Dotted names of what a file imports; names taken from a package count as its modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            yield node.module
            if node.module == "autoloop" or node.module.startswith("autoloop._forms"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports_of(path):
    """Top-level modules of ours that a file imports."""
    parts = [name.split(".") for name in imports_of(path)]
    return {p[1] for p in parts if p[0] == "autoloop" and len(p) > 1} & set(ROW)


FILES = sorted(ROOT.rglob("*.py"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def test_every_module_has_a_row():
    assert {module_of(path) for path in FILES} - set(ROW) == set(), "give new modules a row in ROWS"
    assert sum(map(len, ROWS)) == len(ROW), "a module has two rows"


@every_file
def test_a_module_imports_only_from_rows_above_its_own(path):
    own = module_of(path)
    below = {name for name in own_imports_of(path) - {own} if ROW[name] >= ROW[own]}
    assert below == set()


def test_the_check_of_imports_sees_imports():
    seen = {module_of(path): own_imports_of(path) for path in FILES if path.parent == ROOT}
    assert seen["_plan"] == {"_loops", "_records"}
    assert {"_host", "_jaxpr", "_loops"} <= seen["_form"]
    assert "_forms" in seen["_plans"]


def form_of(path):
    return path.relative_to(ROOT / "_forms").parts[0].removesuffix(".py")


FORM_FILES = sorted((ROOT / "_forms").rglob("*.py"))


@pytest.mark.parametrize("path", FORM_FILES, ids=lambda path: str(path.relative_to(ROOT / "_forms")))
def test_forms_do_not_know_each_other(path):
    forms = {form_of(other) for other in FORM_FILES} - {"__init__"}
    parts = [name.split(".") for name in imports_of(path) if name.startswith("autoloop._forms.")]
    known = {part[2] for part in parts} & forms
    if form_of(path) == "__init__":
        assert known == forms, "a form is not in the list"
    else:
        assert known <= {form_of(path)}


def test_the_list_of_forms_holds_nothing_else():
    tree = ast.parse((ROOT / "_forms" / "__init__.py").read_text())
    kinds = [type(node).__name__ for node in tree.body]
    assert kinds == ["Expr"] + ["ImportFrom"] * (len(kinds) - 2) + ["Assign"]


@pytest.mark.parametrize("name", WITHOUT)
def test_modules_that_do_without(name):
    found = {imported.split(".")[0] for imported in imports_of(ROOT / f"{name}.py")}
    assert found & WITHOUT[name] == set()


def branches_on_a_version(text):
    """Lines of comparisons with a version: of jax, of Python, of anything."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            names = [getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node)]
            if any("version" in name.lower() for name in names):
                yield node.lineno


@every_file
def test_only_one_module_knows_the_inside_of_jax_and_its_versions(path):
    text = path.read_text()
    assert path.name == "_jaxpr.py" or ("jax._src" not in text and not [*branches_on_a_version(text)])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("if jax.__version__ < '0.12': pass", [1]),
        ("x = 1\ny = jaxlib.version.__version_info__ >= (0, 8)", [2]),
        ("new = parse_version(jax) > 3", [1]),
        ("name = f'jax {jax.__version__}'", []),
        ("if 'ft_in' in params: pass", []),
    ],
)
def test_a_branch_on_a_version_is_seen(text, lines):
    assert list(branches_on_a_version(text)) == lines


# ---------------------------------------------------------------- importing

IMPORT_ALL = """
import importlib, logging, pkgutil, sys
import jax
levels = logging.root.level, logging.root.handlers[:]
import autoloop
if {modules}:
    for module in pkgutil.walk_packages(autoloop.__path__, "autoloop."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
logger = logging.getLogger("autoloop")
print(len([name for name in sys.modules if name.startswith("autoloop")]))
print(logger.handlers, logger.level, (logging.root.level, logging.root.handlers) == levels)
try:
    jax.devices()
except RuntimeError as error:
    print("no back end has started" if "no_such_platform" in str(error) else error)
else:
    print("a back end has started")
"""


@pytest.mark.parametrize("modules", [False, True])
def test_importing_starts_no_back_end_adds_no_handler_and_makes_no_folder(python, tmp_path, modules):
    out = python(
        IMPORT_ALL.format(modules=modules),
        JAX_PLATFORMS="no_such_platform",
        PYTHONDONTWRITEBYTECODE="1",
        HOME=str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        AUTOLOOP_CACHE_DIR=str(tmp_path / "store"),
        TMPDIR=str(tmp_path),
    )
    count, handlers, started = out.splitlines()
    assert int(count) >= (len(FILES) - 1 if modules else 1)
    assert handlers == "[] 0 True"
    assert started == "no back end has started"
    assert list(tmp_path.iterdir()) == []


def test_the_testing_kit_is_there_without_an_import_of_its_own(python):
    assert python("import autoloop; print(autoloop.testing.no_tuning.__name__)") == "no_tuning\n"
