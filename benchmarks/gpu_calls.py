"""Time of the host for calls on a GPU, and an optimized block of a network, beside PyTorch's."""

import timeit
from collections.abc import Callable

import torch
from torch.nn import functional

import convsmith as cs
import convsmith.torch as ct

LINE = "--dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic64ih8oc64oh8kh3ph1"
EMPTY = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\0"


class Block(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Conv2d(n, n, 3, padding=1, bias=False) for _ in range(2))
        self.na, self.nb = (torch.nn.BatchNorm2d(n) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.nb(self.b(torch.relu(self.na(self.a(x))))) + x)


def show(name: str, call: Callable[[], object]) -> None:
    least = min(timeit.repeat(call, torch.cuda.synchronize, number=1000, repeat=9)) * 1e3
    print(f"{name:30} {least:7.2f} us")


def tensor(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape, device="cuda").bfloat16().to(memory_format=torch.channels_last)


def main() -> None:
    from cuda.bindings import driver

    x, w, out = tensor(1, 64, 8, 8), tensor(64, 64, 3, 3).requires_grad_(), tensor(1, 64, 8, 8)
    ours, theirs = (torch.autograd.grad(f(x, w, padding=1).sum(), w)[0] for f in (ct.conv2d, functional.conv2d))
    w, k, stream = w.detach(), cs.compile(LINE, target="cuda"), torch.cuda.current_stream().cuda_stream
    packed, at = k.pack(w.cpu()), [t.data_ptr() for t in (x, w, out)]
    equal = torch.equal(ours, theirs), torch.equal(k(x, packed), functional.conv2d(x, w, padding=1))
    print(torch.cuda.get_device_name(), k.config, "equal gradients and results:", equal)
    empty = driver.cuModuleGetFunction(driver.cuModuleLoadData(EMPTY)[1], b"empty")[1]
    launched = k.host.launched(("src", "wei", "dst"), (), lambda: stream)
    show("an empty cuLaunchKernel", lambda: driver.cuLaunchKernel(empty, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
    show("on addresses", lambda: launched.run(at, out))
    show("k(x, packed, out=out)", lambda: k(x, packed, out=out))
    show("k(x, packed)", lambda: k(x, packed))
    show("convsmith.torch.conv2d", lambda: ct.conv2d(x, w, padding=1))
    show("torch.nn.functional.conv2d", lambda: functional.conv2d(x, w, padding=1))
    with torch.inference_mode():
        network = Block(64).cuda().eval().bfloat16().to(memory_format=torch.channels_last)
        x, graph = tensor(8, 64, 28, 28), torch.cuda.CUDAGraph()
        fast, truth = ct.optimize(network, x, keep_faster=False), Block(64).cuda().eval().double()
        truth.load_state_dict(network.state_dict())
        wanted, _ = truth(x.double()), fast(x)
        with torch.cuda.graph(graph):
            captured = fast(x)
        graph.replay()
        for name, y in (("optimized", fast(x)), ("in a graph", captured), ("PyTorch", network(x))):
            print(f"{name} differs by {((y.double() - wanted).abs().max() / wanted.abs().max()).item():.2g}")
        show("optimized block", lambda: fast(x))
        show("PyTorch's block", lambda: network(x))
        print(fast.convsmith_report)


if __name__ == "__main__":
    main()
