"""Recovered programs as readable Python: the text of an Equinox module.

`emit.emit_methods` is the entry point. It cuts finished programs (`Recovered`) into layers
(`layers`) and writes them as classes (`classes`, `main_class`) of functions and statements
(`expressions`). Every expression is proved by tracing (`expressions.proof`, `ir.traced_form`), as
is the whole file (`comparison`), at the open sizes of the program.
"""

from typing import TYPE_CHECKING

from invert._lazy import submodules
from invert.emission.emitted import CALL as CALL
from invert.emission.emitted import STYLES as STYLES
from invert.emission.emitted import Emission as Emission
from invert.emission.emitted import Origin as Origin
from invert.emission.emitted import constant_name as constant_name
from invert.emission.emitted import is_index as is_index
from invert.emission.emitted import put_values as put_values

if TYPE_CHECKING:
    from invert.emission import emit as emit
    from invert.emission import recovered as recovered

# A conversion without a text does without the modules that write it.
__getattr__ = submodules(__name__, "emit", "recovered")
