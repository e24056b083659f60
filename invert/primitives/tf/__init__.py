"""Rules for TensorFlow ops, one table row or short function each."""

from . import _array as _array
from . import _blocks as _blocks
from . import _call as _call
from . import _control as _control
from . import _conv as _conv
from . import _ctc as _ctc
from . import _cudnn as _cudnn
from . import _decompose as _decompose
from . import _diag as _diag
from . import _elementwise as _elementwise
from . import _fft as _fft
from . import _fused as _fused
from . import _gather as _gather
from . import _image as _image
from . import _linalg as _linalg
from . import _list_ops as _list_ops
from . import _loss as _loss
from . import _move as _move
from . import _nn as _nn
from . import _norm as _norm
from . import _optimizer as _optimizer
from . import _pool as _pool
from . import _quantize as _quantize
from . import _random as _random
from . import _reduce as _reduce
from . import _resize as _resize
from . import _resource_ops as _resource_ops
from . import _rnn as _rnn
from . import _scatter as _scatter
from . import _segment as _segment
from . import _sort as _sort
from . import _special as _special
from . import _stateless_random as _stateless_random
from . import _strided as _strided
from . import _suppression as _suppression
from . import _tensor_array as _tensor_array
from . import _variables as _variables
from ._node import Node as Node
from ._node import import_tensorflow as import_tensorflow
from ._registry import REGISTRY as REGISTRY
from ._registry import Context as Context
from ._registry import raises_tf as raises_tf

REGISTRY.freeze()
