"""The elementwise kernels of the fleet; most share the short names of PyTorch's few kernel templates."""

from stemroot_spark.fleet.kernel import Kernel, config

_VECTORIZED = (
    "void at::native::vectorized_elementwise_kernel<(int){}, {}, "
    "std::array<char *, (unsigned long){}>>(int, T2, T3)"
)
_ITERATOR = "(at::TensorIteratorBase &)"
_LAMBDA = (
    "::[lambda() (instance {})]::operator ()() const::[lambda() (instance {})]::operator ()() const"
    "::[lambda({}) (instance 1)]"
)

ELEMENTWISE = (
    Kernel(
        "copy",
        _VECTORIZED.format(
            8, f"at::native::bfloat16_copy_kernel_cuda{_ITERATOR}::[lambda(float) (instance 1)]", 2
        ),
        (
            config(2.1, 96, 128),
            config(9.8, 6144, 128),
            config(31.0, 18432, 128),
            config(44.5, 24576, 128),
        ),
    ),
    Kernel(
        "multiply",
        "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<"
        "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>>"
        "(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
        (config(24.0, 32768, 128), config(63.0, 86016, 128)),
    ),
    Kernel(
        "add",
        _VECTORIZED.format(8, "at::native::CUDAFunctor_add<c10::BFloat16>", 3),
        (config(19.6, 8192, 128),),
    ),
    Kernel(
        "silu",
        _VECTORIZED.format(
            8,
            f"at::native::(anonymous namespace)::silu_kernel{_ITERATOR}"
            + _LAMBDA.format(1, 4, "c10::BFloat16"),
            2,
        ),
        (config(38.0, 21504, 128),),
    ),
    Kernel(
        "silu_backward",
        _VECTORIZED.format(
            4,
            f"at::native::(anonymous namespace)::silu_backward_kernel{_ITERATOR}"
            + _LAMBDA.format(1, 4, "c10::BFloat16"),
            3,
        ),
        (config(57.0, 43008, 128),),
    ),
    Kernel(
        "cast",
        f"void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda{_ITERATOR}"
        + _LAMBDA.format(3, 7, "float")
        + ", std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>, "
        "TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)1>, "
        "at::native::memory::StoreWithCast<(int)1>>(int, T1, T2, T4, T5, T6, T7)",
        (config(12.5, 8192, 128), config(51.0, 43008, 128)),
    ),
    Kernel(
        "dropout",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned "
        "int, (int)1, (int)4, "
        "bool>(at::cuda::detail::TensorInfo<const T1, T3>, at::cuda::detail::TensorInfo<T1, T3>, T3, T2, "
        "at::PhiloxCudaState)",
        (config(22.4, 1056, 256, is_bimodal=True),),
    ),
    Kernel(
        "dropout_backward",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::masked_scale_kernel<bool, c10::"
        "BFloat16, float>"
        "(at::Tensor &, at::Tensor, at::Tensor, T3)::[lambda(c10::BFloat16, bool) (instance 1)], "
        "std::array<char *, (unsigned long)3>>(int, T2, T3)",
        (config(21.1, 16384, 128),),
    ),
    Kernel(
        "rotary",
        "triton_poi_fused_add_cat_mul_neg_slice_unsqueeze_7",
        (config(16.2, 16384, 256), config(5.1, 4096, 256)),
        uses_driver_api=True,
    ),
    Kernel(
        "concatenate",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::(anonymous "
        "namespace)::OpaqueType<"
        "(unsigned int)2>, unsigned int, (int)2, (int)128, (int)1, (int)16, (int)8>(char *, at::native::"
        "(anonymous namespace)"
        "::CatArrInputTensorMetadata<T1, T2, T4, T5>, at::native::(anonymous namespace)::TensorSizeStride<"
        "T2, (unsigned int)4>, "
        "int, T2)",
        (config(28.9, (264, 2, 1), 512),),
    ),
    Kernel(
        "power",
        _VECTORIZED.format(
            4,
            "void at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>(at::"
            "TensorIteratorBase &, T2)"
            "::[lambda(float) (instance 1)]",
            2,
        ),
        (config(17.3, 16384, 128),),
    ),
    Kernel(
        "reciprocal_root",
        _VECTORIZED.format(4, f"at::native::rsqrt_kernel_cuda{_ITERATOR}" + _LAMBDA.format(2, 2, "float"), 2),
        (config(1.7, 8, 128),),
    ),
    Kernel(
        "fill",
        _VECTORIZED.format(4, "at::native::FillFunctor<float>", 1),
        (config(1.5, 4, 128), config(26.0, 43008, 128)),
    ),
)
