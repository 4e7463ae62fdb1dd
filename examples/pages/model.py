"""The network that finds one layer of a page, and the separation of a whole page with several of them."""

from pickle import UnpicklingError

import torch
from torch import nn
from torch.nn import functional

#: The factor by which the network shrinks a page.
SHRINKING = 4
#: Pixels around a pixel that affect its score; a multiple of SHRINKING.
MARGIN = 20
#: Side of the squares in which a page is separated, in pixels: a whole page may not fit into memory.
SQUARE = 256


class AutoEncoder(nn.Module):
    """Shrinks a patch twice by two and enlarges it again; scores how likely each pixel is in the layer.

    Features on the way down are added on the way up: a staff line is too thin to survive the shrinking.
    """

    def __init__(self, width):
        super().__init__()
        self.outer = stage(3, width)
        self.middle = stage(width, 2 * width)
        self.inner = nn.Sequential(stage(2 * width, 4 * width), stage(4 * width, 2 * width))
        self.unfold_middle = stage(2 * width, width)
        self.unfold_outer = stage(width, width)
        self.verdict = nn.Conv2d(width, 1, 1)

    def forward(self, pixels):
        """Return scores (patch, row, column) of bytes (patch, colour, row, column); above 0: in the layer."""
        ink = 1 - pixels.float() / 255
        outer = self.outer(ink)
        middle = self.middle(functional.max_pool2d(outer, 2))
        inner = self.inner(functional.max_pool2d(middle, 2))
        middle = self.unfold_middle(middle + twice_as_large(inner))
        return self.verdict(self.unfold_outer(outer + twice_as_large(middle))).squeeze(1)


def stage(channels, out):
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())


def twice_as_large(features):
    return functional.interpolate(features, scale_factor=2, mode="nearest")


class BadModel(Exception):
    """A file is not a valid model of a layer; the message continues a sentence after the file's name."""


def read_model(path):
    """Read a model from a file. Raises BadModel unless it has all weights, of the right shape, and finite."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        channels = state["verdict.weight"].shape[1]
    except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
        raise BadModel("cannot be read as a model: %s" % str(error).partition("\n")[0]) from error
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise BadModel("has no verdict.weight, so it is not a model of a layer") from error
    model = AutoEncoder(channels)
    expected = model.state_dict()
    for name in sorted(expected.keys() | state.keys()):
        if name not in state:
            raise BadModel("has no %s" % name)
        if name not in expected:
            raise BadModel("has %s, which no model of a layer has" % name)
        found, right = (kind_of(one[name]) for one in (state, expected))
        if found != right:
            raise BadModel("has %s of %s instead of %s" % (name, found, right))
        if not torch.isfinite(state[name]).all():
            raise BadModel("has %s with numbers that are not finite" % name)
    model.load_state_dict(state)
    return model


def kind_of(value):
    if not isinstance(value, torch.Tensor):
        return "type %s" % type(value).__name__
    return "shape %s, %s" % (tuple(value.shape), str(value.dtype).partition(".")[2])


@torch.inference_mode()
def scores_of(model, image):
    """Return the scores of all pixels of a page; they are computed square by square."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    height, width = image.shape[1:]
    # Padded by the margin on each side, and up to a size that the network can shrink.
    beyond = MARGIN, MARGIN + -width % SHRINKING, MARGIN, MARGIN + -height % SHRINKING
    wide = functional.pad(image[None].float(), beyond, mode="replicate").to(torch.uint8)
    scores = torch.empty(height, width)
    for top in range(0, height, SQUARE):
        for left in range(0, width, SQUARE):
            square = wide[..., top : top + SQUARE + 2 * MARGIN, left : left + SQUARE + 2 * MARGIN]
            found = model(square.to(device))[0, MARGIN:, MARGIN:].cpu()
            part = scores[top : top + SQUARE, left : left + SQUARE]
            part.copy_(found[: part.shape[0], : part.shape[1]])
    model.train(training)
    return scores


def separate(models, image):
    """Return the pixels of each layer. Of several layers, a pixel is in the one with the highest score."""
    scores = {layer: scores_of(model, image) for layer, model in models.items()}
    if len(scores) == 1:
        return {layer: score > 0 for layer, score in scores.items()}
    surest = torch.stack(list(scores.values())).argmax(dim=0)
    return {layer: surest == index for index, layer in enumerate(scores)}
