"""A device that is none: its tensors compute on the processor, and refuse those of another device.

What PyTorch would refuse on a graphics card is refused here, too, so that code can be shown to put
every tensor where it belongs on machines without one. PyTorch has one such device in a process, for
good: import this where no other test runs. Numbers without a dimension may come from elsewhere, as
on a graphics card; indices may not, though there they may.
"""

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_MAY_MIX = ("aten::copy_", "aten::_to_copy")


class Pretended(torch.Tensor):
    """A tensor on the pretended device, around one of the processor's."""

    @staticmethod
    def __new__(cls, inner, device):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )

    def __init__(self, inner, device):
        self.inner = inner

    def tolist(self):
        """PyTorch has none for tensors of other makes."""
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        own = [x for x in tensors if isinstance(x, cls)]
        places = {x.device for x in tensors if x.dim() or isinstance(x, cls)}
        name = func._schema.name
        if len(places) > 1 and name not in _MAY_MIX:
            raise RuntimeError(f"{name} on tensors of {sorted(map(str, places))}")
        device = own[0].device
        if kwargs.get("device") is not None:
            device, kwargs["device"] = torch.device(kwargs["device"]), "cpu"
        inner = pytree.tree_map_only(cls, lambda x: x.inner, (args, kwargs))
        result = func(*inner[0], **inner[1])
        if name == "aten::copy_":
            return args[0]
        same = {id(x.inner): x for x in own}  # what was computed in place is what was given

        def outer(x):
            if id(x) in same:
                return same[id(x)]
            return x if device.type == "cpu" else cls(x, device)

        return pytree.tree_map_only(torch.Tensor, outer, result)


class _Module:
    """What PyTorch asks of a device's module."""

    def is_initialized(self):
        return True

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        pass


def _empty(size, *, dtype=None, device=None, **_):
    return Pretended(torch.empty(size, dtype=dtype), torch.device(device))


def _empty_strided(size, stride, *, dtype=None, device=None, **_):
    return Pretended(torch.empty_strided(size, stride, dtype=dtype), torch.device(device))


def _copy_from(source, target, non_blocking=False):
    inner = [x.inner if isinstance(x, Pretended) else x for x in (source, target)]
    inner[1].copy_(inner[0])
    return target


_setup_privateuseone_for_python_backend("pretended", backend_module=_Module())
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
DEVICE = torch.device("pretended", 0)
