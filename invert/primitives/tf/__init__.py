"""Rules for TensorFlow ops, one table row or short function each."""

from invert.primitives.tf import audio as audio
from invert.primitives.tf import box_sampling as box_sampling
from invert.primitives.tf import box_suppression as box_suppression
from invert.primitives.tf import calls as calls
from invert.primitives.tf import candidate_sampling as candidate_sampling
from invert.primitives.tf import control_flow as control_flow
from invert.primitives.tf import conv as conv
from invert.primitives.tf import ctc as ctc
from invert.primitives.tf import ctc_decoding as ctc_decoding
from invert.primitives.tf import cudnn_rnn as cudnn_rnn
from invert.primitives.tf import devices as devices
from invert.primitives.tf import diagonals as diagonals
from invert.primitives.tf import dynamic_size as dynamic_size
from invert.primitives.tf import elementwise as elementwise
from invert.primitives.tf import fake_quant as fake_quant
from invert.primitives.tf import fft as fft
from invert.primitives.tf import fitting as fitting
from invert.primitives.tf import fractional_pooling as fractional_pooling
from invert.primitives.tf import fused as fused
from invert.primitives.tf import gather as gather
from invert.primitives.tf import image as image
from invert.primitives.tf import legacy as legacy
from invert.primitives.tf import linalg as linalg
from invert.primitives.tf import losses as losses
from invert.primitives.tf import mapped_calls as mapped_calls
from invert.primitives.tf import matmul as matmul
from invert.primitives.tf import nn as nn
from invert.primitives.tf import normalization as normalization
from invert.primitives.tf import optimizer as optimizer
from invert.primitives.tf import padding as padding
from invert.primitives.tf import pooling as pooling
from invert.primitives.tf import quantized as quantized
from invert.primitives.tf import quantized_fused as quantized_fused
from invert.primitives.tf import quantized_reductions as quantized_reductions
from invert.primitives.tf import ragged as ragged
from invert.primitives.tf import random as random
from invert.primitives.tf import reduction as reduction
from invert.primitives.tf import resize as resize
from invert.primitives.tf import rnn as rnn
from invert.primitives.tf import scatter as scatter
from invert.primitives.tf import segments as segments
from invert.primitives.tf import shape as shape
from invert.primitives.tf import shuffle as shuffle
from invert.primitives.tf import slicing as slicing
from invert.primitives.tf import sort as sort
from invert.primitives.tf import sparse as sparse
from invert.primitives.tf import sparse_indices as sparse_indices
from invert.primitives.tf import sparse_matrix as sparse_matrix
from invert.primitives.tf import special as special
from invert.primitives.tf import stateless_random as stateless_random
from invert.primitives.tf import tensor_arrays as tensor_arrays
from invert.primitives.tf import tensor_lists as tensor_lists
from invert.primitives.tf import uniform_quantized as uniform_quantized
from invert.primitives.tf import variable_slices as variable_slices
from invert.primitives.tf import variables as variables
from invert.primitives.tf import xla as xla
from invert.primitives.tf import xla_computations as xla_computations

from invert.primitives.tf import bounded as bounded  # isort: skip  # it needs the rules of these
from invert.tf.fallback.eager import refused_inputs
from invert.tf.fallback.host import host_entry, text_entry
from invert.tf.interpreter.registry import REGISTRY as REGISTRY

REGISTRY.complete(overrides=(text_entry,), fallbacks=(host_entry,), diagnose=refused_inputs)
