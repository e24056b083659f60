"""Recovered programs as readable Python: the text of an Equinox module.

`emit_methods` is the entry point. It takes finished programs (`Recovered`), cuts them into layers
(`layers`), and writes classes (`classes`, `main_class`) of functions and statements
(`expressions`). Every expression is proved by tracing (`expressions.proof`, `ir.traced_form`), and
so is the whole file (`emit`), at the open sizes of the program.
"""

from invert.emission.emit import STYLES as STYLES
from invert.emission.emit import Emission as Emission
from invert.emission.emit import Layered as Layered
from invert.emission.emit import Origin as Origin
from invert.emission.emit import Recovered as Recovered
from invert.emission.emit import constant_name as constant_name
from invert.emission.emit import cut_into_layers as cut_into_layers
from invert.emission.emit import emit_methods as emit_methods
from invert.emission.emit import inlined as inlined
from invert.emission.emit import put_values as put_values
from invert.emission.main_class import CALL as CALL
from invert.emission.python.naming import comment as comment
from invert.ir.traced_form import difference as difference
from invert.ir.traced_form import strong as strong
