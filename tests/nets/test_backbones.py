"""The backbones: sizes of the published architectures, shapes on the way, and how a user brings one."""

import pytest
import torch
from torch import nn

from fedgram import InputError
from fedgram.nets.backbones import (
    BACKBONES,
    ConvBlock,
    MLPBlock,
    PreActivatedBlock,
    PreActivatedResMLP,
    build_residual_cnn,
    build_resnet,
)
from fedgram.nets.model import Model, build_backbone, draw, fingerprint, output_width

FEATURE_LAYER = 512 * 512 + 512
IMAGES = [(1, 36, 60), (3, 64, 64), (3, 40, 40), (1, 64, 64)]
OF_ROWS = [name for name in BACKBONES if "resmlp" in name or "wide" in name]
OF_IMAGES = [name for name in BACKBONES if name not in OF_ROWS]


def on_paper(name, shape):
    """The backbone with the shapes of its parameters only."""
    with torch.device("meta"):
        return build_backbone(name, shape)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def with_features(name, shape):
    """How many parameters the backbone has with its feature layer to 512 features."""
    backbone = on_paper(name, shape)
    with torch.device("meta"):
        return count(backbone) + count(nn.Linear(output_width(backbone, torch.zeros(2, *shape)), 512))


# torchvision's resnet18 and resnet34, less their classifier of 513,000
RESNET18, RESNET34 = 11_689_512 - 513_000, 21_797_672 - 513_000


@pytest.mark.parametrize("channels", [1, 3])
def test_resnets_have_the_published_number_of_parameters(channels):
    stem = 7 * 7 * 64 * (channels - 3)  # published for three channels
    shape = (channels, 64, 64)
    assert count(on_paper("resnet18", shape)) == RESNET18 + stem
    assert count(on_paper("resnet34", shape)) == RESNET34 + stem
    assert with_features("resnet18", shape) == RESNET18 + stem + FEATURE_LAYER
    assert RESNET18 + FEATURE_LAYER == 11_439_168


@pytest.mark.parametrize("channels", [1, 3])
def test_the_residual_cnn_is_resnet_18_with_another_stem(channels):
    expected = RESNET18 - 7 * 7 * 3 * 64 + 3 * 3 * channels * 64
    assert with_features("residual-cnn", (channels, 64, 64)) == expected + FEATURE_LAYER


@pytest.mark.parametrize("inputs", [1, 17])
def test_the_residual_mlp_has_as_many_parameters_as_its_layers(inputs):
    block = 2 * (1024 * 1024 + 1024) + 2  # two linear layers, two slopes
    expected = 1024 * inputs + 1024 + 3 * block + 512 * 1024 + 512
    assert with_features("resmlp", (inputs,)) == expected
    assert expected == pytest.approx(6.84e6, rel=3e-3)
    small = 64 * inputs + 64 + 2 * (2 * (64 * 64 + 64) + 2) + 512 * 64 + 512
    assert with_features("resmlp-small", (inputs,)) == small
    # one slope more, after the input layer
    assert with_features("resmlp-preactivated", (inputs,)) == expected + 1


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_become_vectors(name, shape):
    with torch.device("meta"):
        assert output_width(on_paper(name, shape), torch.zeros(2, *shape)) == (64 if "small" in name else 512)
    if "small" in name:
        with torch.no_grad():
            given = build_backbone(name, shape)(torch.rand(2, *shape))
        assert given.isfinite().all()
        assert (given >= 0).all()  # the last block ends in a ReLU
        assert given.std(dim=0).max() > 0


@pytest.mark.parametrize("name", OF_ROWS)
def test_rows_become_vectors(name):
    widths = {"resmlp": 1024, "resmlp-preactivated": 1024, "resmlp-small": 64}
    widths |= {f"wide-deep-{width}": width + 7 for width in (64, 128, 256)}
    assert output_width(build_backbone(name, (7,)), torch.zeros(3, 7)) == widths[name]


def test_wide_and_deep_networks_show_their_inputs():
    x = torch.randn(5, 7)
    assert torch.equal(build_backbone("wide-deep-64", (7,))(x)[:, 64:], x)


def test_wide_and_deep_networks_see_soft_steps_of_every_input():
    x, seen = torch.randn(5, 7), []
    network = build_backbone("wide-deep-64", (7,))
    network.deep.register_forward_hook(lambda module, inputs, output: seen.extend(inputs))
    network(x)
    steps = [torch.tanh(2 * (x - position)) for position in (-1.5, -0.75, 0, 0.75, 1.5)]
    torch.testing.assert_close(seen, [torch.cat([x, *steps], dim=1)])


def sizes_on_the_way(backbone, shape):
    """Channels, height and width after the stem and after each block."""
    found, hooks = [], []
    for module in (backbone.stem[-1], *backbone.stages):
        hooks.append(module.register_forward_hook(lambda *given: found.append(tuple(given[2].shape[1:]))))
    with torch.no_grad():
        backbone.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return found


def test_sizes_after_each_stage_of_a_resnet():
    found = sizes_on_the_way(build_resnet(1, (2, 2, 2, 2), width=8), (1, 36, 60))
    stages = [(8, 9, 15), (16, 5, 8), (32, 3, 4), (64, 2, 2)]
    assert found == [(8, 9, 15)] + [stage for stage in stages for _ in range(2)]
    assert len(sizes_on_the_way(build_resnet(3, (3, 4, 6, 3), width=8), (3, 40, 40))) == 1 + 16


def test_sizes_after_each_stage_of_the_residual_cnn():
    found = sizes_on_the_way(build_residual_cnn(3, width=8), (3, 40, 40))
    stages = [(8, 40, 40), (16, 20, 20), (32, 10, 10), (64, 5, 5)]
    assert found == [(8, 40, 40)] + [stage for stage in stages for _ in range(2)]


def test_stems():
    convolution, norm, relu, pool = build_resnet(3, (1, 1, 1, 1)).stem
    assert type(convolution).__name__ == "Conv2d"  # the fingerprints of stored runs have the names of layers
    assert (convolution.kernel_size, convolution.stride, convolution.padding) == ((7, 7), (2, 2), (3, 3))
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(relu, nn.ReLU)
    assert (pool.kernel_size, pool.stride, pool.padding) == (3, 2, 1)
    convolution, norm, relu = build_residual_cnn(3).stem
    assert (convolution.kernel_size, convolution.stride, convolution.padding) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(norm, nn.GroupNorm)
    assert isinstance(relu, nn.ReLU)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_norms_are_batch_norm_in_resnets_and_8_groups_in_the_residual_cnn(name):
    modules = list(on_paper(name, (3, 64, 64)).modules())
    convolutions = [each for each in modules if isinstance(each, nn.Conv2d)]
    norms = [each for each in modules if isinstance(each, nn.BatchNorm2d | nn.GroupNorm)]
    assert len(norms) == len(convolutions)
    assert all(each.bias is None for each in convolutions)
    if "resnet" in name:
        assert all(isinstance(each, nn.BatchNorm2d) for each in norms)
    else:
        assert all(isinstance(each, nn.GroupNorm) and each.num_groups == 8 for each in norms)


@pytest.mark.parametrize("name", OF_ROWS)
def test_residual_mlps_have_no_norm(name):
    kinds = {type(each) for each in on_paper(name, (7,)).modules() if not list(each.children())}
    assert kinds == {nn.Linear, nn.PReLU}


def test_a_block_of_the_residual_mlp_is_its_formula():
    block, h = with_slopes(MLPBlock(4), 0.1, -0.3), torch.randn(5, 4)
    inner = prelu(h @ block.inner.weight.T + block.inner.bias, 0.1)
    expected = prelu(h + inner @ block.outer.weight.T + block.outer.bias, -0.3)
    torch.testing.assert_close(block(h), expected)


def test_a_pre_activated_block_is_its_formula():
    block, h = with_slopes(PreActivatedBlock(4), 0.1, -0.3), torch.randn(5, 4)
    inner = prelu(h, 0.1) @ block.inner.weight.T + block.inner.bias
    expected = h + prelu(inner, -0.3) @ block.outer.weight.T + block.outer.bias
    torch.testing.assert_close(block(h), expected)


def test_weights_of_a_pre_activated_mlp_keep_the_variance_of_what_passes_its_activations():
    network = PreActivatedResMLP(1000, width=1024, blocks=1)
    for layer in (each for each in network.modules() if isinstance(each, nn.Linear)):
        # He et al., 2015: variance 2 / ((1 + a^2) inputs) with the slope a = 0.25 of PReLU
        assert layer.weight.var().item() * layer.in_features == pytest.approx(2 / (1 + 0.25**2), rel=0.02)
        assert not layer.bias.any()


def prelu(x, slope):
    return torch.where(x > 0, x, slope * x)


def with_slopes(block, inner, outer):
    with torch.no_grad():
        block.inner_slope.weight.fill_(inner)
        block.outer_slope.weight.fill_(outer)
    return block


@pytest.mark.parametrize(("channels", "out", "stride"), [(8, 8, 1), (8, 16, 2), (8, 16, 1), (8, 8, 2)])
def test_a_convolutional_block_adds_its_shortcut_before_the_last_relu(channels, out, stride):
    block, x = ConvBlock(channels, out, stride, nn.BatchNorm2d).eval(), torch.randn(2, channels, 6, 6)
    assert isinstance(block.shortcut, nn.Identity) == (channels == out and stride == 1)
    with torch.no_grad():
        block.second_norm.weight.zero_()
        torch.testing.assert_close(block(x), torch.relu(block.shortcut(x)))
        block.second_norm.bias.fill_(0.7)
        torch.testing.assert_close(block(x), torch.relu(block.shortcut(x) + 0.7))
    assert block(x).shape == (2, out, 6 // stride, 6 // stride)


def test_convolutions_start_as_he_et_al_do():
    weight = build_resnet(3, (1, 1, 1, 1)).stages[1].first.weight
    assert weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=1e-3)


ROWS = torch.randn(3, 6)


def test_a_backbone_by_name_by_function_by_class_and_as_it_is():
    class Own(nn.Linear):
        def __init__(self):
            super().__init__(6, 4)

    given = nn.Linear(6, 4)
    for backbone in ("resmlp-small", lambda: nn.Linear(6, 4), Own, given):
        model = draw(backbone, ROWS, 5, 2, 0, None)
        assert isinstance(model, Model)
        features, predictions = model(ROWS)
        assert (features.shape, predictions.shape) == ((3, 5), (3, 2))
        torch.testing.assert_close(features @ model.head.weight.T + model.head.bias, predictions)
    kept = [draw(given, ROWS, 5, 2, seed, None).backbone for seed in range(2)]
    for each in kept:
        assert each is not given
        assert torch.equal(each.weight, given.weight)
    assert not torch.equal(*(draw(Own, ROWS, 5, 2, seed, None).backbone.weight for seed in range(2)))


def test_drawing_leaves_the_statistics_of_batch_norm_alone():
    model = draw(lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)), ROWS + 5, 5, 2, 0, None)
    assert (model.backbone[0].running_mean == 0).all()
    assert model.training


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("backbone", "gave"),
    [(nn.Unflatten(1, (2, 3)), r"\(3, 2, 3\)"), (nn.Flatten(0), r"\(18,\)"), (Pair(), "tuple"),
     (nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (1, 18))), r"\(1, 18\)")],
)  # fmt: skip
def test_a_backbone_that_gives_no_vectors_is_refused(backbone, gave):
    said = rf"must return shape \(batch, features\); for 3 rows of shape \(6,\) it returned {gave}\.$"
    with pytest.raises(InputError, match=said) as refused:
        draw(backbone, ROWS, 5, 2, 0, None)
    assert refused.value.field == "backbone"


@pytest.mark.parametrize("name", BACKBONES)
def test_rows_and_images_need_their_own_backbones(name):
    shape, takes = ((6,), "images") if name in OF_IMAGES else ((1, 8, 8), "rows of numbers")
    with pytest.raises(InputError, match=rf"^The backbone '{name}' takes {takes}, but inputs have shape "):
        build_backbone(name, shape)


def test_a_misspelt_backbone_is_refused_with_the_nearest():
    with pytest.raises(
        InputError, match=r"Unknown backbone 'resnet81'; did you mean 'resnet18'\? Choose from resmlp, "
    ):
        build_backbone("resnet81", (3, 8, 8))


def test_a_name_like_no_other_suggests_none():
    with pytest.raises(InputError, match=r"^Unknown backbone 'foo'\. Choose from resmlp, "):
        build_backbone("foo", (6,))


@pytest.mark.parametrize(("backbone", "kind"), [(None, "NoneType"), (lambda: 3, "int"), (7, "int")])
def test_what_is_no_module_is_refused(backbone, kind):
    with pytest.raises(InputError, match=f"function that returns one, not {kind}") as refused:
        draw(backbone, ROWS, 5, 2, 0, None)
    assert refused.value.field == "backbone"


def test_a_backbone_for_other_inputs_is_refused_with_what_it_says():
    with pytest.raises(InputError, match=r"fails on 3 rows of shape \(6,\): RuntimeError: .*mat1 and mat2"):
        draw(nn.Linear(5, 4), ROWS, 5, 2, 0, None)


@pytest.mark.parametrize("backbone", [nn.Linear(6, 4).double(), nn.LazyLinear(4)])
def test_other_precisions_and_lazy_layers_become_models(backbone):
    h, _ = draw(backbone, ROWS, 5, 2, 0, None)(ROWS)
    assert (h.shape, h.dtype) == ((3, 5), ROWS.dtype)


def fingerprint_of(backbone, features=8):
    inputs = torch.ones(2, 3)
    return fingerprint(draw(backbone, inputs, features, 2, 0, None), inputs)


def small(activation=nn.ReLU, eps=1e-5, last=4):
    return nn.Sequential(nn.Linear(3, 4), activation(), nn.BatchNorm1d(4, eps), nn.Linear(4, last))


def frozen():
    return small().requires_grad_(False)


def test_a_fingerprint_tells_networks_apart():
    others = [lambda: small(nn.Tanh), lambda: small(last=5), lambda: small(eps=0.5), frozen]
    assert len({fingerprint_of(each) for each in (small, *others)} | {fingerprint_of(small, 9)}) == 6


def test_a_fingerprint_is_the_same_with_another_release_of_torch(monkeypatch):
    """What layers print of themselves is another thing in each."""
    before = fingerprint_of(small)
    monkeypatch.setattr(nn.BatchNorm1d, "extra_repr", lambda self: "4, bias=True")
    assert fingerprint_of(small) == before
