"""torch._dynamo stays away from eager code, and is all there for whoever compiles."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import get_context

import pytest

from tests.nightly import nightly

pytestmark = [pytest.mark.services, pytest.mark.slow]

# Each in a process of its own, since a process imports torch._dynamo once.
DEFER = """
import torch
from stage_daemon.worker.deferred_dynamo import defer_dynamo
defer_dynamo()
"""
BEGINNING = """
import sys
import torch
dynamo = sys.modules["torch._dynamo"]
def is_here(): return "torch._dynamo.eval_frame" in sys.modules
assert not is_here()
"""


def run(program: str) -> None:
    """In an interpreter that has imported no more than torch."""
    ended = subprocess.run(
        [sys.executable, "-c", DEFER + BEGINNING + program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def run_as_worker(program: str) -> None:
    """In a process as workers are: forked from a server that has deferred it."""
    process = get_context("forkserver").Process(target=exec, args=(BEGINNING + program, {}), daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_eager_code_does_without_it() -> None:
    run("""
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode() as mode:
    assert (torch.empty(2, 3) + 1).view(6).shape == (6,)
assert mode.cache_enabled == dynamo.config.fake_tensor_cache_enabled
assert not hasattr(dynamo, "__wrapped__")
assert not is_here()
""")


def test_whoever_compiles_has_all_of_it_and_what_ran_before_stays_uncompiled() -> None:
    run("""
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.empty(2)
config, calls = dynamo.config, []
def noted(x):
    calls.append(torch.compiler.is_compiling())
    return x + 1
kept_out = torch._disable_dynamo(noted)
kept_out(torch.ones(2))
assert not is_here()
compiled = torch.compile(lambda x: kept_out(x * 2) * 3, backend="eager")
assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 9.0))
assert is_here()
assert calls == [False, False]
assert sys.modules["torch._dynamo"] is torch._dynamo is dynamo
assert dynamo.config is config
assert dynamo.disable.__module__ == "torch._dynamo.decorators"
with FakeTensorMode():
    torch.empty(2)
""")


@pytest.mark.parametrize(
    "program",
    [
        "from torch._dynamo.source import LocalSource",
        *nightly(
            [
                "import torch._dynamo.utils",
                "from torch._dynamo import optimize",
                "torch._dynamo.reset()",
                "torch._dynamo.disable(recursive=False)(print)",
            ]
        ),
        "import threading\nthreads = [threading.Thread(target=lambda: dynamo.reset()) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n[thread.join() for thread in threads]\ndynamo.reset()",
    ],
)
def test_whoever_asks_for_more_gets_it(program: str) -> None:
    run_as_worker(f"{program}\nassert is_here()\nfrom torch._dynamo import list_backends\nassert list_backends()\n")


@pytest.mark.parametrize("module", ["source", *nightly(["utils", "backends.common"])])
def test_each_of_its_modules_is_made_once_whoever_asks_first(module: str) -> None:
    run_as_worker(f"""
import torch._dynamo.{module}
from torch._dynamo import guards, output_graph
assert guards.LocalSource is torch._dynamo.source.LocalSource
assert output_graph.counters is torch._dynamo.utils.counters
module = sys.modules["torch._dynamo.{module}"]
assert module is torch._dynamo.{module}
assert module.__spec__.origin == module.__file__
""")
