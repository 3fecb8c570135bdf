# The model of `make demo` tensor parallel: its heads and its wide layers are spread over ranks, one device each.
import argparse
import json
import os
import sys
import tempfile
from datetime import timedelta

from tools.measure.worker import Worker

RANKS = 3  # the model has 9 heads and 3 heads of keys and values


def split(model, ranks: int) -> None:
    """Spread each layer: rows of what is read from the hidden state, columns of what is written to it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    config = model.config
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, name) % ranks:
            raise ValueError(f"{name} of this model, {getattr(config, name)}, does not divide by {ranks} ranks")
    mesh = init_device_mesh("kunlun", (ranks,))
    plan = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    plan |= {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)


def rank_main(rank: int, ranks: int, store: str, answers: int, options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(options.threads)
    torch.kunlun.set_device(rank)
    dist.init_process_group(
        "xccl", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timedelta(minutes=10)
    )
    # Only the first rank reports; the others do the same work.
    with os.fdopen(answers if rank == 0 else os.open(os.devnull, os.O_WRONLY), "w") as output:
        worker = Worker("kunlun", output)
        worker.load(options.folder, options.dtype)
        split(worker.model, ranks)
        result = worker.generate([options.prompt], options.new_tokens, ticks=True)
        everybody = [None] * ranks
        dist.all_gather_object(everybody, (result["tokens"], result["memory"]))
        if any(tokens != result["tokens"] for tokens, _ in everybody):
            raise RuntimeError("the ranks wrote different tokens")
        worker.send(done={**result, "memory_of_ranks": [memory for _, memory in everybody]})
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.demo.parallel", description=__doc__)
    parser.add_argument("--folder", required=True, help="the converted model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="kernel threads of each rank")
    options = parser.parse_args()
    os.environ["KUNLUN_SIM_DEVICES"] = str(max(RANKS, int(os.environ.get("KUNLUN_SIM_DEVICES", "0"))))
    os.environ["KUNLUN_SIM_THREADS"] = str(options.threads)

    import torch

    with tempfile.TemporaryDirectory() as folder:
        processes = []
        context = torch.multiprocessing.get_context("fork")  # no device has been used yet
        for rank in range(RANKS):
            arguments = (rank, RANKS, f"{folder}/store", os.dup(sys.stdout.fileno()), options)
            processes.append(context.Process(target=rank_main, args=arguments))
            processes[-1].start()
        for process in processes:
            process.join()
    failed = [rank for rank, process in enumerate(processes) if process.exitcode != 0]
    if failed:
        print(json.dumps({"error": f"ranks {failed} failed", "traceback": "see above"}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
