# The public data sets; `__init__.py` imports each when it is first used.
from .audio_folder import AudioFolder as AudioFolder
from .cifar10 import CIFAR10 as CIFAR10
from .digits import Digits as Digits
from .emotify import Emotify as Emotify
from .esc import ESC as ESC
from .factory import create_audio_dataset as create_audio_dataset
from .factory import create_image_dataset as create_image_dataset
from .fsdd import FSDD as FSDD
from .grammar import GrammarPairs as GrammarPairs
from .gtzan import GTZAN as GTZAN
from .image_folder import ImageFolder as ImageFolder
from .mnist import MNIST as MNIST
from .multi30k import Multi30k as Multi30k
from .parallel_text import ParallelText as ParallelText
from .parallel_text import WithExtraPairs as WithExtraPairs
from .synthetic_music import SyntheticMusic as SyntheticMusic
