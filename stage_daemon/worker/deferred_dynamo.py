"""Puts off the import of torch._dynamo, a quarter of what workers are forked with, until something compiles.

Torch imports it wherever its own code must stay uncompiled: where fake tensors are dispatched and where optimizers
step. There it reads settings, and wraps functions in `disable`, which does nothing as long as nothing is compiled.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"


def defer_dynamo() -> None:
    """From here on torch._dynamo is what `_Deferred` says. Does nothing where it has been imported."""
    if NAME in sys.modules:
        return
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    module = _Deferred(spec)
    # While `__path__` is there, this module alone is found in the package without the rest.
    module.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[NAME] = module
    module.config = importlib.import_module(f"{NAME}.config")
    del module.__path__
    # Torch would look it up by an import each time.
    torch._dynamo = module


class _Deferred(ModuleType):
    """Has what eager code uses: `config`, `disable` and `graph_break`. Whoever asks for more, or for any module inside,
    gets the package itself, which is then imported into this very object."""

    config: ModuleType
    __path__: list[str]

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(NAME)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin
        self.__package__ = NAME
        self._importing = threading.RLock()
        self._has_begun = False

    def __getattr__(self, name: str) -> Any:
        """What the package's own code asks for while it is imported is answered as of any half imported module."""
        if not self._has_begun and (name == "__path__" or not name.startswith("__")):
            self._import()
        with self._importing:
            try:
                return self.__dict__[name]
            except KeyError:
                raise AttributeError(f"module {NAME!r} has no attribute {name!r}") from None

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """Of a function of torch's own: it, until there is something to keep it from."""
        if not callable(fn) or options != {"wrapping": False}:
            return self._import().disable(fn, recursive, **options)
        return _once_imported(self, fn, recursive)

    def graph_break(self, msg: str = "") -> None:
        """Speaks to whatever compiles the caller, which nothing does."""

    def _import(self) -> Any:
        with self._importing:
            if not self._has_begun:
                self._has_begun = True
                spec = self.__spec__
                assert spec is not None
                assert spec.loader is not None
                self.__path__ = list(spec.submodule_search_locations or ())
                sys.meta_path.insert(0, _ImportedModules())
                spec.loader.exec_module(self)
        return self


class _ImportedModules(MetaPathFinder, Loader):
    """Gives the package's modules that its own import has made. `import torch._dynamo.utils` asks the package for its
    path, by which all of it is imported, utils too; Python then goes on to make another utils."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        module = sys.modules.get(fullname)
        if module is None or target is not None or not fullname.startswith(f"{NAME}."):
            return None
        return ModuleSpec(fullname, self, loader_state=module.__spec__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It was executed before; only its spec was replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _once_imported(dynamo: _Deferred, function: Callable[..., Any], recursive: bool) -> Callable[..., Any]:
    disabled: Callable[..., Any] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None and "disable" in vars(dynamo):
            disabled = vars(dynamo)["disable"](function, recursive, wrapping=False)
        return (disabled or function)(*args, **kwargs)

    return call
