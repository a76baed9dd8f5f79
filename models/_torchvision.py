"""Parameter names of torchvision and timm, derived by rules from graphkit's names, and the names of their networks."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphkit.errors import InputError, MissingDependency, UsageError, did_you_mean
from graphkit.model import Model
from graphkit.models._registry import build
from graphkit.signatures import typed

# graphkit's names are a layer and one of these, joined by "_". torchvision and timm join them by ".".
_KINDS = re.compile(r"(.+)_(weight|bias|running_mean|running_var)")

# Rules: a pattern of graphkit's whole layer name, and the layer's name in torchvision or timm. The first match is used.
_Rules = Sequence[tuple[str, str]]

_SAME_RESNET: _Rules = (
    (r"(layer\d)/(\d+)/downsample_bn", r"\1.\2.downsample.1"),
    (r"(layer\d)/(\d+)/downsample", r"\1.\2.downsample.0"),
    (r"(layer\d)/(\d+)/(\w+)", r"\1.\2.\3"),
    (r"conv1|bn1|fc", r"\g<0>"),
)
_SAME_DENSENET: _Rules = (
    (r"conv1", "features.conv0"),
    (r"bn1", "features.norm0"),
    (r"block(\d+)/layer(\d+)/bn(\d)", r"features.denseblock\1.denselayer\2.norm\3"),
    (r"block(\d+)/layer(\d+)/conv(\d)", r"features.denseblock\1.denselayer\2.conv\3"),
    (r"transition(\d)/bn", r"features.transition\1.norm"),
    (r"transition(\d)/conv", r"features.transition\1.conv"),
    (r"bn2|bn5|bn", "features.norm5"),
    (r"fc", "classifier"),
)
_TORCHVISION: dict[str, _Rules] = {
    "alexnet": (
        *((f"conv{i}", f"features.{place}") for i, place in enumerate((0, 3, 6, 8, 10), 1)),
        *((f"fc{i}", f"classifier.{place}") for i, place in enumerate((1, 4, 6), 1)),
    ),
    "densenet": _SAME_DENSENET,
    "googlenet": (
        (r"conv1", "conv1.conv"), (r"conv1_bn", "conv1.bn"),
        (r"conv2_reduce", "conv2.conv"), (r"conv2_reduce_bn", "conv2.bn"),
        (r"conv2", "conv3.conv"), (r"conv2_bn", "conv3.bn"),
        *(
            (rf"(inception\w+)/{part}{norm}", rf"\1.{branch}.{layer}")
            for part, branch in (
                ("1x1", "branch1"), ("3x3_reduce", "branch2.0"), ("3x3", "branch2.1"), ("5x5_reduce", "branch3.0"),
                ("5x5", "branch3.1"), ("project", "branch4.1"),
            )
            for norm, layer in (("", "conv"), ("_bn", "bn"))
        ),
        (r"fc", "fc"),
    ),
    "mobilenetv2": (
        (r"conv1", "features.0.0"), (r"bn1", "features.0.1"), (r"conv2", "features.18.0"), (r"bn2", "features.18.1"),
        # The first block has no expansion, so its other layers come one place earlier.
        (r"block1/depthwise", "features.1.conv.0.0"), (r"block1/depthwise_bn", "features.1.conv.0.1"),
        (r"block1/project", "features.1.conv.1"), (r"block1/project_bn", "features.1.conv.2"),
        (r"block(\d+)/expand", r"features.\1.conv.0.0"), (r"block(\d+)/expand_bn", r"features.\1.conv.0.1"),
        (r"block(\d+)/depthwise", r"features.\1.conv.1.0"), (r"block(\d+)/depthwise_bn", r"features.\1.conv.1.1"),
        (r"block(\d+)/project", r"features.\1.conv.2"), (r"block(\d+)/project_bn", r"features.\1.conv.3"),
        (r"fc", "classifier.1"),
    ),
    "resnet": _SAME_RESNET,
    "vit": (
        (r"patch", "conv_proj"), (r"class_token", "class_token"), (r"position", "encoder.pos_embedding"),
        (r"block(\d+)/norm(\d)", r"encoder.layers.encoder_layer_\1.ln_\2"),
        (r"block(\d+)/qkv", r"encoder.layers.encoder_layer_\1.self_attention.in_proj"),
        (r"block(\d+)/project", r"encoder.layers.encoder_layer_\1.self_attention.out_proj"),
        (r"block(\d+)/fc1", r"encoder.layers.encoder_layer_\1.mlp.0"),
        (r"block(\d+)/fc2", r"encoder.layers.encoder_layer_\1.mlp.3"),
        (r"norm", "encoder.ln"), (r"fc", "heads.head"),
    ),
}  # fmt: skip
_TIMM: dict[str, _Rules] = {
    "densenet": _SAME_DENSENET,
    "resnet": _SAME_RESNET,
    "vit": (
        (r"patch", "patch_embed.proj"), (r"class_token", "cls_token"), (r"position", "pos_embed"),
        (r"block(\d+)/norm(\d)", r"blocks.\1.norm\2"),
        (r"block(\d+)/qkv", r"blocks.\1.attn.qkv"), (r"block(\d+)/project", r"blocks.\1.attn.proj"),
        (r"block(\d+)/fc(\d)", r"blocks.\1.mlp.fc\2"),
        (r"norm", "norm"), (r"fc", "head"),
    ),
}  # fmt: skip


def _vgg(layers: Sequence[str]) -> dict[str, str]:
    """Return torchvision's names of VGG's layers: numbers in a sequence that counts ReLU and pooling, too."""
    found, place, stage = {}, 0, "1"
    for layer in layers:
        if layer.startswith("fc"):
            found[layer] = f"classifier.{(int(layer[2:]) - 1) * 3}"
            continue
        own = re.sub(r"\D", "", layer.partition("_")[0])
        if layer.startswith("conv") and found:
            place += 2 if own != stage else 1  # the ReLU before it, and the pooling if a stage begins
        stage = own
        found[layer] = f"features.{place}"
        place += 1
    return found


def _mobilenetv3(layers: Sequence[str]) -> dict[str, str]:
    """Return torchvision's names of MobileNetV3's layers. Only the existing parts of a block are numbered."""
    found: dict[str, str] = {}
    parts: dict[str, list[str]] = {}
    blocks = 0
    for layer in layers:
        block, _, part = layer.rpartition("/")
        norm = int(part.endswith("_bn"))
        part = part.removesuffix("_bn")
        if block:
            blocks = int(block.removeprefix("block"))
            seen = parts.setdefault(block, [])
            shared = {"excite": "squeeze"}.get(part, part)
            if shared not in seen:
                seen.append(shared)
            inner = {"squeeze": "fc1", "excite": "fc2"}.get(part, str(norm))
            found[layer] = f"features.{blocks}.block.{seen.index(shared)}.{inner}"
        elif layer[:-1] == "fc":
            found[layer] = {"fc1": "classifier.0", "fc2": "classifier.3"}[layer]
        else:
            found[layer] = f"features.{0 if layer.endswith('1') else blocks + 1}.{int(layer.startswith('bn'))}"
    return found


_COUNTED: dict[str, Callable[[Sequence[str]], dict[str, str]]] = {"vgg": _vgg, "mobilenetv3": _mobilenetv3}
_SOURCES: dict[str, dict[str, _Rules]] = {"torchvision": _TORCHVISION, "timm": _TIMM}

# Names of the parts of a torchvision network that are used only in training.
_TRAINING_ONLY = re.compile(r"aux\d\.")

# Names of networks in torchvision or timm, with the options of `build`.
_RESNETS = {f"resnet{layers}": ("resnet", {"layers": layers}) for layers in (18, 34, 50, 101, 152)}
_DENSENETS = {f"densenet{layers}": ("densenet", {"layers": layers}) for layers in (121, 161, 169, 201)}
NETWORKS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "torchvision": {
        "alexnet": ("alexnet", {}),
        **_DENSENETS,
        "googlenet": ("googlenet", {}),
        "mobilenet_v2": ("mobilenetv2", {}),
        "mobilenet_v3_large": ("mobilenetv3", {"size": "large"}),
        "mobilenet_v3_small": ("mobilenetv3", {"size": "small"}),
        **_RESNETS,
        **{f"vgg{n}": ("vgg", {"layers": n}) for n in (11, 13, 16, 19)},
        **{f"vgg{n}_bn": ("vgg", {"layers": n, "batch_norm": True}) for n in (11, 13, 16, 19)},
        **{
            f"vit_{size[0]}_{patch}": ("vit", {"size": size, "patch": patch})
            for size in ("base", "large")
            for patch in (16, 32)
        },
    },
    "timm": {
        **_DENSENETS,
        **_RESNETS,
        **{
            f"vit_{size}_patch{patch}_224": ("vit", {"size": size, "patch": patch})
            for size in ("tiny", "small", "base", "large")
            for patch in (16, 32)
            if (size, patch) != ("tiny", 32)
        },
        **{f"deit_{size}_patch16_224": ("vit", {"size": size, "patch": 16}) for size in ("tiny", "small", "base")},
    },
}


@typed("gk.models.torch_names")
def torch_names(net: Model, source: str = "torchvision") -> dict[str, str]:
    """Return the names that torchvision or timm uses for the parameters and states of a network of the zoo.

    `net.load_state_dict(weights, names=gk.models.torch_names(net))` loads weights of torchvision's network, and
    `net.state_dict(names=...)` returns those of `net` under torchvision's names.

    Args:
        net: A network that `build` made, with the options of the network there.
        source: "torchvision" or "timm".

    Returns:
        The name there by the name here.

    Raises:
        UsageError: There is no such source, or it has no network like `net`.
    """
    rules = _known(_SOURCES, source, "source")
    counted = _COUNTED if source == "torchvision" else {}
    family = next((name for name in (*counted, *rules) if net.name.startswith(name)), None)
    split = {name: _KINDS.fullmatch(name) for name in net.params}
    layers = list(dict.fromkeys(name if found is None else found[1] for name, found in split.items()))
    table: dict[str, str] = {}
    if family is not None:
        table = counted[family](layers) if family in counted else _translated(layers, rules[family])
    if missing := [layer for layer in layers if layer not in table]:
        raise UsageError(
            f"{source} has no network like {net.name!r}, with a layer {missing[0]!r}; it has "
            f"{', '.join(dict.fromkeys((*counted, *rules)))}"
        )
    return {name: table[name] if found is None else _joined(table[found[1]], found[2]) for name, found in split.items()}


def _joined(layer: str, kind: str) -> str:
    # The projections of attention are parameters of one module in PyTorch.
    return f"{layer}{'_' if layer.endswith('in_proj') else '.'}{kind}"


def _translated(layers: Sequence[str], rules: _Rules) -> dict[str, str]:
    found = {}
    for layer in layers:
        for pattern, name in rules:
            if match := re.fullmatch(pattern, layer):
                found[layer] = match.expand(name)
                break
    return found


@typed("gk.models.pretrained")
def pretrained(name: str, weights: Any = "DEFAULT", source: str = "torchvision", **options: Any) -> Model:
    """Build the network of the zoo that equals a network of torchvision or timm, with its weights.

    Args:
        name: Name of the network there, such as "resnet18", "mobilenet_v2", "vit_b_16", or for timm
            "vit_base_patch16_224".
        weights: A name of published weights, such as "IMAGENET1K_V1" (for timm a tag, such as "augreg_in21k_ft_in1k"),
            or "DEFAULT": torchvision or timm downloads them and must be installed. Or a state_dict, or the path of a
            file (see `Model.load_state_dict`).
        source: "torchvision" or "timm".
        options: More options of `build`, such as `image=(3, 96, 96)` or `classes=10`.

    Returns:
        The network. Prepare images as the weights were trained: their documentation has the size, mean and deviation.

    Raises:
        UsageError: The source or network is unknown, or there are no such weights.
        InputError: The weights do not fit.
        MissingDependency: torchvision or timm is needed, and not installed.
    """
    network, own = _known(_known(NETWORKS, source, "source"), name, f"network of {source}")
    net = build(network, **{**own, **options})
    if isinstance(weights, str) and not re.search(r"[./\\]", weights):
        weights = (_timm_weights if source == "timm" else _torchvision_weights)(name, weights)
    elif weights is None:
        raise InputError(
            "pretrained: weights must be a name, a state_dict or a path, not None; for a network without trained "
            f"weights, write gk.models.build({network!r}, ...)"
        )
    if isinstance(weights, Mapping):
        weights = {key: array for key, array in weights.items() if not _TRAINING_ONLY.match(str(key))}
    net.load_state_dict(weights, names=torch_names(net, source))
    return net


def _known(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise UsageError(f"no {what} {name!r}{did_you_mean(name, table, most=len(table))}")
    return table[name]


def _torchvision_weights(name: str, weights: str) -> Mapping[str, Any]:
    _require("torchvision", name)
    models = importlib.import_module("torchvision").models
    known = models.get_model_weights(name)
    if weights != "DEFAULT" and weights not in known.__members__:
        raise UsageError(f"{name} has no weights {weights!r}{did_you_mean(weights, [*known.__members__, 'DEFAULT'])}")
    found: Mapping[str, Any] = getattr(known, weights).get_state_dict(progress=False, check_hash=True)
    return found


def _timm_weights(name: str, weights: str) -> Mapping[str, Any]:
    _require("timm", name)
    timm = importlib.import_module("timm")
    known = [each.partition(".")[2] for each in timm.list_pretrained(f"{name}.*")]
    if weights not in (*known, "DEFAULT"):
        raise UsageError(f"{name} has no weights {weights!r}{did_you_mean(weights, [*known, 'DEFAULT'])}")
    tag = "" if weights == "DEFAULT" else f".{weights}"
    found: Mapping[str, Any] = timm.create_model(f"{name}{tag}", pretrained=True).state_dict()
    return found


def _require(module: str, name: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingDependency(
            f"pretrained: the package {module}, which downloads the weights of {name}, is not installed. Install it, "
            "or pass the path of a file with the weights"
        )
