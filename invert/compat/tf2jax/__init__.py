"""The interface of `tf2jax`: `from invert.compat import tf2jax` instead of `import tf2jax`.

The functions, flags and errors are those of tf2jax 0.3.9. `invert.convert` does the work; its
result is the attribute `module` of a converted function. Flags belong to the current context: those
about conversion apply when a function is converted, checks when it is called.

| flag | here |
|---|---|
| `strict_shape_check` | off: a function called at other shapes is traced again; one \
of a SavedModel is recovered again at these |
| `strict_dtype_check` | off: arguments are converted to the declared types |
| `force_const_float32_to_bfloat16` | on: `Config(bfloat16_constants=("float32",))`; a call with a \
bfloat16 array returns bfloat16, and is computed in the precision of the function |
| `force_const_float64_to_bfloat16` | the same, for `"float64"` |
| `convert_custom_gradient` | off: `Config(custom_gradients="ignore")` |
| `infer_relu_from_jax2tf`, `infer_cumulative_reduction_from_jax2tf` | off: without these patterns |
| `raise_on_prevent_gradient` | off: `Config(prevent_gradient="warn")` |
| `enable_checkify_for_asserts` | on: `Config(assertions="checkify")` |
| `resize_bilinear_precision` | `Config(resize_precision=...)`; bilinear resizing has no products |
| `skip_variables_evaluation_inside_tf_tracing` | on: while TensorFlow traces, `params` is empty, \
and a call is given the values; off: that is an error |
| `xlacallmodule_strict_checks` | no effect: a recovered program runs on every platform |
| `disable_assert_in_tensor_list_get_item` | no effect: the assertion does not exist |
"""

from invert.compat.tf2jax import config as config
from invert.compat.tf2jax import experimental as experimental
from invert.compat.tf2jax.config import get_config as get_config
from invert.compat.tf2jax.config import override_config as override_config
from invert.compat.tf2jax.config import update_config as update_config
from invert.compat.tf2jax.functions import AnnotatedFunction as AnnotatedFunction
from invert.compat.tf2jax.functions import MissingInputError as MissingInputError
from invert.compat.tf2jax.functions import Variable as Variable
from invert.compat.tf2jax.functions import convert as convert
from invert.compat.tf2jax.functions import (
    convert_from_restored as convert_from_restored,
)
from invert.compat.tf2jax.functions import convert_functional as convert_functional
from invert.compat.tf2jax.functions import (
    convert_functional_from_restored as convert_functional_from_restored,
)
