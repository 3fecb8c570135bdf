"""Random chains of views and in-place writes, on kunlun and on the CPU at once; every byte must be equal afterwards.

    python -m tools.fuzz_views --chains 1000 --seed 0

A chain starts from a few tensors whose numbers are the same on both sides. Each step makes a view, writes into one,
moves its storage, or copies between the two; what the CPU refuses kunlun has to refuse with the same type of exception.
After the chain, sizes, strides, offsets and pending bits of all tensors and all bytes of all storages are compared.
A chain follows from its seed alone: ``--seed N --chains 1 --verbose`` repeats chain N and prints its steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
import warnings

import torch

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
STEPS = 14
# What refuses a call: torch raises nothing else for arguments it does not take.
REFUSALS = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)


@dataclasses.dataclass(eq=False)
class Pair:
    """One tensor on both sides."""

    cpu: torch.Tensor
    kunlun: torch.Tensor

    def describe(self) -> str:
        t = self.cpu
        bits = " conj" * t.is_conj() + " neg" * t.is_neg()
        return f"{t.dtype} {list(t.shape)} strides {list(t.stride())} offset {t.storage_offset()}{bits}"


class Mismatch(AssertionError):
    """The two sides differ. Holds the steps that led there."""


class Chain:
    """One chain of steps; everything it does follows from the seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.seed = seed
        self.log: list[str] = []
        self.pairs: list[Pair] = []
        self.negates = False  # whether any tensor has a pending negation
        self.roots: list[Pair] = []  # keep every storage alive, so that all are compared at the end
        for _ in range(self.random.randint(1, 3)):
            self.add_root()

    # ---- making tensors ----

    def numbers(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.random.getrandbits(62))
        values = torch.randint(0, 2 if dtype is torch.bool else 7, (count,), generator=generator)
        if dtype.is_complex:
            return torch.complex(values.double(), values.flip(0).double() - 3).to(dtype)
        return (values - 3 if dtype.is_signed else values).to(dtype)

    def sizes(self) -> list[int]:
        if self.random.random() < 0.02:
            return [self.random.randint(100, 300), self.random.randint(100, 300)]
        return [self.random.choice([0, 1, 1, 2, 3, 4, 5]) for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 4]))]

    def fresh(self, sizes=None, dtype=None) -> Pair:
        sizes = self.sizes() if sizes is None else list(sizes)
        dtype = dtype or self.random.choice(DTYPES)
        cpu = self.numbers(torch.Size(sizes).numel(), dtype).reshape(sizes)
        if cpu.dim() > 1 and self.random.random() < 0.3:  # another order in memory
            order = self.random.sample(range(cpu.dim()), cpu.dim())
            cpu = cpu.permute(order).contiguous().permute([order.index(d) for d in range(cpu.dim())])
        return Pair(cpu, cpu.to(f"kunlun:{self.random.randrange(torch.kunlun.device_count())}"))

    def add_root(self) -> None:
        pair = self.fresh()
        self.roots.append(pair)
        self.pairs.append(pair)
        self.log.append(f"t{len(self.pairs) - 1} = {pair.describe()} on {pair.kunlun.device}")

    # ---- running one call on both sides ----

    def both(self, text: str, pair: Pair, call) -> Pair | None:
        """Calls `call(tensor, side)` on both sides. A result is a new tensor of the chain."""
        self.log.append(f"{text} of t{self.index(pair)}")
        results = []
        for side, tensor in (("cpu", pair.cpu), ("kunlun", pair.kunlun)):
            try:
                results.append(call(tensor, side))
                if side == "kunlun" and isinstance(results[0], Exception):
                    torch.kunlun.synchronize(tensor.device)  # a kernel that refuses is heard of later
            except REFUSALS as error:
                results[0 if side == "cpu" else 1 :] = [error]
        want, got = results
        if isinstance(want, Exception) or isinstance(got, Exception):
            self.log[-1] += f": {type(want).__name__}"
            if type(want) is not type(got):
                kinds = [repr(r) if isinstance(r, Exception) else "no error" for r in results]
                self.fail(f"the CPU gave {kinds[0]}, kunlun gave {kinds[1]}")
            return None
        if not isinstance(want, torch.Tensor):
            return None
        made = Pair(want, got)
        for known in self.pairs:
            if known.cpu is want:
                made = known
        if made.cpu is want and made not in self.pairs:
            self.pairs.append(made)
        self.negates |= want.is_neg()
        self.log[-1] += f" -> t{self.index(made)} {made.describe()}"
        self.check_form(made)
        return made

    def index(self, pair: Pair) -> int:
        return next(i for i, known in enumerate(self.pairs) if known is pair)

    def fail(self, text: str) -> None:
        raise Mismatch(f"seed {self.seed}: {text}\n" + "\n".join(self.log))

    def check_form(self, pair: Pair) -> None:
        a, b = pair.cpu, pair.kunlun
        forms = [
            (t.dtype, t.shape, t.stride(), t.storage_offset(), t.is_conj(), t.is_neg(), t.untyped_storage().nbytes())
            for t in (a, b)
        ]
        if forms[0] != forms[1]:
            self.fail(f"t{self.index(pair)} is {forms[0]} on the CPU and {forms[1]} on kunlun")

    def check(self) -> None:
        """Forms of all tensors, bytes of all storages, and what one sees through the views."""
        for pair in self.pairs:
            self.check_form(pair)
            a, b = pair.cpu, pair.kunlun.cpu()
            if not same(a, b):
                self.fail(f"t{self.index(pair)} is\n{a}\non the CPU and\n{b}\non kunlun")
        for pair in self.roots:
            a, b = storage_as(pair.cpu, torch.uint8), storage_as(pair.kunlun, torch.uint8).cpu()
            if not torch.equal(a, b) and not (self.negates and self.same_storage(pair)):
                self.fail(f"the storage of t{self.index(pair)} differs")

    def same_storage(self, pair: Pair) -> bool:
        dtype = pair.cpu.dtype
        return same(storage_as(pair.cpu, dtype), storage_as(pair.kunlun, dtype).cpu())

    def pick(self) -> Pair:
        return self.random.choice(self.pairs)

    def run(self) -> Chain:
        kinds = [(view, 6), (write, 5), (copy, 3), (move_storage, 1), (list_write, 1)]
        for _ in range(self.random.randint(4, STEPS)):
            step = self.random.choices([k for k, _ in kinds], [w for _, w in kinds])[0]
            step(self, self.pick())
        self.check()
        return self


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether one sees the same. NaN equals NaN; a pending negation of zero may end as -0.0 or 0.0, depending on the
    order in which the copy that resolves it goes through the memory."""
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    return bool(((a == b) | ((a != a) & (b != b))).all())


def storage_as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The whole storage of `tensor`."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, 0, (storage.nbytes() // dtype.itemsize,))


# ---- steps ----


def view(chain: Chain, pair: Pair) -> None:
    r, t = chain.random, pair.cpu
    dim = r.randrange(t.dim()) if t.dim() else 0
    size = t.shape[dim] if t.dim() else 1
    start, step = r.randint(0, size), r.randint(1, 3)
    end = r.randint(start, size)
    other = r.randrange(t.dim()) if t.dim() else 0
    order = r.sample(range(t.dim()), t.dim())
    index = r.randrange(size) if size else 0
    kept = [r.choice([s, s, 3]) if s == 1 else s for s in t.shape]
    window = r.randint(1, max(1, size))
    free = [r.randint(0, 3) for _ in range(r.randint(0, 3))]
    strides = [r.choice([0, 1, 2, 3]) for _ in free]
    offset = r.randint(0, 4)
    # Bytes other than 0 and 1 in a bool have no promised value.
    dtype = r.choice([d for d in DTYPES if d is not torch.bool]) if t.dtype is not torch.bool else torch.bool
    half = [size // 2, size - size // 2]
    choices = {
        f"slice({dim}, {start}:{end}:{step})": lambda x, _: x[(slice(None),) * dim + (slice(start, end, step),)],
        f"narrow({dim}, {start}, {end - start})": lambda x, _: x.narrow(dim, start, end - start),
        f"select({dim}, {index})": lambda x, _: x.select(dim, index),
        f"transpose({dim}, {other})": lambda x, _: x.transpose(dim, other),
        f"permute({order})": lambda x, _: x.permute(order),
        f"expand({kept})": lambda x, _: x.expand(kept),
        f"expand(2, {kept})": lambda x, _: x.expand(2, *kept),
        f"unsqueeze({dim})": lambda x, _: x.unsqueeze(dim),
        "squeeze": lambda x, _: x.squeeze(),
        f"diagonal({dim}, {other})": lambda x, _: x.diagonal(1, dim, other),
        f"unfold({dim}, {window}, {step})": lambda x, _: x.unfold(dim, window, step),
        "view(-1)": lambda x, _: x.view(-1),
        "reshape(-1)": lambda x, _: x.reshape(-1),
        f"flatten({dim})": lambda x, _: x.flatten(dim),
        "ellipsis, None": lambda x, _: x[..., None],
        f"split({half})": lambda x, _: x.split(half, dim)[1],
        f"unbind({dim})": lambda x, _: x.unbind(dim)[0],
        f"chunk(2, {dim})": lambda x, _: x.chunk(2, dim)[-1],
        "mH": lambda x, _: x.mH,
        "conj": lambda x, _: x.conj(),
        "real": lambda x, _: x.real,
        "imag": lambda x, _: x.imag,
        "neg view": lambda x, _: torch._neg_view(x) if x.dtype is not torch.bool else x.detach(),
        "view_as_real": lambda x, _: torch.view_as_real(x),
        "view_as_complex": lambda x, _: torch.view_as_complex(x),
        f"view({dtype})": lambda x, _: x.view(dtype),
        f"as_strided({free}, {strides}, {offset})": lambda x, _: x.as_strided(free, strides, offset),
        "detach": lambda x, _: x.detach(),
    }
    text = r.choice(list(choices))
    chain.both(text, pair, choices[text])


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory, in which case the order of writes is nobody's promise."""
    return torch._debug_has_internal_overlap(tensor) != 0


def write(chain: Chain, pair: Pair) -> None:
    r, t = chain.random, pair.cpu
    value = r.choice([0, 1, 2, -1, 0.5, True])
    if overlaps_itself(t) and r.random() < 0.9:
        return
    dim = r.randrange(t.dim()) if t.dim() else 0
    size = t.shape[dim] if t.dim() else 1
    rows = torch.tensor([r.randrange(size) for _ in range(min(size, 3))], dtype=torch.int64)
    unique = torch.tensor(r.sample(range(size), min(size, 2)), dtype=torch.int64)

    def operand(x: torch.Tensor, kind: str) -> torch.Tensor:
        """The tensor that goes with the call, on the device of `x`; made when it is first asked for."""
        if kind not in made:
            made[kind] = {
                "any": lambda: chain.fresh([s if r.random() < 0.8 else 1 for s in t.shape]),
                "same": lambda: chain.fresh(shape, dtype),
                "mask": lambda: chain.fresh(shape, torch.bool),
                "part": lambda: chain.fresh([len(unique) if d == dim else s for d, s in enumerate(shape)], dtype),
            }[kind]()
        return made[kind].cpu if x.device.type == "cpu" else made[kind].kunlun.to(x.device)

    # Taken now: some calls change them on the CPU's side first.
    shape, dtype = t.shape, t.dtype
    made: dict[str, Pair] = {}
    choices = {
        f"fill_({value})": lambda x, _: x.fill_(value),
        "zero_": lambda x, _: x.zero_(),
        f"add_({value})": lambda x, _: x.add_(value),
        "neg_": lambda x, _: x.neg_(),
        "clamp_": lambda x, _: x.clamp_(-2, 2),
        f"add_(tensor, alpha={value})": lambda x, _: x.add_(operand(x, "any"), alpha=value),
        "mul_(tensor)": lambda x, _: x.mul_(operand(x, "any")),
        "add_(0-dim on the CPU)": lambda x, _: x.add_(torch.tensor(2)),
        f"masked_fill_({value})": lambda x, _: x.masked_fill_(operand(x, "mask"), value),
        f"index_fill_({dim})": lambda x, _: x.index_fill_(dim, rows.to(x.device), value),
        f"index_copy_({dim})": lambda x, _: x.index_copy_(dim, unique.to(x.device), operand(x, "part")),
        f"index_add_({dim})": lambda x, _: x.index_add_(dim, unique.to(x.device), operand(x, "part")),
        "x[mask] = value": lambda x, _: x.__setitem__(operand(x, "mask"), value),
        "x[rows] = value": lambda x, _: x.__setitem__(unique.to(x.device), value),
        f"x[..., :{size // 2}] = value": lambda x, _: x.__setitem__((..., slice(0, size // 2)), value),
        "add(out=)": lambda x, _: torch.add(operand(x, "same"), value, out=x),
        "where(out=)": lambda x, _: torch.where(operand(x, "mask"), operand(x, "same"), operand(x, "same") + 1, out=x),
        "cat(out=)": lambda x, _: torch.cat([operand(x, "same")], dim, out=x),
        f"cumsum_({dim})": lambda x, _: x.cumsum_(dim),
        "tril_": lambda x, _: x.tril_(),
        "t_": lambda x, _: x.t_(),
        "squeeze_": lambda x, _: x.squeeze_(),
        "unsqueeze_": lambda x, _: x.unsqueeze_(dim),
        "conj_physical_": lambda x, _: x.conj_physical_(),
        "data = clone": lambda x, _: setattr(x, "data", x.clone()),
    }
    text = r.choice(list(choices))
    chain.both(text, pair, choices[text])


def copy(chain: Chain, pair: Pair) -> None:
    """Copies into a view: from another tensor of the chain, from the host, from the other device, of any dtype."""
    r = chain.random
    if overlaps_itself(pair.cpu) and r.random() < 0.9:
        return
    way = r.choice(["device", "other device", "host", "pinned host", "clone", "host and back", "dtype"])
    if way in ("clone", "host and back", "dtype"):
        dtype = r.choice(DTYPES) if not pair.cpu.is_neg() else pair.cpu.dtype
        form = r.choice([torch.preserve_format, torch.contiguous_format])
        call = {
            "clone": lambda x, _: x.clone(memory_format=form),
            "host and back": lambda x, side: x.clone() if side == "cpu" else x.cpu().to(x.device),
            "dtype": lambda x, _: x.to(dtype, memory_format=form, copy=True),
        }[way]
        made = chain.both(f"{way} {dtype} {form}", pair, call)
        if made is not None and made not in chain.roots:
            chain.roots.append(made)
        return
    source = chain.pick() if r.random() < 0.5 else chain.fresh(pair.cpu.shape)
    if pair.cpu.is_neg() or source.cpu.is_neg():
        # The CPU's kernel forgets the negation in some conversions, such as float16 to float32; kunlun does not.
        source = chain.fresh(pair.cpu.shape, pair.cpu.dtype)
    values = Pair(source.cpu.clone(), source.kunlun.clone())  # what overlaps with the target has no promised order

    def call(x: torch.Tensor, side: str) -> torch.Tensor:
        if side == "cpu":
            return x.copy_(values.cpu)
        if way == "device":
            return x.copy_(values.kunlun.to(x.device))
        if way == "other device":
            return x.copy_(values.kunlun.to(f"kunlun:{(x.device.index + 1) % torch.kunlun.device_count()}"))
        if way == "pinned host":
            return x.copy_(values.cpu.pin_memory(), non_blocking=True)
        return x.copy_(values.cpu)

    chain.both(f"copy_ from the {way}, {values.cpu.dtype} {list(values.cpu.shape)},", pair, call)


def move_storage(chain: Chain, pair: Pair) -> None:
    """resize_ and set_: the tensor gets another part of its storage, a larger one, or another storage."""
    r = chain.random
    sizes = [r.randint(0, 4) for _ in range(r.randint(0, 3))]
    source = chain.pick()
    same_kind = (source.cpu.dtype is torch.bool) == (pair.cpu.dtype is torch.bool)
    if source.kunlun.device != pair.kunlun.device or not same_kind:
        source = pair
    way = r.choice(["resize_", "set_ tensor", "set_ storage", "set_ empty", "resize_as_"])

    def resize(x: torch.Tensor, _) -> torch.Tensor:
        old = x.untyped_storage().nbytes()
        x.resize_(sizes)
        grown = x.untyped_storage().nbytes() // x.element_size() - old // x.element_size()
        if grown > 0:  # fresh memory holds anything
            torch.empty(0, dtype=x.dtype, device=x.device).set_(
                x.untyped_storage(), old // x.element_size(), (grown,), (1,)
            ).zero_()
        return x

    def other(side: str) -> torch.Tensor:
        return source.cpu if side == "cpu" else source.kunlun

    choices = {
        "resize_": resize,
        "set_ tensor": lambda x, side: x.set_(other(side)),
        "set_ storage": lambda x, side: x.set_(other(side).untyped_storage(), 1, sizes),
        "set_ empty": lambda x, _: x.set_(),
        "resize_as_": lambda x, side: x.resize_as_(other(side)) if x.numel() >= other(side).numel() else x,
    }
    if source.cpu.is_conj() or source.cpu.is_neg() or pair.cpu.is_conj() or pair.cpu.is_neg():
        return  # set_ and resize_ refuse these or drop the bit, as the CPU does in some cases only
    if way in ("set_ storage", "resize_as_"):
        needed = 1 + torch.Size(sizes).numel() if way == "set_ storage" else 0
        if source.cpu.untyped_storage().nbytes() < needed * pair.cpu.element_size():
            return
        if (
            way == "resize_as_"
            and pair.cpu.untyped_storage().nbytes()
            < (pair.cpu.storage_offset() + source.cpu.numel()) * pair.cpu.element_size()
        ):
            return
    chain.both(f"{way} {sizes}", pair, choices[way])


def list_write(chain: Chain, pair: Pair) -> None:
    """An operator that writes into a list of tensors, some of them views of one storage."""
    r = chain.random
    others = [p for p in chain.pairs if p.kunlun.device == pair.kunlun.device and not overlaps_itself(p.cpu)]
    members = r.sample(others, min(len(others), 3))
    value = r.choice([1, 2])
    operation = r.choice([torch._foreach_add_, torch._foreach_mul_, torch._foreach_zero_, torch._foreach_neg_])
    arguments = (value,) if operation in (torch._foreach_add_, torch._foreach_mul_) else ()

    def call(_, side: str) -> None:
        operation([p.cpu if side == "cpu" else p.kunlun for p in members], *arguments)

    chain.both(f"{operation.__name__} {[chain.index(p) for p in members]}", pair, call)


def fuzz(chains: int, seed: int = 0, verbose: bool = False, report: float = 30.0) -> int:
    """Runs chains `seed`, `seed + 1`, ...; returns the number of steps, raises Mismatch at the first difference."""
    steps, last = 0, time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(seed, seed + chains):
            chain = Chain(number).run()
            steps += len(chain.log)
            if verbose:
                print("\n".join(chain.log))
            if time.monotonic() - last > report:
                last = time.monotonic()
                print(f"{number + 1 - seed} of {chains} chains", file=sys.stderr, flush=True)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first chain")
    parser.add_argument("--verbose", action="store_true", help="print every step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.monotonic()
    steps = fuzz(arguments.chains, arguments.seed, arguments.verbose)
    seconds = time.monotonic() - begin
    print(f"{arguments.chains} chains, {steps} steps, all equal to the CPU, in {seconds:.0f} s (simulated chip)")


if __name__ == "__main__":
    main()
