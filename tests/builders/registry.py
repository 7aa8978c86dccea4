"""Every model family that the product promises to carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.builders.bert import bert
from tests.builders.case import Case
from tests.builders.dlrm import dlrm
from tests.builders.gpt2 import gpt2
from tests.builders.llama import llama
from tests.builders.mixture import mixture
from tests.builders.resnet50 import resnet50
from tests.builders.t5 import t5
from tests.builders.unet import unet
from tests.builders.vit import vit

# Each takes `train` by keyword, and sizes of its own.
FAMILIES: Mapping[str, Callable[..., Case]] = {
    "bert": bert,
    "dlrm": dlrm,
    "gpt2": gpt2,
    "llama": llama,
    "mixture": mixture,
    "resnet50": resnet50,
    "t5": t5,
    "unet": unet,
    "vit": vit,
}
