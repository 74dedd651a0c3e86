"""From a problem to an artifact, and the cache of artifacts on disk.

The module is also what `convsmith.compile` means to users: calling it calls `convsmith.frontend.numpy_api.compile`.
(Whoever imports a package makes it an attribute of the one around it, so a function of that name would not last.)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("convsmith.frontend.numpy_api").compile(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
