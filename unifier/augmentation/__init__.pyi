# The public augmentations; `__init__.py` imports each when it is first used.
from .audio import audio_tta as audio_tta
from .audio import augment_audio as augment_audio
from .detection import FlipWithBoxes as FlipWithBoxes
from .image import augment_images as augment_images
from .image import image_tta as image_tta
from .mixture import AugmentMember as AugmentMember
from .mixup import Compose as Compose
from .mixup import Mixup as Mixup
from .mixup import RandomChoice as RandomChoice
from .segmentation import FlipWithMask as FlipWithMask
from .text import BpeDropout as BpeDropout
from .transpose import Transpose as Transpose
from .transpose import TransposeVoices as TransposeVoices
from .window import RandomWindow as RandomWindow
