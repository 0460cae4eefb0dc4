"""An objective is the data behind a loss; a loss maps a flat vector to a scalar.

Every loss here is a mean over samples, so a batch of n of N samples enters any full-data quantity with
weight n/N and no partition into batches, ragged or not, changes the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from .parameters import ParameterTable

Loss = Callable[[Tensor], Tensor]
"""theta (P,) -> (): a scalar loss of the flat parameter vector."""

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""What torch.compile, FSDP and activation checkpointing insert into parameter names, at any depth."""


@dataclass(frozen=True)
class Objective:
    """A mean loss over `num_samples` samples, evaluated on any subset of them.

    `sample_loss(theta (P,), indices (n,)) -> ()` is the mean loss over the samples named by indices; it
    is a pure function that works under torch.func (vmap over theta, over indices, or both).
    Full-data quantities accumulate over `chunks()` of at most `chunk_size` samples.
    Where the loss is `criterion(outputs(theta, indices), indices)`, both parts are given, and
    Gauss-Newton products become available. `table` names the coordinates of theta.
    """

    sample_loss: Callable[[Tensor, Tensor], Tensor]
    num_samples: int
    chunk_size: int = 4096
    table: ParameterTable | None = None
    outputs: Callable[[Tensor, Tensor], Tensor] | None = None
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (immutable)
    description: str = "mean loss"

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples={self.num_samples} must be at least 1")
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size={self.chunk_size} must be at least 1")

    def at(self, theta: Tensor, indices: Tensor) -> Tensor:
        """Mean loss over the samples named by indices (n,), as a scalar differentiable in theta (P,)."""
        with exact_attention():
            return self.sample_loss(theta, indices)

    def on(self, indices: Tensor) -> Loss:
        """The loss restricted to the samples named by indices (n,)."""
        return lambda theta: self.at(theta, indices)

    def chunks(self) -> Iterator[tuple[float, Loss]]:
        """(weight n/N, loss) per chunk of samples in order; the weights sum to one."""
        everything = torch.arange(self.num_samples, device=self.device)
        for indices in torch.split(everything, self.chunk_size):
            yield len(indices) / self.num_samples, self.on(indices)

    def full(self, theta: Tensor) -> Tensor:
        """Mean loss over all samples at theta (P,), in one graph if theta requires grad."""
        terms = [weight * loss(theta) for weight, loss in self.chunks()]
        return torch.stack(terms).sum()

    def value(self, theta: Tensor) -> float:
        """Mean loss over all samples as a number, without a graph (one forward pass)."""
        with torch.no_grad():
            return float(self.full(theta))

    def gradient(self, theta: Tensor) -> Tensor:
        """Gradient (P,) of the full mean loss, accumulated chunk by chunk (one gradient evaluation)."""
        total = torch.zeros_like(theta)
        for weight, loss in self.chunks():
            total += weight * gradient(loss, theta)
        return total

    def with_chunk_size(self, chunk_size: int) -> Objective:
        """The same objective accumulated over chunks of another size; no value changes."""
        return replace(self, chunk_size=chunk_size)


def gradient(loss: Loss, theta: Tensor) -> Tensor:
    """∇loss at theta (P,); coordinates that the loss ignores have gradient zero."""
    point = theta.detach().requires_grad_(True)
    with torch.enable_grad():
        value = loss(point)
        if not value.requires_grad:
            return torch.zeros_like(theta)
        (found,) = torch.autograd.grad(value, point, allow_unused=True)
    return torch.zeros_like(theta) if found is None else found


def exact_attention() -> AbstractContextManager[None]:
    """Attention by plain matrix products: the fused CPU kernels have no second derivatives."""
    return sdpa_kernel(SDPBackend.MATH)


def parameter_table(model: nn.Module) -> ParameterTable:
    """Names, shapes and ties of the trainable parameters of model, in `named_parameters` order.

    Names are canonical: what wrappers such as DataParallel or torch.compile add is removed. Frozen
    parameters (`requires_grad` false) are no part of theta.

    Raises:
        ValueError: two parameters get the same canonical name.
    """
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        name = canonical_name(name)
        if not tensor.requires_grad:
            continue
        if id(tensor) in first:
            if name != first[id(tensor)]:
                aliases[name] = first[id(tensor)]
        elif name in shapes:
            raise ValueError(f"two parameters are called {name!r} once wrappers are taken off; rename one")
        else:
            first[id(tensor)] = name
            shapes[name] = tuple(tensor.shape)
    return ParameterTable(tuple(shapes), tuple(shapes.values()), aliases)


def canonical_name(name: str) -> str:
    """A parameter's name without what model wrappers add: `module.` in front, WRAPPERS anywhere."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def flatten(model: nn.Module) -> Tensor:
    """A detached copy theta (P,) of the trainable parameters of model, tied tensors once."""
    tensors = [p.detach().reshape(-1) for p in model.parameters() if p.requires_grad]
    return torch.cat(tensors) if tensors else torch.empty(0)


def load_flat(model: nn.Module, theta: Tensor) -> None:
    """Copy theta (P,) into the trainable parameters of model, in place.

    Raises:
        ValueError: theta does not have P entries.
    """
    named = parameter_table(model).unflatten(theta)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.requires_grad:
                tensor.copy_(named[canonical_name(name)])


def from_module(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    criterion: Callable[[Tensor, Tensor], Tensor],
    *,
    chunk_size: int = 4096,
) -> Objective:
    """The objective `criterion(model(inputs), targets)` of an nn.Module, as a pure function of theta.

    `criterion(outputs (n, ...), targets (n, ...)) -> ()` must return the mean over its n samples. The
    model is called functionally: its parameters, buffers, mode, gradients and `requires_grad` flags stay
    as they are. It is evaluated in the mode that it is in at each call; put it in eval mode first.

    Raises:
        ValueError: inputs and targets differ in length, or the model has no trainable parameter.
    """
    if len(inputs) != len(targets):
        raise ValueError(f"inputs has {len(inputs)} samples but targets has {len(targets)}; they must agree")
    table = parameter_table(model)
    if table.size == 0:
        raise ValueError("model has no parameter with requires_grad=True; nothing to analyze")
    spelled = {canonical_name(name): name for name, _ in model.named_parameters(remove_duplicate=False)}

    def outputs(theta: Tensor, indices: Tensor) -> Tensor:
        named = {spelled[name]: tensor for name, tensor in table.unflatten(theta).items()}
        if any(
            module.training for module in model.modules()
        ):  # batch norm writes its running statistics into the buffers
            named |= {name: buffer.clone() for name, buffer in model.named_buffers()}
        result: Tensor = functional_call(model, named, (inputs[indices],), tie_weights=False)
        return result

    def output_loss(values: Tensor, indices: Tensor) -> Tensor:
        return criterion(values, targets[indices])

    return Objective(
        sample_loss=lambda theta, indices: output_loss(outputs(theta, indices), indices),
        num_samples=len(inputs),
        chunk_size=chunk_size,
        table=table,
        outputs=outputs,
        criterion=output_loss,
        device=inputs.device,
    )
