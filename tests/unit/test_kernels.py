"""Kernel names as traces have them: short names and categories."""

from __future__ import annotations

import time

import pytest

from stemroot_spark.kernels import COMMUNICATION, category, short_name

_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
    "c10::BFloat16, at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)3>>"
    "(int, T2, T3)"
)
_LAMBDA = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
    "[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::"
    "[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>, (int)4>(int, T1, T2)"
)
_FLASH = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, "
    "cutlass::bfloat16_t>, (bool)0, (bool)1>(flash::Flash_fwd_params)"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Fan2(float *, float *, float *, int, int, int)", "Fan2"),
        ("saxpy", "saxpy"),
        (_ELEMENTWISE, "vectorized_elementwise_kernel"),
        (_LAMBDA, "unrolled_elementwise_kernel"),
        (_FLASH, "flash_fwd_kernel"),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_TNN", "nvjet_tst_256x128_64x4_2x1_v_bz_TNN"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "ncclDevKernel_SendRecv"),
        ("void (anonymous namespace)::softmax_warp<float, 3>(float *)", "softmax_warp"),
        ("void at::native::<unnamed>::reduce_kernel<int>(int)", "reduce_kernel"),
        ("void at::{anonymous}::scan<int>(int)", "scan"),
        ("void (anonymous namespace)::Functor<int>::operator()(int) const", "operator"),
        ("Functor::operator() (int)", "operator"),
        ("bool a::operator<(a::T const&, a::T const&)", "operator"),
        ("void a::operator<< <int>(a::T&, int)", "operator"),
        ("a::T a::operator-><int>(a::T)", "operator"),
        ("void run<(a::E)1, &b::f<int>>(int)", "run"),
        ("std::enable_if<(A<B>::value), void>::type cub::DeviceScan<X<Y>>(int)", "DeviceScan"),
        ("  padded (int)  ", "padded"),
        ("_ZN7cutlass6KernelI4GemmEEvNT_6ParamsE", "_ZN7cutlass6KernelI4GemmEEvNT_6ParamsE"),
        ("", "unnamed"),
        ("   ", "unnamed"),
        ("<>", "<>"),
        ("(int)", "(int)"),
        ("漢字::кернел<int>(int)", "кернел"),
    ],
)
def test_the_short_name_is_the_name_of_the_function(name: str, expected: str) -> None:
    assert short_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "void f<" * 600 + "int" + ">" * 600 + "(int)",
        "x" * 4096,
        "<" * 4096,
        ">" * 4096,
        "(" * 4096,
        "operator" * 512,
        "a::" * 1365,
        _LAMBDA * 10,
        "name with 'quotes' \"double\" \\ and\nnew line\t(int)",
    ],
)
def test_any_name_of_4_kilobytes_gives_a_short_name_at_once(name: str) -> None:
    started = time.perf_counter()
    assert 1 <= len(short_name(name)) <= 120
    assert category(name)
    assert time.perf_counter() - started < 0.2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", COMMUNICATION),
        (
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm *, unsigned long, ncclWork *)",
            COMMUNICATION,
        ),
        ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", COMMUNICATION),
        ("nvshmemi_proxy_kernel", COMMUNICATION),
        ("NCCLDEVKERNEL_X", COMMUNICATION),
        (_FLASH, "attention"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_TNN", "gemm"),
        (_ELEMENTWISE, "elementwise"),
        (_LAMBDA, "copy"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(R)", "reduction"),
        ("void cunn_SoftMaxForward<4, float>(float *)", "softmax"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", "normalization"),
        ("multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float>>", "optimizer"),
        ("Fan1(float *, float *, int, int)", "other"),
        ("saxpy(int, float, float *, float *)", "other"),
        ("", "other"),
    ],
)
def test_the_category_follows_the_rules(name: str, expected: str) -> None:
    assert category(name) == expected


@pytest.mark.parametrize("name", ["cancellation_kernel", "synchronize", "void succl<int>()", "reconcile"])
def test_a_name_that_only_resembles_a_communication_library_is_no_communication(name: str) -> None:
    assert category(name) != COMMUNICATION
