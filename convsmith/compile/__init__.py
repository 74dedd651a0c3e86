"""From a problem to an artifact, and the cache of artifacts on disk.

The module can be called: importing it makes it the attribute ``compile`` of the package, where users expect the
function :func:`convsmith.frontend.numpy_api.compile`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from convsmith.frontend.numpy_api import compile as compile_kernel

        return compile_kernel(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
