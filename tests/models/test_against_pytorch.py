"""Networks with PyTorch's weights give PyTorch's outputs, losses, gradients and running statistics.

Left out where torch is not installed, and the comparison with torchvision's own modules where torchvision is not.
"""

from __future__ import annotations

import numpy as np
import pytest
from zoo_training import SMALL, WHOLE, feeds_of, label, relative_errors, run, training_graph

import graphkit as gk
from graphkit.models._torchvision import NETWORKS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
torch.set_num_threads(2)
torch_zoo = pytest.importorskip("torch_zoo", reason="bench/ is not part of a source distribution")
pytestmark = pytest.mark.pytorch

BLOCK = {"vocab": 50, "width": 32, "heads": 4, "layers": 2, "length": 12}


def adopt(net, state):
    """Take over arrays in order: both sides list parameters and running statistics layer by layer."""
    arrays = [v.detach().numpy() for k, v in state.items() if not k.endswith("num_batches_tracked")]
    names = list(net.params)
    assert [net.params[n].shape for n in names] == [a.shape for a in arrays]
    for name, array in zip(names, arrays, strict=True):
        net.params[name] = array


def assert_close(ours, theirs):
    theirs = theirs.detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def shuffled_statistics(module):
    """Running statistics that are not 0 and 1, so that they matter."""
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)


def randomise(module, seed=0):
    """Set biases, scales and running statistics to numbers that affect results. Gradients do not vanish or explode."""
    torch.manual_seed(seed)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d | torch.nn.LayerNorm):
            part.weight.data.uniform_(0.5, 1.5)
        if getattr(part, "bias", None) is not None:
            part.bias.data.normal_(0, 0.1)
    shuffled_statistics(module)


def observe_batches(module):
    """For every BatchNorm2d the number of elements that its last statistics were taken over, in order."""
    sizes = {}
    norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for part in norms:
        part.register_forward_pre_hook(lambda p, x: sizes.update({p: x[0].numel() // x[0].shape[1]}))
    return norms, sizes


def multibox_loss(logits, offsets, classes, boxes):
    """Equation 1 of the paper, image by image."""
    loss = 0
    for scores, places, kinds, box in zip(logits, offsets, classes, boxes, strict=True):
        matched = kinds > 0
        entropy = torch.nn.functional.cross_entropy(scores, kinds, reduction="none")
        background = entropy[~matched].sort(descending=True).values[: 3 * matched.sum()]
        smooth = torch.nn.functional.smooth_l1_loss(places[matched], box[matched], reduction="sum")
        loss = loss + entropy[matched].sum() + background.sum() + smooth
    return loss / (classes > 0).sum()


def torch_loss(name, output, target, *others):
    functional = torch.nn.functional
    match name:
        case "dqn":
            return functional.huber_loss(output, target)
        case "gan" if output.ndim == 2:
            return functional.binary_cross_entropy_with_logits(output, target)
        case "gan" | "matrix_factorization":
            return functional.mse_loss(output, target)
        case "ssd":
            return multibox_loss(*output, target, *others)
        case "dlrm" | "ncf" | "unet":
            return functional.binary_cross_entropy_with_logits(output, target)
        case "vae":
            logits, mean, log_variance = output
            likelihood = -functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
            prior, posterior = (
                torch.distributions.Normal(0, 1),
                torch.distributions.Normal(mean, (log_variance / 2).exp()),
            )
            return (torch.distributions.kl_divergence(posterior, prior).sum() - likelihood) / len(mean)
        case "wide_and_deep" if output.shape[-1] == 1:
            return functional.binary_cross_entropy_with_logits(output, target)
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


@pytest.mark.parametrize(("name", "options"), SMALL, ids=label)
def test_loss_gradients_and_statistics_in_training(name, options):
    """In float64, where rounding decides little."""
    torch.manual_seed(0)
    net, module = gk.models.build(name, **options), torch_zoo.build(name, **options)
    randomise(module)
    adopt(net, module.state_dict())
    feeds = feeds_of(name, net, batch=3)
    ours = run(training_graph(name, net, wide=True), net.params, feeds)

    module.double().train()
    before = {n: b.clone() for n, b in module.named_buffers()}
    norms, sizes = observe_batches(module)
    tensors = {n: torch.tensor(a) for n, a in feeds.items()}
    tensors = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    targets = [tensors[n] for n in tensors if n not in net.inputs]
    output = module(*(tensors[n] for n in net.inputs))
    loss = torch_loss(name, output, *targets)
    loss.backward()
    theirs = {"loss": loss, **dict(zip(net.outputs, output if isinstance(output, tuple) else [output], strict=True))}
    theirs |= {f"{n}_grad": p.grad for n, p in zip(net.trainable, module.parameters(), strict=True)}
    states = [n for n in net.params if n not in net.trainable]
    named = {p: n for n, p in module.named_modules()}
    for part, (mean, variance) in zip(norms, zip(states[::2], states[1::2], strict=True), strict=True):
        theirs[f"{mean}_updated"] = part.running_mean
        # ONNX takes the batch's own variance for the running one, PyTorch the unbiased estimate.
        old = (1 - part.momentum) * before[f"{named[part]}.running_var"]
        theirs[f"{variance}_updated"] = old + (part.running_var - old) * (1 - 1 / sizes[part])
    errors = relative_errors(ours, {n: t.detach().numpy() for n, t in theirs.items()})
    # Normalising batches of 3 samples in 50 layers turns rounding errors into errors of 1e-8.
    assert {n: e for n, e in errors.items() if not e <= 1e-7} == {}


@pytest.mark.parametrize(
    ("name", "options", "function", "arguments"),
    [
        ("alexnet", {"classes": 7}, "alexnet", {"num_classes": 7}),
        ("vgg", {"layers": 11, "classes": 7}, "vgg11", {"num_classes": 7}),
        ("vgg", {"layers": 11, "classes": 7, "batch_norm": True}, "vgg11_bn", {"num_classes": 7}),
        ("densenet", {"classes": 7}, "densenet121", {"num_classes": 7}),
        ("densenet", {"layers": 161, "classes": 7}, "densenet161", {"num_classes": 7}),
        (
            "googlenet", {"classes": 7}, "googlenet",
            {"num_classes": 7, "aux_logits": False, "init_weights": False, "transform_input": False},
        ),
        ("mobilenetv2", {"classes": 7}, "mobilenet_v2", {"num_classes": 7}),
        ("mobilenetv3", {"classes": 7}, "mobilenet_v3_large", {"num_classes": 7}),
        ("mobilenetv3", {"size": "small", "classes": 7}, "mobilenet_v3_small", {"num_classes": 7}),
        ("resnet", {"layers": 18, "classes": 7}, "resnet18", {"num_classes": 7}),
        ("resnet", {"layers": 50, "classes": 7}, "resnet50", {"num_classes": 7}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_image_networks_are_those_of_torchvision(name, options, function, arguments, unset_parameters, torchvision):
    torch.manual_seed(0)
    module = getattr(torchvision.models, function)(weights=None, **arguments).eval()
    shuffled_statistics(module)
    # AlexNet and VGG are alike at one size only: torchvision pools to the size of its first linear layer. An odd size
    # tells apart how strides and poolings round.
    for size in [224] if name in ("alexnet", "vgg") else [96, 81]:
        net = gk.models.build(name, **options, image=(3, size, size))
        adopt(net, module.state_dict())
        x = torch.randn(1, 3, size, size)
        with torch.no_grad():
            assert_close(net.compile(threads=2).run({"x": x.numpy()})["logits"], module(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("size", "width", "heads", "layers"), [("tiny", 192, 3, 2), ("base", 768, 12, 1)])
def test_vision_transformers_are_those_of_torchvision(size, width, heads, layers, unset_parameters, torchvision):
    torch.manual_seed(0)
    module = torchvision.models.VisionTransformer(32, 8, layers, heads, width, 4 * width, num_classes=7).eval()
    for tensor in module.parameters():
        tensor.data.normal_(0, 0.05)
    net = gk.models.build("vit", size=size, patch=8, image=(3, 32, 32), classes=7, layers=layers)
    state = module.state_dict()
    adopt(net, {k: state[k] for k in ("conv_proj.weight", "conv_proj.bias")} | state)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert_close(net.compile(threads=2).run({"x": x.numpy()})["logits"], module(x))


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), WHOLE, ids=label)
def test_outputs_at_the_sizes_of_the_papers(name, options, unset_parameters):
    torch.manual_seed(0)
    net, module = gk.models.build(name, **options), torch_zoo.build(name, **defaults(name, options)).eval()
    randomise(module)
    adopt(net, module.state_dict())
    feeds = {n: a for n, a in feeds_of(name, net, batch=1).items() if n in net.inputs}
    with torch.no_grad():
        theirs = module(*(torch.tensor(a) for a in feeds.values()))
    ours = net.compile(threads=2).run(feeds)
    for array, tensor in zip(ours.values(), theirs if isinstance(theirs, tuple) else [theirs], strict=True):
        assert_close(array, tensor)


def defaults(name, options):
    """All options of a network, for modules that have no defaults."""
    return {option.name: option.default for option in gk.models.options(name)} | options


def encoder_layer(prefix, net, *, epsilon, norm_first, activation):
    """PyTorch's own transformer layer with the parameters of block `prefix`."""
    width = net.params[f"{prefix}/qkv_weight"].shape[1]
    layer = torch.nn.TransformerEncoderLayer(
        width, BLOCK["heads"], 4 * width, activation=activation, layer_norm_eps=epsilon, batch_first=True,
        norm_first=norm_first,
    ).eval()  # fmt: skip
    names = {
        "self_attn.in_proj": "qkv", "self_attn.out_proj": "project", "linear1": "fc1", "linear2": "fc2",
        "norm1": "norm1", "norm2": "norm2",
    }  # fmt: skip
    state = {}
    for theirs, ours in names.items():
        separator = "_" if theirs.endswith("in_proj") else "."
        for part in ("weight", "bias"):
            state[f"{theirs}{separator}{part}"] = torch.tensor(net.params[f"{prefix}/{ours}_{part}"])
    layer.load_state_dict(state)
    return layer


def randomised(net):
    rng = np.random.default_rng(0)
    for n in net.params:
        net.params[n] = (net.params[n] + 0.2 * rng.standard_normal(net.params[n].shape)).astype(np.float32)
    return {n: torch.tensor(net.params[n]) for n in net.params}


def test_the_language_model_is_a_stack_of_pre_norm_layers():
    net = gk.models.build("transformer_lm", **BLOCK)
    p = randomised(net)
    x = torch.randint(0, BLOCK["vocab"], (3, 9))
    h = p["token_weight"][x] + p["position_weight"][:9]
    mask = torch.nn.Transformer.generate_square_subsequent_mask(9)
    for i in range(BLOCK["layers"]):
        gelu = torch.nn.GELU(approximate="tanh")
        layer = encoder_layer(f"block{i}", net, epsilon=1e-5, norm_first=True, activation=gelu)
        h = layer(h, src_mask=mask)
    h = torch.nn.functional.layer_norm(h, (BLOCK["width"],), p["norm_weight"], p["norm_bias"])
    assert_close(net.compile(threads=1).run({"x": x.numpy()})["logits"], h @ p["token_weight"].T)


def test_bert_is_a_stack_of_post_norm_layers():
    net = gk.models.build("bert", **BLOCK, classes=5)
    p = randomised(net)
    x, segments = torch.randint(0, BLOCK["vocab"], (3, 9)), torch.randint(0, 2, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    h = p["token_weight"][x] + p["segment_weight"][segments] + p["position_weight"][:9]
    h = torch.nn.functional.layer_norm(h, (BLOCK["width"],), p["norm_weight"], p["norm_bias"], 1e-12)
    for i in range(BLOCK["layers"]):
        layer = encoder_layer(f"block{i}", net, epsilon=1e-12, norm_first=False, activation="gelu")
        with torch.enable_grad():  # inference would take a path of its own for padded rows
            h = layer(h, src_key_padding_mask=mask == 0)
    pooled = torch.tanh(h[:, 0] @ p["pool_weight"].T + p["pool_bias"])
    feeds = {"x": x.numpy(), "segments": segments.numpy(), "mask": mask.numpy()}
    assert_close(net.compile(threads=1).run(feeds)["logits"], pooled @ p["fc_weight"].T + p["fc_bias"])


# --- text -------------------------------------------------------------------------------------------


def gates(array, order):
    """Rows of PyTorch's gates in the order of ONNX: input, output, forget, new from 0, 3, 1, 2; update first."""
    return np.concatenate([np.split(array, len(order))[i] for i in order])


def recurrent_weights(module, net, layers, prefix):
    """Give a torch.nn.LSTM or GRU the parameters of ours."""
    order = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}[type(module).__name__]
    state = {}
    for i in range(layers):
        weight, recurrent, bias = (net.params[f"{prefix}{i}_{part}"][0] for part in ("weight", "recurrent", "bias"))
        state[f"weight_ih_l{i}"], state[f"weight_hh_l{i}"] = gates(weight, order), gates(recurrent, order)
        state[f"bias_ih_l{i}"], state[f"bias_hh_l{i}"] = (gates(half, order) for half in np.split(bias, 2))
    module.load_state_dict({k: torch.tensor(v) for k, v in state.items()})
    return module


def gradients(net, feeds, target):
    graph = gk.grad(gk.losses.with_loss(net, "softmax_cross_entropy"), of="loss")
    return graph.compile(threads=1).run({**feeds, "target": target})


def cross_entropy(logits, target):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch.tensor(target).reshape(-1))


def test_the_recurrent_language_model_is_embedding_lstm_linear():
    net = gk.models.build("lstm_lm", vocab=30, hidden=8, layers=2, embedding=5)
    p = randomised(net)
    lstm = recurrent_weights(torch.nn.LSTM(5, 8, 2), net, 2, "lstm")
    count = 30 * 5 + sum(v.numel() for v in lstm.parameters()) + 30 * 8 + 30
    assert net.num_parameters == count
    x = torch.randint(0, 30, (7, 3))
    tables = {n: p[n].clone().requires_grad_() for n in ("token_weight", "fc_weight", "fc_bias")}
    logits = lstm(tables["token_weight"][x])[0] @ tables["fc_weight"].T + tables["fc_bias"]
    assert_close(net.compile(threads=1).run({"x": x.numpy()})["logits"], logits)
    target = np.random.default_rng(0).integers(0, 30, (7, 3))
    cross_entropy(logits, target).backward()
    found = gradients(net, {"x": x.numpy()}, target)
    for n, tensor in tables.items():
        assert_close(found[f"{n}_grad"], tensor.grad)
    ours = found["lstm1_recurrent_grad"][0]
    assert_close(gates(ours, (0, 2, 3, 1)), lstm.weight_hh_l1.grad)


def test_the_text_classifier_is_a_packed_gru():
    net = gk.models.build("text_classifier", vocab=30, width=5, hidden=6, classes=4, pooling="last", dropout=0.0)
    p = randomised(net)
    gru = torch.nn.GRU(5, 6, bidirectional=True)
    state = {}
    for direction, suffix in (("forward", ""), ("reverse", "_reverse")):
        for theirs, ours in (("ih", "input"), ("hh", "hidden")):
            state[f"weight_{theirs}_l0{suffix}"] = p[f"{direction}_{ours}_weight"]
            state[f"bias_{theirs}_l0{suffix}"] = p[f"{direction}_{ours}_bias"]
    gru.load_state_dict(state)
    assert net.num_parameters == 30 * 5 + sum(v.numel() for v in gru.parameters()) + 4 * 12 + 4
    x, lengths = torch.randint(0, 30, (3, 7)), np.array([7, 1, 4])
    table = p["token_weight"].clone().requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        table[x], torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )
    _, last = gru(packed)
    logits = torch.cat([last[0], last[1]], dim=1) @ p["fc_weight"].T + p["fc_bias"]
    feeds = {"x": x.numpy(), "lengths": lengths}
    assert_close(net.compile(threads=1).run(feeds)["logits"], logits)
    target = np.array([0, 3, 1])
    cross_entropy(logits, target).backward()
    found = gradients(net, feeds, target)
    assert_close(found["token_weight_grad"], table.grad)
    assert_close(found["forward_hidden_weight_grad"], gru.weight_hh_l0.grad)
    assert_close(found["reverse_input_bias_grad"], gru.bias_ih_l0_reverse.grad)


@pytest.mark.parametrize("attention", ["luong", "bahdanau"])
def test_the_parts_of_seq2seq(attention):
    net = gk.models.build("seq2seq", vocab=20, target_vocab=15, width=5, hidden=6, attention=attention)
    p = randomised(net)
    encoder = recurrent_weights(torch.nn.GRU(5, 6), net, 1, "encoder")
    cell = torch.nn.GRUCell(11, 6)
    cell.load_state_dict({
        f"{part}_{theirs}": p[f"decoder0_{ours}_{part}"]
        for part in ("weight", "bias")
        for theirs, ours in (("ih", "input"), ("hh", "hidden"))
    })  # fmt: skip
    source, lengths, previous = torch.randint(0, 20, (3, 6)), np.array([6, 2, 4]), torch.randint(0, 15, (3, 4))
    table = p["source_weight"].clone().requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        table[source], torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )
    y, last = encoder(packed)
    memory, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=6)
    masked = torch.arange(6)[None] >= torch.tensor(lengths)[:, None]

    def attend(scores):
        return (torch.softmax(scores.masked_fill(masked, -torch.inf), dim=1)[:, None] @ memory)[:, 0]

    h, attentional, features = last[0], torch.zeros(3, 6), []
    for t in range(4):
        x = p["target_weight"][previous[:, t]]
        if attention == "luong":
            h = cell(torch.cat([x, attentional], 1), h)
            scores = (memory @ (h @ p["attend_query_weight"].T)[:, :, None])[:, :, 0]
            attentional = torch.tanh(torch.cat([attend(scores), h], 1) @ p["attend_join_weight"].T)
            features.append(attentional)
        else:
            hidden = torch.tanh(memory @ p["attend_keys_weight"].T + (h @ p["attend_query_weight"].T)[:, None])
            h = cell(torch.cat([x, attend((hidden @ p["attend_score_weight"].T)[:, :, 0])], 1), h)
            features.append(h)
    logits = torch.stack(features, 1) @ p["fc_weight"].T + p["fc_bias"]
    feeds = {"source": source.numpy(), "lengths": lengths, "previous": previous.numpy()}
    assert_close(net.compile(threads=1).run(feeds)["logits"], logits)
    target = np.random.default_rng(0).integers(0, 15, (3, 4))
    cross_entropy(logits, target).backward()
    found = gradients(net, feeds, target)
    assert_close(found["source_weight_grad"], table.grad)
    assert_close(found["decoder0_hidden_weight_grad"], cell.weight_hh.grad)
    assert_close(gates(found["encoder0_recurrent_grad"][0], (1, 0, 2)), encoder.weight_hh_l0.grad)


TORCHVISION = [
    ("alexnet", {}, {"image": (3, 224, 224)}),
    ("densenet121", {}, {}),
    ("densenet161", {}, {}),
    ("googlenet", {"aux_logits": True, "init_weights": False, "transform_input": False}, {}),
    ("mobilenet_v2", {}, {}),
    ("mobilenet_v3_large", {}, {}),
    ("mobilenet_v3_small", {}, {}),
    ("resnet18", {}, {}),
    ("resnet50", {}, {}),
    ("vgg11", {}, {"image": (3, 224, 224)}),
    ("vgg16_bn", {}, {"image": (3, 224, 224)}),
    ("vit_b_32", {"image_size": 96}, {}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "arguments", "options"), TORCHVISION, ids=[name for name, *_ in TORCHVISION])
def test_weights_of_torchvision_load_by_name(name, arguments, options, tmp_path, torchvision):
    torch.manual_seed(0)
    module = getattr(torchvision.models, name)(weights=None, num_classes=7, **arguments).eval()
    randomise(module)
    for tensor in module.parameters():
        if not tensor.any():  # a new vision transformer has zeros
            tensor.data.normal_(0, 0.05)
    state = module.state_dict()
    net = gk.models.pretrained(name, state, classes=7, **{"image": (3, 96, 96), **options})
    x = torch.randn(2, *net.data_inputs[0].tensor.shape[1:])
    with torch.no_grad():
        assert_close(net.compile(threads=2).run({"x": x.numpy()})["logits"], module(x))
    back = {n: torch.from_numpy(a) for n, a in net.state_dict(names=gk.models.torch_names(net)).items()}
    left = [n for n in state if n not in back and not n.startswith("aux")]
    assert all(n.endswith("num_batches_tracked") for n in left)
    assert all(torch.equal(state[n], tensor) for n, tensor in back.items())
    broken = {n.replace("weight", "wait", 1): t for n, t in state.items()}
    with pytest.raises(gk.errors.InputError, match="missing: "):
        net.load_state_dict(broken, names=gk.models.torch_names(net))
    torch.save(state, tmp_path / "weights.pth")
    if name == "resnet18":
        loaded = gk.models.pretrained(name, tmp_path / "weights.pth", classes=7, image=(3, 96, 96))
        np.testing.assert_array_equal(loaded.params["fc_weight"], net.params["fc_weight"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "vit_tiny_patch16_224", "deit_small_patch16_224"])
def test_weights_of_timm_load_by_name(name, timm):
    torch.manual_seed(0)
    module = timm.create_model(name, pretrained=False, num_classes=7).eval()
    randomise(module)
    net = gk.models.pretrained(name, module.state_dict(), "timm", classes=7)
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert_close(net.compile(threads=2).run({"x": x.numpy()})["logits"], module(x))


def test_names_of_timm(timm):
    assert {name for name in NETWORKS["timm"] if not timm.is_model(name)} == set()
    with pytest.raises(gk.errors.UsageError, match="vit_tiny_patch16_224 has no weights 'imagenet'"):
        gk.models.pretrained("vit_tiny_patch16_224", "imagenet", "timm")


def test_files_of_pytorch_are_read_without_running_code(tmp_path):
    net = gk.models.build("mlp", inputs=4, classes=2)
    state = {n: torch.from_numpy(a) + 1 for n, a in net.state_dict().items()}
    state = {n: t.to(torch.bfloat16) for n, t in state.items()}
    torch.save(state, tmp_path / "a.pt")
    net.load_state_dict(tmp_path / "a.pt")
    for name, tensor in state.items():
        np.testing.assert_array_equal(net.params[name], tensor.float().numpy())
    torch.save({"model": torch.nn.Linear(2, 2)}, tmp_path / "b.pt")
    with pytest.raises(gk.errors.InvalidModel, match=r"b\.pt: the file contains a whole module"):
        net.load_state_dict(tmp_path / "b.pt")
    torch.save([1, 2], tmp_path / "c.pt")
    with pytest.raises(gk.errors.InvalidModel, match=r"c\.pt contains \[1, 2\], not a dict"):
        net.load_state_dict(tmp_path / "c.pt")
