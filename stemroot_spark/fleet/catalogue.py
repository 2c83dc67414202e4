"""The kernels of the fleet: names, launch configurations and base durations of a transformer on an H100.

Names are written as nsys demangles them: template arguments with commas, lambdas, `(anonymous namespace)`.
Several kernels share one short name, as PyTorch's elementwise kernels do.
"""

from stemroot_spark.fleet.elementwise import ELEMENTWISE
from stemroot_spark.fleet.kernel import Kernel, by_length, config

_SMEM = 213_248
_FLASH = (
    "Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, cutlass::bfloat16_t, "
    "Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::bfloat16_t>>"
)
_FLASH_BWD = _FLASH.replace("Flash_fwd", "Flash_bwd")
_MULTI_TENSOR = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
    "at::native::(anonymous namespace)::{}>(T1, T2, T3...)"
)
_NCCL = "ncclDevKernel_{}(ncclDevKernelArgsStorage<(unsigned long)4096>)"

GEMMS = (
    Kernel(
        "gemm_projection",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
        (
            config(212.0, (2, 66, 1), 384, _SMEM, (2, 1, 1), is_bimodal=True),
            config(74.0, (2, 64, 1), 384, _SMEM, (2, 1, 1)),
        ),
        registers_per_thread=168,
        uses_driver_api=True,
    ),
    Kernel(
        "gemm_mlp",
        "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTN",
        (
            config(421.0, (132, 1, 1), 384, 221_184, (1, 2, 1), is_bimodal=True),
            config(398.0, (128, 1, 1), 384, 221_184, (1, 2, 1)),
            config(1890.0, (132, 4, 1), 384, 221_184, (1, 2, 1)),
        ),
        registers_per_thread=168,
        uses_driver_api=True,
    ),
    Kernel(
        "gemm_dgrad",
        "nvjet_tst_128x256_64x4_2x1_v_bz_splitK_NNT",
        (
            config(224.0, (2, 66, 2), 384, _SMEM, (2, 1, 1)),
            config(80.0, (2, 32, 2), 384, _SMEM, (2, 1, 1)),
            config(433.0, (2, 66, 3), 384, _SMEM, (2, 1, 1), is_bimodal=True),
            config(409.0, (2, 66, 4), 384, _SMEM, (2, 1, 1)),
        ),
        registers_per_thread=168,
        uses_driver_api=True,
    ),
    Kernel(
        "gemm_wgrad",
        "void cutlass::Kernel2<cutlass_90_tensorop_bf16_s64x128x16gemm_bf16_128x256x64_tn_align8>"
        "(cutlass_90_tensorop_bf16_s64x128x16gemm_bf16_128x256x64_tn_align8::Params)",
        (
            config(241.0, (24, 32, 1), 256, 98_304),
            config(88.0, (8, 32, 1), 256, 98_304, is_bimodal=True),
            config(462.0, (32, 32, 1), 256, 98_304),
            config(447.0, (32, 32, 2), 256, 98_304, is_bimodal=True),
        ),
        registers_per_thread=234,
    ),
    Kernel(
        "gemm_small",
        "s"
        "m"
        "9"
        "0"
        "_"
        "x"
        "m"
        "m"
        "a"
        "_"
        "g"
        "e"
        "m"
        "m"
        "_"
        "b"
        "f"
        "16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        (config(8.4, (4, 32, 1), 128, 65_536), config(11.2, (8, 32, 1), 128, 65_536)),
        registers_per_thread=90,
    ),
    Kernel(
        "split_k_reduce",
        "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, __nv_bfloat16, float, (bool)0, "
        "__nv_bfloat16, "
        "__nv_bfloat16, __nv_bfloat16, (bool)1, (bool)0, (bool)0>(cublasLt::cublasSplitKParams<T6>, const "
        "T4 *, const T9 *)",
        (config(5.6, (256, 4, 1), (32, 16, 1)),),
    ),
)

ATTENTION = (
    Kernel(
        "flash_fwd",
        f"void flash::flash_fwd_kernel<{_FLASH}, (bool)0, (bool)1, (bool)0, (bool)0, (bool)1, "
        "(bool)0>(flash::Flash_fwd_params)",
        by_length(330.0, 32, 128, 128, 65_536),
        registers_per_thread=255,
        follows_length=True,
    ),
    Kernel(
        "flash_bwd_dot",
        f"void flash::flash_bwd_dot_do_o_kernel<(bool)1, {_FLASH_BWD}>(flash::Flash_bwd_params)",
        by_length(18.0, 32, 64, 256, 0),
        registers_per_thread=60,
        follows_length=True,
    ),
    Kernel(
        "flash_bwd",
        f"void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{_FLASH_BWD}, (bool)0, (bool)1, "
        "(bool)0, (bool)0>"
        "(flash::Flash_bwd_params)",
        by_length(890.0, 32, 128, 256, 147_456),
        registers_per_thread=255,
        follows_length=True,
    ),
    Kernel(
        "flash_bwd_convert",
        f"void flash::flash_bwd_convert_dq_kernel<{_FLASH_BWD}>(flash::Flash_bwd_params, int)",
        by_length(14.0, 32, 64, 256, 16_384),
        registers_per_thread=64,
        follows_length=True,
    ),
)

REDUCTIONS = (
    Kernel(
        "layer_norm",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, (bool)0>"
        "(int, T2, const T1 *, const T1 *, const T1 *, T2 *, T2 *, T1 *)",
        (config(25.8, 8192, (32, 4, 1), 24), config(13.3, 4096, (32, 4, 1), 24)),
    ),
    Kernel(
        "layer_norm_backward",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, "
        "float, (bool)0>"
        "(const T1 *, const T1 *, const T2 *, const T2 *, const T1 *, T1 *, int)",
        (config(41.5, 8192, 512, 64),),
    ),
    Kernel(
        "layer_norm_weights",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float, "
        "(unsigned int)32, "
        "(unsigned int)32, (unsigned int)256, (bool)0, (bool)1, (bool)0>(long, long, const T1 *, const T1 "
        "*, const T2 *, "
        "const T2 *, T1 *, T1 *)",
        (config(29.7, (128, 2, 1), (32, 32, 1)),),
        static_shared_memory_bytes=8448,
    ),
    Kernel(
        "softmax",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<(int)8, c10::BFloat16, float, float, "
        "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue, long>(T4 *, const T2 *, T6)",
        (config(610.0, 8192, 1024, 128),),
    ),
    Kernel(
        "softmax_backward",
        "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<(int)8, float, float, c10::BFloat16, "
        "at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue>(T2 *, const T4 *, const T4 *, long)",
        (config(742.0, 8192, 1024, 128),),
    ),
    Kernel(
        "mean",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<"
        "float, float, float, "
        "float>, unsigned int, float, (int)4, (int)4>>(T3)",
        (config(15.9, 2048, (32, 16, 1), 16), config(33.9, 8192, (32, 16, 1), 16)),
    ),
    Kernel(
        "sum",
        "void at::native::reduce_kernel<(int)128, (int)4, at::native::ReduceOp<c10::BFloat16, at::native::"
        "func_wrapper_t<"
        "c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator ()(at::"
        "TensorIterator &)"
        "::[lambda(float, float) (instance 1)]>, unsigned int, c10::BFloat16, (int)4, (int)4>>(T3)",
        (config(20.7, (96, 4, 1), (32, 4, 1), 2048), config(54.0, (336, 4, 1), (32, 4, 1), 2048)),
    ),
    Kernel(
        "loss",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
        "(T1 *, T1 *, const T1 *, const T3 *, const T1 *, bool, long, long, long, long)",
        (config(9.2, 1, 32),),
    ),
)

EMBEDDING = (
    Kernel(
        "embedding",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, "
        "(int)2, (int)2, "
        "(int)-2, (bool)1>(at::cuda::detail::TensorInfo<T1, T3>, at::cuda::detail::TensorInfo<const T1, T3>, "
        "at::cuda::detail::TensorInfo<const T2, T3>, int, int, T3, T3, long)",
        (config(33.0, 1056, 128),),
    ),
    Kernel(
        "embedding_backward",
        "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>"
        "(const T2 *, const T1 *, const T2 *, long, long, T2 *, T2 *, long, T1 *)",
        (config(118.0, (512, 128, 1), 32, is_bimodal=True),),
    ),
)

OPTIMIZER = (
    Kernel(
        "adam",
        _MULTI_TENSOR.format(
            "FusedOptimizerTensorListMetadata<(int)4>, at::native::(anonymous namespace)::"
            "FusedAdamMathFunctor<float, (int)4, "
            "(at::native::ADAM_MODE)1, (bool)0>, const float *, double, double"
        ),
        (config(176.0, 2560, 512), config(61.0, 880, 512)),
        registers_per_thread=48,
    ),
    Kernel(
        "norm",
        _MULTI_TENSOR.format(
            "TensorListMetadata<(int)1>, at::native::(anonymous namespace)::LpNormFunctor<float, (at::"
            "native::NormType)1, "
            "float, (int)1, (int)1, (int)0>, float *, int"
        ),
        (config(43.0, 2560, 512),),
    ),
    Kernel(
        "clip",
        _MULTI_TENSOR.format(
            "TensorListMetadata<(int)1>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<"
            "float, (int)1, (int)1, "
            "(int)0>, std::multiplies<float>, float"
        ),
        (config(52.0, 2560, 512),),
    ),
)

COMMUNICATION = tuple(
    Kernel(
        key,
        _NCCL.format(name),
        configs,
        registers_per_thread=96,
        static_shared_memory_bytes=41_104,
        is_communication=True,
    )
    for key, name, configs in (
        ("all_gather", "AllGather_RING_LL", (config(182.0, 16, 544), config(486.0, 24, 544))),
        (
            "reduce_scatter",
            "ReduceScatter_Sum_bf16_RING_LL",
            (config(231.0, 16, 544), config(560.0, 24, 544)),
        ),
        ("all_reduce", "AllReduce_Sum_f32_TREE_LL", (config(28.0, 4, 512),)),
        ("broadcast", "Broadcast_RING_LL", (config(910.0, 16, 544),)),
    )
)

RARE = (
    Kernel(
        "initialise",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, (int)4, "
        "void at::native::templates::cuda::normal_and_transform<float, float, at::CUDAGeneratorImpl *, void "
        "at::native::templates::cuda::normal_kernel<at::CUDAGeneratorImpl *>(const at::TensorBase &, "
        "double, double, T1)"
        "::[lambda(float) (instance 1)]>(at::TensorIteratorBase &, T3, T4)::[lambda(float) (instance 1)]>"
        "(long, at::PhiloxCudaState, T3, T4)",
        (config(340.0, 1056, 256), config(1270.0, 1056, 256, 1024)),
    ),
    Kernel(
        "arange",
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(const "
        "c10::Scalar &, "
        "const c10::Scalar &, const c10::Scalar &, at::Tensor &)::[lambda(long) (instance 1)]>(T1, T2, "
        "function_traits<T2>::result_type *)",
        (config(1.9, 8, 64),),
    ),
    Kernel(
        "top_k",
        "void at::native::sbtopk::gatherTopK<c10::BFloat16, unsigned int, (int)2, (bool)0>(at::cuda::"
        "detail::TensorInfo<"
        "const T1, T2>, T2, T2, bool, T2, T2, at::cuda::detail::TensorInfo<T1, T2>, T2, at::cuda::detail::"
        "TensorInfo<long, T2>, "
        "T2, T1 *)",
        (config(2380.0, 8192, 1024),),
    ),
    Kernel(
        "arg_max",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::"
        "ArgMaxOps<float>, "
        "unsigned int, long, (int)4, (int)4>>(T3)",
        (config(131.0, 4096, (32, 16, 1), 32),),
    ),
)

KERNELS: tuple[Kernel, ...] = (
    GEMMS + ATTENTION + ELEMENTWISE + REDUCTIONS + EMBEDDING + OPTIMIZER + COMMUNICATION + RARE
)
