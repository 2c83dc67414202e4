"""The launch sequence: which kernels an iteration launches, in which order, phase and layer.

An iteration is one of a few templates; a template is a set of equally long arrays, one entry per launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

PHASES = ("setup", "forward", "backward", "optimizer", "evaluation")
NO_LAYER = -1

SETUP = (*("initialise@0",) * 5, *("initialise@1",) * 2, "arange@0", *("broadcast@0",) * 3)
EMBED = ("embedding@0", "dropout@0", "copy@1")
FORWARD_LAYER = (
    *("all_gather@0", "copy@0", "layer_norm@0", "gemm_projection@0", "concatenate@0", "rotary@0", "rotary@1"),
    *("flash_fwd@0", "gemm_projection@1", "dropout@0", "add@0", "power@0", "mean@0", "reciprocal_root@0"),
    *("multiply@0", "gemm_small@0", "gemm_mlp@0", "silu@0", "multiply@1", "gemm_mlp@1", "add@0", "copy@1"),
)
HEAD = ("layer_norm@1", "gemm_mlp@2", "cast@1", "softmax@0", "loss@0", "fill@0", "softmax_backward@0")
BACKWARD_LAYER = (
    *("all_gather@1", "copy@2", "gemm_dgrad@3", "gemm_wgrad@3", "multiply@1", "silu_backward@0", "cast@1"),
    *("gemm_dgrad@2", "gemm_wgrad@2", "sum@1", "gemm_small@1", "split_k_reduce@0", "layer_norm_backward@0"),
    *(
        "layer_norm_weights@0",
        "add@0",
        "reduce_scatter@0",
        "dropout_backward@0",
        "gemm_dgrad@1",
        "gemm_wgrad@1",
    ),
    *("split_k_reduce@0", "flash_bwd_dot@0", "flash_bwd@0", "flash_bwd_convert@0", "rotary@0", "rotary@1"),
    *(
        "concatenate@0",
        "gemm_dgrad@0",
        "gemm_wgrad@0",
        "sum@0",
        "layer_norm_backward@0",
        "layer_norm_weights@0",
    ),
    *("mean@1", "cast@0", "add@0", "copy@3", "reduce_scatter@1"),
)
EMBED_BACKWARD = ("fill@1", "embedding_backward@0", "cast@0", "reduce_scatter@0")
OPTIMIZER_HEAD = ("norm@0", "mean@0", "all_reduce@0", "reciprocal_root@0")
OPTIMIZER_LAYER = ("clip@0", "adam@0", "adam@1", "copy@0")
EVALUATION = (*("top_k@0", "arg_max@0") * 2, "mean@1", "all_reduce@0")


@dataclass(frozen=True)
class Template:
    """One kind of iteration.

    `config_id`, `phase` (index into PHASES) and `layer` (NO_LAYER outside them) hold one entry per launch.
    """

    config_id: Ints
    phase: Ints
    layer: Ints
    is_communication: npt.NDArray[np.bool_]
    is_new: npt.NDArray[np.bool_]
    early: "Streams" = field(init=False)
    late: "Streams" = field(init=False)

    def __post_init__(self) -> None:
        # What follows the gradients waits for their reduction; everything before runs ahead of the network.
        is_late = self.phase >= PHASES.index("optimizer")
        object.__setattr__(self, "early", Streams.of(self.is_communication, np.flatnonzero(~is_late)))
        object.__setattr__(self, "late", Streams.of(self.is_communication, np.flatnonzero(is_late)))

    def __len__(self) -> int:
        return len(self.config_id)


@dataclass(frozen=True)
class Streams:
    """Positions of a template's launches by stream.

    `after` gives, for each communication launch, how many of `computation` precede it.
    """

    computation: Ints
    communication: Ints
    after: Ints

    @staticmethod
    def of(is_communication: npt.NDArray[np.bool_], positions: Ints) -> "Streams":
        """Split positions (ascending) into the two streams."""
        communication = positions[is_communication[positions]]
        computation = positions[~is_communication[positions]]
        return Streams(
            computation, communication, np.searchsorted(computation, communication).astype(np.int64)
        )


@dataclass(frozen=True)
class ConfigIds:
    """Where the configurations of each kernel stand in the flat table of all configurations."""

    first_by_key: dict[str, int]
    is_communication: npt.NDArray[np.bool_]
    new_keys: tuple[str, ...] = ()

    def resolve(self, launch: str) -> int:
        """Turn `key@config_index` into the flat configuration id."""
        key, _, config_index = launch.partition("@")
        return self.first_by_key[key] + int(config_index)


def build_template(ids: ConfigIds, layers: int, *, is_first: bool, is_evaluated: bool) -> Template:
    """Lay out one iteration; new kernels run once per layer, at the end of its forward pass."""
    new = tuple(f"{key}@0" for key in ids.new_keys)
    sections: list[tuple[str, int, Sequence[str]]] = []
    if is_first:
        sections.append(("setup", NO_LAYER, SETUP))
    sections.append(("forward", NO_LAYER, EMBED))
    sections += [("forward", layer, FORWARD_LAYER + new) for layer in range(layers)]
    sections.append(("forward", NO_LAYER, HEAD))
    sections += [("backward", layer, BACKWARD_LAYER) for layer in reversed(range(layers))]
    sections += [("backward", NO_LAYER, EMBED_BACKWARD), ("optimizer", NO_LAYER, OPTIMIZER_HEAD)]
    sections += [("optimizer", layer, OPTIMIZER_LAYER) for layer in range(layers)]
    if is_evaluated:
        sections.append(("evaluation", NO_LAYER, EVALUATION))

    sizes = [len(launches) for _, _, launches in sections]
    config_id = np.array(
        [ids.resolve(launch) for _, _, launches in sections for launch in launches], dtype=np.int64
    )
    is_new = np.isin(config_id, [ids.resolve(launch) for launch in new])
    phase = np.repeat([PHASES.index(name) for name, _, _ in sections], sizes).astype(np.int64)
    layer = np.repeat([number for _, number, _ in sections], sizes).astype(np.int64)
    return Template(config_id, phase, layer, ids.is_communication[config_id], is_new)
