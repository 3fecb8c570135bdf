"""Operators whose result is like their first operand where all operands are alike (csrc/aten/Alike.h).

For contiguous floating-point operands of one shape and dtype the result has that shape, contiguous, and the dtype that
the lists say; and the meta function has no refusal for such operands that is still to be made. test/aten/test_alike.py
asks torch's meta functions whether that is so.
"""

_UNARY = """
    acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac hardsigmoid i0
    lgamma log log10 log1p log2 mish neg reciprocal round round.decimals rsqrt sgn sigmoid sign silu sin sinc sinh
    special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri sqrt tan tanh trunc
    clamp clamp_max clamp_min elu gelu hardshrink leaky_relu pow.Tensor_Scalar softplus threshold
"""
_BINARY = """
    add.Tensor atan2 clamp_max.Tensor clamp_min.Tensor copysign.Tensor div.Tensor fmax fmin fmod.Tensor hypot
    igamma igammac logaddexp logaddexp2 maximum minimum mul.Tensor nextafter pow.Tensor_Tensor
    remainder.Tensor special_xlog1py special_zeta sub.Tensor xlogy.Tensor
    gelu_backward hardshrink_backward hardsigmoid_backward logit_backward sigmoid_backward silu_backward
    softplus_backward tanh_backward threshold_backward
"""
_TERNARY = "addcdiv addcmul"
_COMPARISON = """
    eq.Scalar eq.Tensor ge.Scalar ge.Tensor gt.Scalar gt.Tensor le.Scalar le.Tensor lt.Scalar lt.Tensor
    ne.Scalar ne.Tensor isneginf isposinf signbit
"""

#: Functional overloads whose result has the dtype of their operands.
SAME = frozenset((_UNARY + _BINARY + _TERNARY).split())
#: Those that answer with truth values.
BOOL = frozenset(_COMPARISON.split())

# Without a meta function, these are launched where operands and outputs are alike, and go to the boxed tier elsewhere.
_UNSTRUCTURED = """
    _add_relu.Tensor _add_relu.out _add_relu_.Tensor abs.out angle angle.out hardswish hardswish.out hardswish_
    hardtanh hardtanh.out hardtanh_ logit logit.out logit_
    nan_to_num.out
    binary_cross_entropy_backward binary_cross_entropy_backward.grad_input hardswish_backward hardtanh_backward
    hardtanh_backward.grad_input huber_loss_backward.out log_sigmoid_backward log_sigmoid_backward.grad_input
    mish_backward mse_loss_backward mse_loss_backward.grad_input smooth_l1_loss_backward.grad_input
"""
_UNSTRUCTURED_BOOL = "isnan"

UNSTRUCTURED_SAME = frozenset(_UNSTRUCTURED.split())
UNSTRUCTURED_BOOL = frozenset(_UNSTRUCTURED_BOOL.split())

_IN_PLACE = """
    _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_ _cummax_helper _cummin_helper embedding_renorm_
    _fused_adagrad_ _fused_adagrad_.tensor_lr _fused_adam_ _fused_adam_.tensor_lr _fused_adamw_ _fused_adamw_.tensor_lr
    _fused_sgd_ _fused_sgd_.tensor_lr
"""

#: Operators that write their arguments and nothing else, and never give them another size: launched as they are.
IN_PLACE = frozenset(_IN_PLACE.split())
#: All that have such a launcher, and no registration in the boxed tier.
UNSTRUCTURED = UNSTRUCTURED_SAME | UNSTRUCTURED_BOOL | IN_PLACE
