"""Kernel facts of NVIDIA GPUs, learned: write this file with ``python -m evals.kernel_learn``.

Source of every number: the measured tables of ``aiconfigurator-core`` 0.12.0, a few percent of the rows of H100 and
B200 alone. Keys are (generation, engine, kernel family, format); floors are us, the rest shares and bytes.
SPARSE and LINEAR are keyed by engine; an engine's indexer floor comes from whole blocks, the rest from kernels.
"""

from predictor.kernels.facts import (
    DecodeFacts,
    KernelConstants,
    LinearFacts,
    MoeFacts,
    PrefillFacts,
    QuantFacts,
    SparseFacts,
)

GENERATION: dict[str, KernelConstants] = {
    "hopper": KernelConstants(2.59, 0.783, 0.667, 0.5, 0.813, 0.752, 0.8, 0.9, 2.5),
    "blackwell": KernelConstants(2.02, 0.67, 0.644, 0.492, 0.744, 0.721, 0.747, 0.9, 2.5),
}

QUANT: dict[tuple[str, str, str], QuantFacts] = {
    ("hopper", "vllm", "fp8"): QuantFacts(2.45, 6.46),
    ("hopper", "sglang", "fp8"): QuantFacts(2.6, 0.527),
    ("hopper", "sglang", "fp8_block"): QuantFacts(1.41, 0.164),
    ("hopper", "trtllm", "fp8"): QuantFacts(9.4, 0.0626),
    ("hopper", "trtllm", "fp8_block"): QuantFacts(1.84, 1.39),
    ("blackwell", "vllm", "fp8"): QuantFacts(3.46, 6.63),
    ("blackwell", "sglang", "fp8"): QuantFacts(3.55, 0.659),
    ("blackwell", "sglang", "fp8_block"): QuantFacts(4.16, 0.462),
    ("blackwell", "trtllm", "fp8"): QuantFacts(11.7, 0.577),
    ("blackwell", "trtllm", "fp8_block"): QuantFacts(3.68, 0.0194),
    ("blackwell", "vllm", "nvfp4"): QuantFacts(4.78, 0.15),
    ("blackwell", "sglang", "nvfp4"): QuantFacts(2.87, 0.256),
    ("blackwell", "trtllm", "nvfp4"): QuantFacts(6.37, 0.082),
}

DECODE: dict[tuple[str, str, str, str], DecodeFacts] = {
    ("hopper", "vllm", "fa3", "bf16"): DecodeFacts(12.3, 0.911, 3.22, 0.6),
    ("hopper", "vllm", "fa3", "fp8"): DecodeFacts(14.5, 0.713, 3.38, 0.6),
    ("hopper", "sglang", "fa3", "bf16"): DecodeFacts(10.5, 0.897, 2.87, 0.6),
    ("hopper", "sglang", "fa3", "fp8"): DecodeFacts(14.1, 0.656, 3.54, 0.6),
    ("hopper", "sglang", "triton", "bf16"): DecodeFacts(7.71, 0.743, 1.89, 0.6),
    ("hopper", "sglang", "triton", "fp8"): DecodeFacts(10.2, 0.481, 2.1, 0.6),
    ("hopper", "trtllm", "trtllm", "bf16"): DecodeFacts(10.8, 0.82, 3.41, 0.6),
    ("hopper", "trtllm", "trtllm", "fp8"): DecodeFacts(8.35, 0.781, 1.08, 0.6),
    ("blackwell", "vllm", "triton", "fp8"): DecodeFacts(12.7, 0.203, 1.04, 0.6),
    ("blackwell", "vllm", "trtllm", "bf16"): DecodeFacts(9.09, 0.928, 1.37, 0.6),
    ("blackwell", "vllm", "trtllm", "fp8"): DecodeFacts(10.2, 0.904, 1.2, 0.6),
    ("blackwell", "sglang", "flashinfer", "bf16"): DecodeFacts(8.4, 0.763, 2.68, 0.6),
    ("blackwell", "sglang", "flashinfer", "fp8"): DecodeFacts(16.2, 0.378, 4.63, 0.6),
    ("blackwell", "sglang", "triton", "bf16"): DecodeFacts(16.3, 0.37, 1.66, 0.6),
    ("blackwell", "sglang", "triton", "fp8"): DecodeFacts(16.7, 0.2, 1.54, 0.6),
    ("blackwell", "sglang", "trtllm", "bf16"): DecodeFacts(9.93, 0.969, 1.35, 0.6),
    ("blackwell", "sglang", "trtllm", "fp8"): DecodeFacts(16.5, 0.934, 1.2, 0.6),
    ("blackwell", "trtllm", "flashinfer", "bf16"): DecodeFacts(10.6, 0.959, 2.46, 0.6),
    ("blackwell", "trtllm", "flashinfer", "fp8"): DecodeFacts(14.1, 0.945, 1.65, 0.6),
    ("blackwell", "trtllm", "trtllm", "bf16"): DecodeFacts(11, 0.959, 1.55, 0.6),
    ("blackwell", "trtllm", "trtllm", "fp8"): DecodeFacts(11.1, 0.945, 1.23, 0.6),
}

MLA_DECODE: dict[tuple[str, str, str, str], DecodeFacts] = {
    ("hopper", "sglang", "fa3", "bf16"): DecodeFacts(12.6, 0.869, 5.47, 0.559),
    ("hopper", "sglang", "fa3", "fp8"): DecodeFacts(17.6, 1, 5.84, 0.0672),
    ("hopper", "trtllm", "trtllm", "bf16"): DecodeFacts(14, 0.918, 6.09, 0.613),
    ("hopper", "trtllm", "trtllm", "fp8"): DecodeFacts(14, 0.823, 7.03, 0.694),
    ("blackwell", "sglang", "trtllm", "bf16"): DecodeFacts(12.3, 0.735, 5.6, 0.493),
    ("blackwell", "sglang", "trtllm", "fp8"): DecodeFacts(10.9, 0.729, 4.36, 0.858),
    ("blackwell", "trtllm", "trtllm", "bf16"): DecodeFacts(11, 0.716, 5.61, 1.29),
    ("blackwell", "trtllm", "trtllm", "fp8"): DecodeFacts(10.5, 0.792, 4.87, 1.1),
}

PREFILL: dict[tuple[str, str, str, str], PrefillFacts] = {
    ("hopper", "vllm", "fa3", "bf16"): PrefillFacts(12.5, 0.63, 4.24e-11, 0.363),
    ("hopper", "sglang", "fa3", "bf16"): PrefillFacts(9.68, 0.696, 4.2e-13, 0.632),
    ("hopper", "sglang", "fa3", "fp8"): PrefillFacts(10.2, 0.418, 0.24, 0.743),
    ("hopper", "sglang", "triton", "bf16"): PrefillFacts(2, 0.102, 1.67e-13, 0.324),
    ("hopper", "sglang", "triton", "fp8"): PrefillFacts(2, 0.0392, 8.13e-15, 1),
    ("hopper", "trtllm", "trtllm", "bf16"): PrefillFacts(12.2, 0.634, 3.42, 0.464),
    ("hopper", "trtllm", "trtllm", "fp8"): PrefillFacts(11, 0.416, 4.39, 0.636),
    ("blackwell", "vllm", "triton", "bf16"): PrefillFacts(2, 0.0694, 4.64e-14, 0.0909),
    ("blackwell", "vllm", "trtllm", "bf16"): PrefillFacts(9.54, 0.577, 1.92, 0.322),
    ("blackwell", "sglang", "flashinfer", "bf16"): PrefillFacts(10.7, 0.51, 4.84, 1),
    ("blackwell", "sglang", "triton", "bf16"): PrefillFacts(5.02, 0.113, 2.49e-13, 0.113),
    ("blackwell", "sglang", "triton", "fp8"): PrefillFacts(2, 0.075, 1.24e-13, 0.126),
    ("blackwell", "sglang", "trtllm", "bf16"): PrefillFacts(8.01, 0.611, 1.94, 0.725),
    ("blackwell", "sglang", "trtllm", "fp8"): PrefillFacts(15.4, 0.368, 2.14, 0.373),
    ("blackwell", "trtllm", "flashinfer", "bf16"): PrefillFacts(10.7, 0.619, 0.619, 0.454),
    ("blackwell", "trtllm", "trtllm", "bf16"): PrefillFacts(11.5, 0.589, 3.84, 0.337),
    ("blackwell", "trtllm", "trtllm", "fp8"): PrefillFacts(11.4, 0.355, 3.53, 0.404),
}

MLA_PREFILL: dict[tuple[str, str, str, str], PrefillFacts] = {
    ("hopper", "sglang", "fa3", "bf16"): PrefillFacts(5.75, 0.193, 3.23e-12, 0.53),
    ("hopper", "sglang", "fa3", "fp8"): PrefillFacts(11.6, 0.198, 9.62e-12, 0.501),
    ("hopper", "trtllm", "trtllm", "bf16"): PrefillFacts(13.6, 0.635, 0.561, 0.94),
    ("hopper", "trtllm", "trtllm", "fp8"): PrefillFacts(17.3, 0.707, 0.634, 0.455),
    ("blackwell", "sglang", "trtllm", "bf16"): PrefillFacts(11.8, 0.615, 1.86, 0.991),
    ("blackwell", "sglang", "trtllm", "fp8"): PrefillFacts(17.9, 0.612, 1.77, 0.54),
    ("blackwell", "trtllm", "trtllm", "bf16"): PrefillFacts(12.7, 0.582, 1.78, 0.882),
    ("blackwell", "trtllm", "trtllm", "fp8"): PrefillFacts(18.4, 0.787, 1, 0.337),
}

MOE: dict[tuple[str, str, str, str], MoeFacts] = {
    ("hopper", "vllm", "cutlass", "fp8"): MoeFacts(23.3, 0.174, 0.0926, 1.32),
    ("hopper", "vllm", "cutlass", "fp8_block"): MoeFacts(21.6, 0.761, 0.288, 1.69),
    ("hopper", "vllm", "marlin", "mxfp4_a16"): MoeFacts(75.4, 0.999, 0.286, 15.4),
    ("hopper", "vllm", "triton", "bf16"): MoeFacts(33.5, 0.875, 0.546, 10.2),
    ("hopper", "vllm", "triton", "fp8_block"): MoeFacts(34.4, 0.862, 0.345, 11.4),
    ("hopper", "vllm", "triton", "mxfp4_a16"): MoeFacts(60.6, 0.834, 0.636, 6.35),
    ("hopper", "sglang", "cutlass", "bf16"): MoeFacts(2, 0.182, 0.0855, 1.68),
    ("hopper", "sglang", "marlin", "mxfp4_a16"): MoeFacts(76.4, 0.931, 0.333, 25.7),
    ("hopper", "sglang", "triton", "bf16"): MoeFacts(23.6, 0.719, 0.242, 7.26),
    ("hopper", "sglang", "triton", "fp8_block"): MoeFacts(25.3, 0.836, 0.364, 8.55),
    ("hopper", "sglang", "triton", "mxfp4_a16"): MoeFacts(20.8, 0.186, 0.261, 13.6),
    ("hopper", "trtllm", "cutlass", "bf16"): MoeFacts(20.6, 0.883, 0.852, 17.1),
    ("hopper", "trtllm", "cutlass", "fp8"): MoeFacts(25.2, 0.851, 0.829, 21.7),
    ("hopper", "trtllm", "cutlass", "fp8_block"): MoeFacts(18.6, 0.868, 0.483, 39.1),
    ("hopper", "trtllm", "cutlass", "mxfp4_a16"): MoeFacts(109, 1, 1, 183),
    ("hopper", "trtllm", "nongated", "bf16"): MoeFacts(33.7, 0.895, 0.566, 18.2),
    ("hopper", "trtllm", "nongated", "fp8"): MoeFacts(53.4, 0.895, 0.591, 15.6),
    ("blackwell", "vllm", "cutlass", "bf16"): MoeFacts(36.4, 0.721, 0.433, 3.11),
    ("blackwell", "vllm", "cutlass", "fp8"): MoeFacts(35.9, 0.624, 0.212, 2.59),
    ("blackwell", "vllm", "cutlass", "nvfp4"): MoeFacts(42.5, 0.44, 0.236, 4.07),
    ("blackwell", "vllm", "marlin", "mxfp4_a16"): MoeFacts(66, 0.586, 0.136, 41.8),
    ("blackwell", "vllm", "trtllm", "bf16"): MoeFacts(15.9, 0.915, 0.454, 2.86),
    ("blackwell", "vllm", "trtllm", "fp8"): MoeFacts(19.1, 0.857, 0.393, 2.8),
    ("blackwell", "vllm", "trtllm", "fp8_block"): MoeFacts(34.7, 0.936, 0.198, 10.4),
    ("blackwell", "vllm", "trtllm", "nvfp4"): MoeFacts(21.2, 0.806, 0.365, 3.21),
    ("blackwell", "vllm", "trtllm", "mxfp4_a16"): MoeFacts(23.2, 0.667, 0.253, 10.3),
    ("blackwell", "vllm", "trtllm", "mxfp4_a8"): MoeFacts(28.7, 0.926, 0.461, 7.71),
    ("blackwell", "sglang", "triton", "bf16"): MoeFacts(46.2, 0.702, 0.139, 18.2),
    ("blackwell", "sglang", "triton", "fp8_block"): MoeFacts(36.2, 0.679, 0.18, 15.5),
    ("blackwell", "sglang", "trtllm", "bf16"): MoeFacts(14.4, 0.901, 0.459, 2.51),
    ("blackwell", "sglang", "trtllm", "fp8_block"): MoeFacts(22.5, 0.77, 0.193, 7.9),
    ("blackwell", "sglang", "trtllm", "nvfp4"): MoeFacts(22.2, 0.842, 0.312, 2.73),
    ("blackwell", "sglang", "trtllm", "mxfp4_a16"): MoeFacts(21.3, 0.67, 0.251, 8.04),
    ("blackwell", "sglang", "trtllm", "mxfp4_a8"): MoeFacts(21.7, 0.846, 0.479, 5.05),
    ("blackwell", "trtllm", "cutlass", "bf16"): MoeFacts(27.8, 0.867, 0.853, 27.3),
    ("blackwell", "trtllm", "cutlass", "fp8"): MoeFacts(31.4, 0.863, 0.785, 31),
    ("blackwell", "trtllm", "cutlass", "nvfp4"): MoeFacts(40.5, 0.671, 0.506, 39.5),
    ("blackwell", "trtllm", "cutlass", "mxfp4_a16"): MoeFacts(44.2, 0.211, 0.134, 0.476),
    ("blackwell", "trtllm", "cutlass", "mxfp4_a8"): MoeFacts(22.1, 0.626, 1, 56.4),
    ("blackwell", "trtllm", "deepgemm", "fp8_block"): MoeFacts(28.1, 0.681, 0.646, 27.2),
    ("blackwell", "trtllm", "min_latency", "nvfp4"): MoeFacts(23.3, 0.908, 0.35, 34.9),
    ("blackwell", "trtllm", "nongated", "bf16"): MoeFacts(41.4, 0.885, 0.652, 22.6),
    ("blackwell", "trtllm", "nongated", "fp8"): MoeFacts(59.7, 0.932, 0.548, 24.7),
    ("blackwell", "trtllm", "nongated", "nvfp4"): MoeFacts(68.5, 0.804, 0.257, 40.9),
}

SPARSE: dict[tuple[str, str], SparseFacts] = {
    ("hopper", "vllm"): SparseFacts(16.2, 55.2, 0.424, 0.308, 65.9, 0.598),
    ("hopper", "sglang"): SparseFacts(16.2, 0, 0.424, 0.308, 65.9, 0.598),
    ("hopper", "trtllm"): SparseFacts(16.2, 167, 0.424, 0.308, 65.9, 0.598),
    ("blackwell", "vllm"): SparseFacts(16.1, 99.3, 0.361, 0.178, 38.7, 0.255),
    ("blackwell", "sglang"): SparseFacts(16.1, 0, 0.361, 0.178, 38.7, 0.255),
    ("blackwell", "trtllm"): SparseFacts(16.1, 22.2, 0.361, 0.178, 38.7, 0.255),
}

LINEAR: dict[tuple[str, str], LinearFacts] = {
    ("hopper", "vllm"): LinearFacts(3.5, 0.891, 12.5, 0.188),
    ("hopper", "sglang"): LinearFacts(3.36, 0.898, 29.4, 0.0369),
    ("hopper", "trtllm"): LinearFacts(2.94, 1, 20.9, 0.059),
    ("blackwell", "vllm"): LinearFacts(3.9, 0.846, 21.9, 0.11),
    ("blackwell", "sglang"): LinearFacts(3.9, 0.842, 34.3, 0.0286),
    ("blackwell", "trtllm"): LinearFacts(3.83, 1, 24.5, 0.0338),
}
