# Names of torch.cuda and torch.xpu that torch.kunlun has elsewhere or not at all, each with its reason.

# Name below the package -> its counterpart, where that has another path. A name that ends in "." stands for all below.
RENAMED = {
    "amp.autocast_mode.": "torch.kunlun.amp.",
    "amp.grad_scaler.": "torch.kunlun.amp.",
    "graphs.is_current_stream_capturing": "torch.kunlun.is_current_stream_capturing",
}

_GRAPHS = "Graphs are not there yet; `torch.accelerator.Graph` will be the way to them."
_LEGACY = "A type from before `dtype` and `device`; `torch.xpu` has none either. `dtype=` and `device=` say the same."
_CUDA_LIBRARY = "Belongs to CUDA's own libraries."
_PROCESSES = "Asks NVIDIA's or AMD's management library; the chip interface has no list of the processes on a card."
_AMP = "Says that neither CUDA nor XLA is there; `torch.kunlun.is_available` says what is."
_COLLECTIVES = "For `nn.DataParallel`, which torch advises against; `torch.distributed` moves tensors between devices."

# Modules whose names are all absent.
ABSENT_MODULES = {
    "comm": _COLLECTIVES,
    "gds": "GPUDirect Storage is a CUDA library.",
    "graphs": _GRAPHS,
    "green_contexts": "Green contexts are a feature of CUDA's driver.",
    "nccl": _COLLECTIVES,
    "nvtx": "Marks for NVIDIA's profilers; `torch.profiler.record_function` marks ranges on every device.",
    "profiler": "Starts and stops NVIDIA's profilers; `torch.profiler` is the way on every device.",
    "sparse": _LEGACY,
    "tunable": "Chooses between matrix libraries of CUDA and ROCm; a chip's driver has one kernel for each operator.",
}

ABSENT = {
    "list_gpu_processes": _PROCESSES,
    "memory.list_gpu_processes": _PROCESSES,
    **dict.fromkeys(
        (
            f"{dtype}{kind}"
            for kind in ("Storage", "Tensor")
            for dtype in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
        ),
        _LEGACY,
    ),
    "ComplexDoubleStorage": _LEGACY,
    "ComplexFloatStorage": _LEGACY,
    "CUDAGraph": _GRAPHS,
    "XPUGraph": _GRAPHS,
    "graph": _GRAPHS,
    "graph_pool_handle": _GRAPHS,
    "make_graphed_callables": _GRAPHS,
    "GreenContext": "Green contexts are a feature of CUDA's driver.",
    "CudaError": "Errors have torch's own types; a fault of the device is `torch.AcceleratorError`, as on CUDA.",
    "check_error": _CUDA_LIBRARY,
    "cudaStatus": _CUDA_LIBRARY,
    "cudart": _CUDA_LIBRARY,
    "current_blas_handle": _CUDA_LIBRARY,
    "current_solver_handle": _CUDA_LIBRARY,
    "has_half": "A constant of old times; float16 is always there.",
    "has_magma": "MAGMA is a CUDA library.",
    "DeferredCudaCallError": "No call is put off until the device starts, so none can fail then.",
    "amp.amp_definitely_not_available": _AMP,
    "amp.common.amp_definitely_not_available": _AMP,
}
